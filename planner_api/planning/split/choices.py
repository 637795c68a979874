"""How each op may be cut: along which axes, over which processors, where between its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from hope_schema import Cut
from hope_schema.cutting import CutError, axes_of, halve
from planner_api.planning.problem import Problem
from planner_api.planning.problem.cuts import TENTHS, Shape, border

LEAST = 0.002
"""Of all ops' fastest latencies together: an op that takes less stays whole."""
WORTH = 0.9
"""A team gets one more processor where that takes its ideal time below this part of what it was, and saves more than
a crossing costs."""

Team = tuple[int, ...]
"""Processors that compute a part each."""


@lru_cache(maxsize=4)
def choices_of(problem: Problem) -> Choices:
    """What may be cut of a problem that knows how; bound and search ask alike."""
    return Choices(problem)


class Choices:
    """What may be cut.

    Attributes:
        axes: by op (its name): the axes along which it can be cut.
        teams: by op: the processors that share it, from its best pair to as many as pay.
    """

    def __init__(self, problem: Problem) -> None:
        assert problem.cutter is not None
        self.problem, self.cutter = problem, problem.cutter
        self.index = {node.id: op for op, node in enumerate(self.cutter.nodes)}
        self.fastest = problem.latency_us.min(axis=1)
        self.axes: dict[str, tuple[int, ...]] = {}
        self.teams: dict[str, list[Team]] = {}
        self.sync_us = sync_us(problem)
        self._steps: dict[tuple[str, int], int] = {}
        least = LEAST * float(self.fastest.sum())
        for op, node in enumerate(self.cutter.nodes):
            teams = self._teams(op) if self.fastest[op] >= least and len(node.writes) == 1 else []
            axes = tuple(axis for axis in axes_of(self._shape(op)) if self._allows(op, axis)) if teams else ()
            if axes:
                self.axes[node.id], self.teams[node.id] = axes, teams
        self.before = {
            node.id: [self.cutter.nodes[earlier].id for earlier in problem.lists.before[self.index[node.id]]]
            for node in self.cutter.nodes
        }

    def _shape(self, op: int) -> Shape:
        return self.cutter.shapes[self.cutter.nodes[op].writes[0]]

    def _allows(self, op: int, axis: int) -> bool:
        """Whether an op can be halved along an axis."""
        node = self.cutter.nodes[op]
        try:
            halve(node, axis, self._shape(op)[axis])
        except CutError:
            return False
        self._steps[node.id, axis] = node.granularity(axis)
        return True

    def _teams(self, op: int) -> list[Team]:
        row = self.problem.latency_us[op]
        found: list[Team] = []
        team: list[int] = []
        for processor in np.argsort(row, kind="stable").tolist():
            if not math.isfinite(row[processor]) or len(team) == TENTHS:
                break
            if any(self.problem.conflicts[processor, other] for other in team):
                continue
            if team:
                before = _ideal(row, team)
                if _ideal(row, [*team, processor]) > min(WORTH * before, before - self.sync_us):
                    break
            team.append(processor)
            if len(team) > 1:
                found.append(tuple(sorted(team)))
        return found

    def shares(self, op: str, team: Team) -> list[float]:
        """What each processor takes if all are to end together."""
        speed = [1.0 / float(self.problem.latency_us[self.index[op], processor]) for processor in team]
        return [one / sum(speed) for one in speed]

    def cut(self, op: str, axis: int, shares: Sequence[float], chained: bool = False) -> Cut | None:
        """An op in parts of about these shares, on the grid; None where a part would be empty."""
        at = [self._border(op, axis, round(float(share) * TENTHS)) for share in np.cumsum(shares)[:-1]]
        if any(low >= high for low, high in pairwise([0, *at, self._extent(op, axis)])):
            return None
        return Cut(op=op, axis=axis, at=tuple(at), chained=chained)

    def borders(self, op: str, axis: int) -> list[int]:
        """Where parts of an op may begin and end."""
        return sorted({self._border(op, axis, tenth) for tenth in range(TENTHS)} | {self._extent(op, axis)})

    def _border(self, op: str, axis: int, tenth: int) -> int:
        return border(self._extent(op, axis), self._steps[op, axis], tenth)

    def _extent(self, op: str, axis: int) -> int:
        return self._shape(self.index[op])[axis]

    def shares_of(self, cut: Cut) -> list[float]:
        """What of an op each part of a cut is."""
        extent = self._extent(cut.op, cut.axis)
        return [(high - low) / extent for low, high in pairwise([0, *cut.at, extent])]


def sync_us(problem: Problem) -> float:
    """The least that working on one op side by side costs: a launch with its hand-over, a move there and back."""
    machine = problem.machine
    moves = problem.transfer_us[(problem.transfer_us > 0) & np.isfinite(problem.transfer_us)]
    apart = len(set(machine.place.tolist())) == problem.host
    return float(machine.lag_us.min() + machine.launch_us.min() + (2 * moves.min() if apart and moves.size else 0.0))


def _ideal(row: np.ndarray, team: Sequence[int]) -> float:
    return 1.0 / sum(1.0 / max(float(row[processor]), 1e-9) for processor in team)
