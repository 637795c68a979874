"""PartitionTuner (Yu et al. 2023): the graph as branches, maximal chains, each mapped by dynamic programming.

It maps over the profiles of single ops and of fused groups; branches of one level, with the same input and output node,
run side by side where they are on different processors, and everything else runs in sequence. A group profile holds no
transfers here: they are charged as the cost model says, so that an op pays for what it really has to fetch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner_api.planning.budget import Budget
from planner_api.planning.construct.rounds import in_rounds
from planner_api.planning.methods import Solution
from planner_api.planning.problem import PlanningError, Problem

Members = tuple[int, ...]
"""Ops in a row of one branch that run as one."""
Groups = Mapping[Members, Sequence[float]]
"""Latency of each group, in microseconds per processor (``inf``: not there)."""


@dataclass(frozen=True)
class Branch:
    """A maximal chain of ops (definition 1), in order.

    Branches of one ``level`` are parallel: they have the same input and the same output node (definition 2). Levels
    are numbered in an order in which every edge between two of them points forward.
    """

    level: int
    ops: tuple[int, ...]


def branches(problem: Problem) -> list[Branch]:
    """The branches of a graph, in topological order of their heads."""
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
    levels: dict[object, int] = {}
    found = []
    for chain in chains:
        # A graph input is a node too.
        inputs = [tensor for tensor in lists.reads[chain[0]] if lists.producer[tensor] < 0]
        ends = (*lists.before[chain[0]], None, *sorted(inputs)), tuple(lists.after[chain[-1]])
        found.append(Branch(levels.setdefault(ends, len(levels)), tuple(chain)))
    return found


def levels(problem: Problem) -> list[list[int]]:
    """Ops by level of their branches; within a level in topological order."""
    level = {op: branch.level for branch in branches(problem) for op in branch.ops}
    rounds: dict[int, list[int]] = defaultdict(list)
    for op in problem.lists.order:
        rounds[level[op]].append(op)
    return [rounds[number] for number in sorted(rounds)]


def tune(problem: Problem, groups: Groups) -> list[tuple[Members, int]]:
    """Map branch by branch, each at its cheapest given the branches before it.

    Returns:
        Single ops and groups, each with its processor.
    """
    home: dict[int, int] = {}
    units: list[tuple[Members, int]] = []
    for branch in branches(problem):
        for members, processor in _map(problem, branch, groups, home):
            units.append((members, processor))
            home.update(dict.fromkeys(members, processor))
    return units


def _map(problem: Problem, branch: Branch, groups: Groups, home: Mapping[int, int]) -> list[tuple[Members, int]]:
    """Cheapest cut of one branch into single ops and groups, each on one processor: a shortest path."""
    lists, chain = problem.lists, branch.ops
    position = {op: place for place, op in enumerate(chain)}
    starts: list[list[Members]] = [[(op,)] for op in chain]
    for group in groups:
        place = position.get(group[0])
        if place is not None and chain[place : place + len(group)] == group:
            starts[place].append(group)
    # best[place][processor]: cost of everything before `place`, the op just before it being on `processor`.
    best: list[dict[int, tuple[float, tuple[Members, int, int] | None]]] = [{} for _ in range(len(chain) + 1)]
    best[0] = {-1: (0.0, None)}
    for place in range(len(chain)):
        for before, (cost, _) in best[place].items():
            for members in starts[place]:
                for processor, us in enumerate(unit_us(problem, members, groups)):
                    total = cost + us
                    for op in members:
                        for tensor in lists.reads[op]:
                            producer = lists.producer[tensor]
                            if producer in members:
                                continue
                            inside = producer in position
                            source = before if inside else home[producer] if producer >= 0 else problem.host
                            total += lists.transfer[tensor][source][processor]
                    after = best[place + len(members)]
                    if total < math.inf and total < after.get(processor, (math.inf, None))[0]:
                        after[processor] = (total, (members, processor, before))
    if not best[-1]:
        raise PlanningError(f"the branch of op '{problem.ops[chain[0]]}' fits on no processors")
    units: list[tuple[Members, int]] = []
    place, processor = len(chain), min(best[-1], key=lambda p: best[-1][p][0])
    while place:
        step = best[place][processor][1]
        assert step is not None
        members, _, processor = step
        units.append((members, step[1]))
        place -= len(members)
    return units[::-1]


def unit_us(problem: Problem, members: Members, groups: Groups) -> Sequence[float]:
    """Latency of a single op or a group, in microseconds per processor."""
    return groups[members] if len(members) > 1 else problem.lists.latency[members[0]]


def solve(problem: Problem, budget: Budget) -> Solution:
    """Branch-wise dynamic programming, level after level."""
    assignment = [0] * len(problem.ops)
    for (op,), processor in tune(problem, {}):
        assignment[op] = processor
    return Solution(in_rounds(problem, assignment, levels(problem)), "partitiontuner", in_rounds=True)
