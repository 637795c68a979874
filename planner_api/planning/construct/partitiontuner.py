"""PartitionTuner (Yu et al. 2023) and the two policies it is compared with, TypeSeq and OpSeq.

PartitionTuner cuts the graph into branches (maximal chains), maps each branch by dynamic programming over the
profiles of single ops and of fused groups, and lets branches on different processors run side by side.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner_api.planning.construct.listing import list_order
from planner_api.planning.judge.simulator import Schedule, simulate
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.solver import Budget, Solution

Groups = Mapping[tuple[int, ...], Sequence[float]]
"""Latency of fused groups: ops in a row of one branch, to microseconds per processor (``inf``: not there)."""


@dataclass(frozen=True)
class Tuned:
    """A mapping over a problem whose chosen groups have become single ops."""

    problem: Problem
    assignment: tuple[int, ...]

    @property
    def sequential_us(self) -> float:
        """Time when the partitions run one after the other."""
        return sequential_us(self.problem, self.assignment)

    def schedule(self) -> Schedule:
        """The mapping with parallel branches running in parallel."""
        return simulate(self.problem, self.assignment, list_order(self.problem, self.assignment))


def sequential_us(problem: Problem, assignment: Sequence[int]) -> float:
    """Time of a mapping when no two ops and transfers ever run at once."""
    lists = problem.lists
    schedule = simulate(problem, assignment, lists.order)
    moves = sum(move.finish_us - move.start_us for move in schedule.transfers)
    if problem.mode == "overlap":
        moves = sum(lists.transfer[move.tensor][move.source][move.target] for move in schedule.transfers)
    return moves + sum(lists.latency[op][processor] for op, processor in enumerate(schedule.assignment))


def type_seq(problem: Problem, types: Sequence[str], accelerator: int, taken: frozenset[str]) -> list[int]:
    """TypeSeq: ops of the given types to the accelerator where it supports them, the rest to their fastest other."""
    assignment = []
    for op, row in enumerate(problem.lists.latency):
        others = [p for p, us in enumerate(row) if us < math.inf and p != accelerator]
        if row[accelerator] < math.inf and (types[op] in taken or not others):
            assignment.append(accelerator)
        else:
            assignment.append(min(others, key=lambda p: row[p]))
    return assignment


def op_seq(problem: Problem) -> list[int]:
    """OpSeq: every op to the processor on which it alone is fastest."""
    return [min(range(problem.host), key=lambda p: row[p]) for row in problem.lists.latency]


def branches(problem: Problem) -> list[list[int]]:
    """Maximal chains (PartitionTuner, definition 1), in topological order of their heads."""
    lists = problem.lists
    result: dict[int, list[int]] = {}
    chain: dict[int, list[int]] = {}
    for op in lists.order:
        before = lists.before[op]
        if len(before) == 1 and len(lists.after[before[0]]) == 1:
            chain[op] = chain[before[0]]
            chain[op].append(op)
        else:
            result[op] = chain[op] = [op]
    return list(result.values())


def tune(problem: Problem, groups: Groups) -> Tuned:
    """Map branch by branch, each at its cheapest given the branches before it.

    Raises:
        PlanningError: a branch has an op that its inputs cannot reach.
    """
    home: dict[int, int] = {}
    parts: list[tuple[tuple[int, ...], int]] = []
    for branch in branches(problem):
        for members, processor in _map(problem, branch, groups, home):
            parts.append((members, processor))
            home.update(dict.fromkeys(members, processor))
    fused = _fuse(problem, [members for members, _ in parts], groups)
    return Tuned(fused, tuple(processor for _, processor in parts))


def _map(
    problem: Problem, branch: list[int], groups: Groups, home: Mapping[int, int]
) -> list[tuple[tuple[int, ...], int]]:
    """Cheapest cut of one branch into single ops and groups, each on one processor: a shortest path."""
    lists, host = problem.lists, problem.host
    starts: dict[int, list[tuple[int, ...]]] = {place: [(op,)] for place, op in enumerate(branch)}
    position = {op: place for place, op in enumerate(branch)}
    for group in groups:
        place = position.get(group[0])
        if place is not None and tuple(branch[place : place + len(group)]) == group:
            starts[place].append(group)
    # best[place][processor]: cost of everything before `place`, the op just before it being on `processor`.
    best: list[dict[int, tuple[float, tuple[tuple[int, ...], int, int] | None]]] = [{} for _ in range(len(branch) + 1)]
    best[0] = {-1: (0.0, None)}
    for place in range(len(branch)):
        for before, (cost, _) in best[place].items():
            for members in starts[place]:
                for processor in range(host):
                    row = groups[members] if len(members) > 1 else lists.latency[members[0]]
                    total = cost + row[processor]
                    for op in members:
                        for tensor in lists.reads[op]:
                            producer = lists.producer[tensor]
                            if producer in members:
                                continue
                            inside = producer in position
                            source = before if inside else home[producer] if producer >= 0 else host
                            total += lists.transfer[tensor][source][processor]
                    after = best[place + len(members)]
                    if total < math.inf and total < after.get(processor, (math.inf, None))[0]:
                        after[processor] = (total, (members, processor, before))
    if not best[-1]:
        raise PlanningError(f"the branch of op '{problem.ops[branch[0]]}' fits on no processors")
    parts: list[tuple[tuple[int, ...], int]] = []
    place, processor = len(branch), min(best[-1], key=lambda p: best[-1][p][0])
    while place:
        step = best[place][processor][1]
        assert step is not None
        members, _, processor = step
        parts.append((members, step[1]))
        place -= len(members)
    return parts[::-1]


def _fuse(problem: Problem, parts: list[tuple[int, ...]], groups: Groups) -> Problem:
    """The same problem with each part as one op."""
    index = {op: part for part, members in enumerate(parts) for op in members}
    latency = np.array([groups[m] if len(m) > 1 else problem.latency_us[m[0]] for m in parts], dtype=np.float64)
    return dataclasses.replace(
        problem,
        ops=tuple("+".join(problem.ops[op] for op in members) for members in parts),
        latency_us=latency,
        producer=np.array([index.get(int(op), -1) for op in problem.producer], dtype=np.int64),
        reads=tuple(
            tuple(dict.fromkeys(t for op in m for t in problem.reads[op] if int(problem.producer[t]) not in m))
            for m in parts
        ),
    )


def solve(problem: Problem, budget: Budget) -> Solution:
    """Branch-wise dynamic programming without group profiles; scored by the simulator.

    Raises:
        PlanningError: a branch has an op that its inputs cannot reach.
    """
    assignment = [0] * len(problem.ops)
    home: dict[int, int] = {}
    for branch in branches(problem):
        for (op,), processor in _map(problem, branch, {}, home):
            assignment[op] = home[op] = processor
    return Solution(simulate(problem, assignment, list_order(problem, assignment)), "partitiontuner")
