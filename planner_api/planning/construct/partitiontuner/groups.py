"""Group profiles: which ops may run as one, where, and for how long (PartitionTuner, sections 3.1 and 4.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner_api.planning.construct.partitiontuner.branches import branches
from planner_api.planning.problem import Problem

Members = tuple[int, ...]
"""Ops in a row of one branch that run as one."""
Groups = Mapping[Members, Sequence[float]]
"""Latency of each group, in microseconds per processor (``inf``: not there)."""


@dataclass(frozen=True)
class Traits:
    """What a restricted processor looks at: an op's type and, of a convolution, its channels and its filters."""

    type: str
    channels: int = 0
    filters: int = 0


@dataclass(frozen=True)
class Restriction:
    """A processor with a fixed matrix unit, as the paper's NPU.

    Attributes:
        types: what it computes.
        multiple: channels and filters must be multiples of this.
        behind: types that it takes only right behind one of ``types``, within a group.
    """

    types: frozenset[str] = frozenset({"Conv"})
    multiple: int = 16
    behind: frozenset[str] = frozenset({"Relu"})

    def takes(self, members: Sequence[Traits]) -> bool:
        """Whether it runs these ops, in this order, as one unit."""
        head, *rest = members
        fits = head.channels % self.multiple == 0 and head.filters % self.multiple == 0
        return head.type in self.types and fits and len(rest) <= 1 and all(op.type in self.behind for op in rest)


def find_groups(problem: Problem, types: Sequence[str], patterns: Sequence[tuple[str, ...]]) -> list[Members]:
    """Every run of ops within a branch whose types are one of the patterns, e.g. ``("Conv", "Relu")``."""
    found = []
    for branch in branches(problem):
        for place in range(len(branch.ops)):
            for pattern in patterns:
                members = branch.ops[place : place + len(pattern)]
                if tuple(types[op] for op in members) == pattern:
                    found.append(members)
    return found


def profile(
    groups: Sequence[Members], identity: Callable[[Members], str], measure: Callable[[Members], Sequence[float]]
) -> dict[Members, Sequence[float]]:
    """Measure groups, one of each identity: what has the same types, attributes and shapes takes the same time."""
    known: dict[str, Sequence[float]] = {}
    for group in groups:
        if identity(group) not in known:
            known[identity(group)] = measure(group)
    return {group: known[identity(group)] for group in groups}


def restrict(
    problem: Problem, groups: Groups, traits: Sequence[Traits], processor: int, rule: Restriction
) -> tuple[Problem, dict[Members, Sequence[float]]]:
    """The problem and the groups without what a restricted processor does not take.

    Raises:
        PlanningError: an op is left without a processor.
    """
    latency = problem.latency_us.copy()
    for op, one in enumerate(traits):
        if not rule.takes([one]):
            latency[op, processor] = math.inf
    kept: dict[Members, Sequence[float]] = {}
    for members, row in groups.items():
        takes = rule.takes([traits[op] for op in members])
        kept[members] = [us if takes or p != processor else math.inf for p, us in enumerate(row)]
    return replace(problem, latency_us=latency), kept


def fuse(problem: Problem, units: Sequence[Members], groups: Groups) -> Problem:
    """The same problem with each unit, a single op or a group, as one op."""
    index = {op: unit for unit, members in enumerate(units) for op in members}
    latency = np.array([unit_us(problem, members, groups) for members in units], dtype=np.float64)
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


def unit_us(problem: Problem, members: Members, groups: Groups) -> Sequence[float]:
    """Latency of a single op or a group, in microseconds per processor."""
    return groups[members] if len(members) > 1 else problem.lists.latency[members[0]]
