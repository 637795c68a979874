"""What PartitionTuner is compared with, TypeSeq and OpSeq, and how placements over fused groups are timed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner_api.planning import Problem
from planner_api.planning.construct.partitiontuner import branches

Members = tuple[int, ...]
"""Ops in a row of one branch that run as one."""
Groups = Mapping[Members, Sequence[float]]
"""Latency of each group, in microseconds per processor (``inf``: not there)."""


def fuse(problem: Problem, units: Sequence[Members], groups: Groups) -> Problem:
    """The same problem with each unit, a single op or a group, as one op."""
    index = {op: unit for unit, members in enumerate(units) for op in members}
    latency = np.array(
        [groups[members] if len(members) > 1 else problem.lists.latency[members[0]] for members in units], dtype=float
    )
    return replace(
        problem,
        ops=tuple("+".join(problem.ops[op] for op in members) for members in units),
        latency_us=latency,
        producer=np.array([index.get(int(op), -1) for op in problem.producer], dtype=np.int64),
        reads=tuple(
            tuple(dict.fromkeys(t for op in m for t in problem.reads[op] if int(problem.producer[t]) not in m))
            for m in units
        ),
    )


def type_seq(
    problem: Problem, groups: Groups, types: Sequence[str], accelerator: int, taken: frozenset[str]
) -> list[int]:
    """TypeSeq: ops of the given types to the accelerator, with what follows them in a group there; the rest elsewhere.

    What the accelerator does not support, and what is not of its types, runs on its fastest other processor.

    Returns:
        The processor of each op; one may support its op only within a group.
    """
    assignment = []
    for op, row in enumerate(problem.lists.latency):
        others = [p for p, us in enumerate(row) if us < math.inf and p != accelerator]
        if row[accelerator] < math.inf and (types[op] in taken or not others):
            assignment.append(accelerator)
        else:
            assignment.append(min(others, key=lambda p: row[p]))
    for members, us in groups.items():
        if us[accelerator] < math.inf and types[members[0]] in taken and assignment[members[0]] == accelerator:
            for op in members:
                assignment[op] = accelerator
    return assignment


def op_seq(problem: Problem) -> list[int]:
    """OpSeq: every op to the processor on which it alone is fastest."""
    return [min(range(problem.host), key=lambda p: row[p]) for row in problem.lists.latency]


def partitions(problem: Problem, groups: Groups, assignment: Sequence[int]) -> list[tuple[Members, int]]:
    """The units that a placement is compiled to: groups that lie whole on one processor, first and longest first."""
    units: list[tuple[Members, int]] = []
    for branch in branches(problem):
        place = 0
        while place < len(branch.ops):
            processor = assignment[branch.ops[place]]
            members = branch.ops[place : place + 1]
            for group, us in groups.items():
                fits = branch.ops[place : place + len(group)] == group and len(group) > len(members)
                if fits and us[processor] < math.inf and all(assignment[op] == processor for op in group):
                    members = group
            units.append((members, processor))
            place += len(members)
    return units
