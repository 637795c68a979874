"""How the ops of a problem can be cut, and how each may be: along which axes, by whom, where between its parts."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np

from hope_schema import Cut
from hope_schema.cutting import CutError, Node, Region, axes_of, halve
from planner_api.planning.problem.arrays import FloatArray
from planner_api.planning.problem.machine import Machine

Shape = tuple[int, ...]
TENTHS = 10
"""Borders lie on this grid (CoDL's ratios)."""
AXES = 2
"""Along so many axes an op may be cut, at most; they are counted from 0."""
LEAST = 0.0005
"""Of all ops' fastest latencies together: an op that takes less stays whole."""
WORTH = 0.9
"""A team gets one more processor where that takes its ideal time below this part of what it was."""
NOISE = 0.01
"""Relative gain below which ops stay whole: figures are hardly better than that, and parts are more to launch."""

Team = tuple[int, ...]
"""Processors that compute a part each."""


def grid(extent: int, step: int) -> list[int]:
    """The tenths of an axis, or as near as an op's granularity allows."""
    return [*(round(tenths / TENTHS * extent / step) * step for tenths in range(TENTHS)), extent]


def _unknown(*of: object) -> FloatArray:
    raise CutError("nothing is known of parts")


@dataclass(frozen=True, eq=False)
class Cutter:
    """How the ops of a problem can be cut, and what parts, slices, joins and their moves cost.

    Attributes:
        nodes: the problem's ops, in its order, under its names; or none of them.
        shapes: of every tensor, by name.
        part_us: of an op (by index) and a region of its output: (P,) microseconds; ``inf`` where it does not run.
        glue_us: of a tensor, the shape that a slice or a join of it writes, the axes of which it holds a part, and the
            shapes that they read, if that is known: (P,) microseconds.
        move_us: of a tensor and the shape of what is moved of it: (L, L) microseconds from place to place.
    """

    nodes: tuple[Node, ...] = ()
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    part_us: Callable[[int, Region], FloatArray] = _unknown
    glue_us: Callable[[str, Shape, tuple[int, ...], tuple[Shape, ...]], FloatArray] = _unknown
    move_us: Callable[[str, Shape], FloatArray] = _unknown


WHOLE = Cutter()
"""All ops stay whole."""


class Choices:
    """What may be cut.

    Attributes:
        axes: by op (its name): the axes along which it can be cut; empty where nothing is worth cutting.
        teams: by op: the processors that share it, from its best pair to as many as pay.
        bands: whether a link brings another host an input sooner in parts, the first of which is computed meanwhile.
        possible: whether any cut might save anything, worth it or not: bounds on whole ops do not hold then.
        ideal_us: (n,) what each op takes at least, however it is spread over a team; no bound on its shortest part.
    """

    def __init__(
        self,
        cutter: Cutter,
        latency_us: FloatArray,
        machine: Machine,
        transfer_us: FloatArray,
        inputs: Mapping[str, int],
    ) -> None:
        # NOTE: no reference to the problem, which keeps its choices: what refers to itself outlives its last user.
        self.cutter, self.latency_us, self.conflicts = cutter, latency_us, machine.conflicts
        self.index = {node.id: op for op, node in enumerate(cutter.nodes)}
        self.fastest = latency_us.min(axis=1)
        self.ideal_us = self.fastest.copy()
        self.axes: dict[str, tuple[int, ...]] = {}
        self.teams: dict[str, list[Team]] = {}
        least = LEAST * float(self.fastest.sum())
        for op, node in enumerate(cutter.nodes):
            teams = self._teams(op) if self.fastest[op] >= least else []
            axes = tuple(self._along(op)) if teams else ()
            if axes:
                self.axes[node.id], self.teams[node.id] = axes, teams
                self.ideal_us[op] = min(_ideal(latency_us[op], team) for team in teams)
        self.bands = any(self._in_bands(name, machine, transfer_us[tensor]) for name, tensor in inputs.items())
        cuts = (axis for op in range(len(cutter.nodes)) for axis in self._along(op))
        self.possible = self.bands or (not machine.conflicts.all() and next(cuts, None) is not None)
        saved_us = float((self.fastest - self.ideal_us).sum())
        # Parts are brought together once at least: a launch behind another's end.
        if not self.bands and saved_us <= machine.end_us.min() + machine.launch_us.min() + NOISE * self._path_us():
            self.axes.clear()

    @cached_property
    def most_parts(self) -> int:
        return max((len(team) for op in self.axes for team in self.teams[op]), default=1)

    def _path_us(self) -> float:
        """The longest path of whole ops, each where it is fastest."""
        there: dict[str, float] = {}
        for node, us in zip(self.cutter.nodes, self.fastest.tolist(), strict=False):
            end = us + max((there.get(name, 0.0) for name in node.reads), default=0.0)
            there |= dict.fromkeys(node.writes, end)
        return max(there.values(), default=0.0)

    def _in_bands(self, name: str, machine: Machine, whole_us: FloatArray) -> bool:
        shape = self.cutter.shapes.get(name, ())
        far = machine.owners != machine.owners[machine.host]
        if len(shape) < 3 or not far.any():
            return False
        half_us = self.cutter.move_us(name, (*shape[:2], (shape[2] + 1) // 2, *shape[3:]))
        return bool((half_us < whole_us)[machine.host, far].any())

    def _shape(self, op: int) -> Shape:
        return self.cutter.shapes[self.cutter.nodes[op].writes[0]]

    def _along(self, op: int) -> Iterator[int]:
        """The axes along which an op can be halved."""
        node = self.cutter.nodes[op]
        for axis in axes_of(self._shape(op)) if len(node.writes) == 1 else ():
            with suppress(CutError):
                halve(node, axis, self._shape(op)[axis])
                yield axis

    def _teams(self, op: int) -> list[Team]:
        row = self.latency_us[op]
        found: list[Team] = []
        team: list[int] = []
        for processor in np.argsort(row, kind="stable").tolist():
            if not math.isfinite(row[processor]) or len(team) == TENTHS:
                break
            if any(self.conflicts[processor, other] for other in team):
                continue
            if team and _ideal(row, [*team, processor]) > WORTH * _ideal(row, team):
                break
            team.append(processor)
            if len(team) > 1:
                found.append(tuple(sorted(team)))
        return found

    def options(self, op: str) -> list[tuple[int, Team, tuple[int, ...]]]:
        """The cuts at which all parts end together: which of the op's axes, by whom, and at which tenths."""
        found = []
        for team in self.teams[op]:
            speed = [1.0 / max(float(self.latency_us[self.index[op], processor]), 1e-9) for processor in team]
            inner = [round(TENTHS * sum(speed[: k + 1]) / sum(speed)) for k in range(len(team) - 1)]
            at = (0, *(min(TENTHS - 1, max(1, tenth)) for tenth in inner), TENTHS)
            for g, axis in enumerate(self.axes[op]):
                borders = self.tenths(op, axis)
                if all(borders[low] < borders[high] for low, high in pairwise(at)):
                    found.append((g, team, at))
        return found

    def cut(self, op: str, axis: int, shares: Sequence[float], chained: bool = False) -> Cut | None:
        """An op in parts of about these shares, on the grid; None where a part would be empty."""
        borders = self.tenths(op, axis)
        at = [borders[round(float(share) * TENTHS)] for share in np.cumsum(shares)[:-1]]
        if any(low >= high for low, high in pairwise([0, *at, borders[-1]])):
            return None
        return Cut(op=op, axes=(axis,), at=(tuple(at),), chained=chained)

    def tenths(self, op: str, axis: int) -> list[int]:
        """Where parts of an op may begin and end."""
        index = self.index[op]
        return grid(self._shape(index)[axis], self.cutter.nodes[index].granularity(axis))

    @cached_property
    def parts_us(self) -> FloatArray:
        """(D, AXES, TENTHS + 1, TENTHS + 1, P) what the part between two tenths takes of each op that may be cut.

        ``inf``: there is no such part, or not there.
        """
        found = np.full((len(self.axes), AXES, TENTHS + 1, TENTHS + 1, self.latency_us.shape[1]), np.inf)
        for d, (op, axes) in enumerate(self.axes.items()):
            runs, pairs = np.isfinite(self.latency_us[self.index[op]]), max(map(len, self.teams[op])) == 2
            for g, axis in enumerate(axes):
                borders = self.tenths(op, axis)
                for start, stop in combinations(range(TENTHS + 1), 2):
                    if borders[start] == borders[stop] or (pairs and start > 0 and stop < TENTHS):
                        continue  # of two parts one begins and one ends the op
                    with suppress(CutError):
                        us = self.cutter.part_us(self.index[op], Region.along(axis, borders[start], borders[stop]))
                        found[d, g, start, stop, runs] = us[runs]
        return found


def _ideal(row: np.ndarray, team: Sequence[int]) -> float:
    return 1.0 / sum(1.0 / max(float(row[processor]), 1e-9) for processor in team)
