"""MOSAIC (Han et al. 2019): the model as a line of ops, cut into slices.

Dynamic programming over a line, here the topological order. A state says where each tensor that is still to be read can
be found; what a prefix costs is the sum of its latencies and transfers. Exact as long as no more than ``WIDTH``
states are alive at one op, which holds for chains, residual nets and Inceptions; otherwise the cheapest survive.

PartitionTuner (Yu et al. 2023) maps branches, maximal chains, by that program. Branches of one level, with the same
input and output node, may run side by side; its fused groups are super-ops, which were merged before.

In both papers plans run in rounds, slice by slice and level by level (``benchmarks/rounds.py``). What is planned here
is their placement, started as early as our engine starts it.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import in_better_order, stuck
from planner_api.planning.methods import Solution
from planner_api.planning.problem import PlanningError, Problem

WIDTH = 16
"""Most states kept per op."""
MOST_STEPS = 20_000_000
"""Live tensors times states times processors, over all ops, after which it gives up: some seconds."""


Past = tuple[int, "Past | None"]
"""The processor of the last op, and what came before."""


class _State(NamedTuple):
    """Cost so far; for each live tensor (source, places it is on as a bit mask); where the ops before ran."""

    cost: float
    live: tuple[tuple[int, int], ...]
    past: Past | None


def mosaic(problem: Problem, budget: Budget) -> Solution:
    """The best linear slicing."""
    order = problem.lists.order
    home = sliced(problem, order, {})
    return Solution(in_better_order(problem, [home[op] for op in range(len(order))], order), "mosaic")


def sliced(problem: Problem, line: Sequence[int], home: Mapping[int, int]) -> dict[int, int]:
    """The processors of some ops in a row with the least sum of latencies and transfers.

    Args:
        line: the ops, in topological order.
        home: processors of what they read from outside of the line.

    Raises:
        PlanningError: an op cannot get its inputs anywhere, or the line is too wide.
    """
    lists, host = problem.lists, problem.host
    last = {tensor: place for place, op in enumerate(line) for tensor in lists.reads[op]}
    made = {tensor for op in line for tensor in lists.writes[op]}
    frontier = [tensor for tensor in last if tensor not in made]
    sources = [home.get(lists.producer[tensor], host) for tensor in frontier]
    steps = 0
    states = [_State(0.0, tuple((source, 1 << source) for source in sources), None)]
    for place, op in enumerate(line):
        reads = [frontier.index(tensor) for tensor in lists.reads[op]]
        written = [tensor for tensor in lists.writes[op] if tensor in last]
        kept = [index for index, tensor in enumerate(frontier) if last[tensor] > place]
        steps += len(frontier) * len(states) * host
        if steps > MOST_STEPS:
            raise PlanningError(
                f"MOSAIC takes too long on this graph: at op '{problem.ops[op]}' ({place + 1} of {len(line)}) "
                f"{len(frontier)} tensors are alive at once"
            )
        fetch = [(index, problem.crossing_us(frontier[index]).tolist()) for index in reads]
        outputs = [problem.crossing_us(tensor)[:, host] for tensor in lists.writes[op] if problem.is_output[tensor]]
        longer: dict[tuple[tuple[int, int], ...], _State] = {}
        for processor, latency in enumerate(lists.latency[op]):
            here = 1 << processor
            leave = sum(float(there[processor]) for there in outputs)
            fresh = tuple((processor, here) for _ in written)
            if latency + leave == math.inf:
                continue
            for state in states:
                cost, live = state.cost + latency + leave, list(state.live)
                for index, transfer in fetch:
                    source, places = live[index]
                    if not places & here:
                        cost += transfer[source][processor]
                        live[index] = (source, places | here)
                key = tuple([live[index] for index in kept]) + fresh
                if cost < math.inf and (key not in longer or cost < longer[key].cost):
                    longer[key] = _State(cost, key, (processor, state.past))
        if not longer:
            raise stuck(problem, op)
        frontier = [frontier[index] for index in kept] + written
        states = sorted(longer.values(), key=lambda state: state.cost)[:WIDTH]
    found: dict[int, int] = {}
    past = states[0].past
    for op in reversed(line):
        assert past is not None
        found[op], past = past
    return found


def branches(problem: Problem) -> list[list[int]]:
    """Maximal chains of ops (definition 1), in topological order of their heads."""
    lists = problem.lists
    chains: list[list[int]] = []
    home: dict[int, list[int]] = {}
    for op in lists.order:
        before = lists.before[op]
        if len(before) == 1 and len(lists.after[before[0]]) == 1:
            home[op] = home[before[0]]
        else:
            home[op] = []
            chains.append(home[op])
        home[op].append(op)
    return chains


def levels(problem: Problem) -> list[list[int]]:
    """The ops of parallel branches, which have the same input and output node (definition 2): in topological order,
    and so are the levels, for no edge between two of them points back.
    """
    lists = problem.lists
    found: dict[object, list[int]] = defaultdict(list)
    for chain in branches(problem):
        # A graph input is a node too.
        inputs = sorted(tensor for tensor in lists.reads[chain[0]] if lists.producer[tensor] < 0)
        found[(*lists.before[chain[0]], None, *inputs), tuple(lists.after[chain[-1]])] += chain
    place = {op: position for position, op in enumerate(lists.order)}
    return [sorted(ops, key=place.__getitem__) for ops in found.values()]


def partitiontuner(problem: Problem, budget: Budget) -> Solution:
    """Branch-wise dynamic programming, each branch given those before it, level after level."""
    home: dict[int, int] = {}
    for branch in branches(problem):
        home |= sliced(problem, branch, home)
    assignment = [home[op] for op in range(len(problem.ops))]
    order = [op for level in levels(problem) for op in level]
    return Solution(in_better_order(problem, assignment, order), "partitiontuner")
