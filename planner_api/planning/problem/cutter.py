"""How the ops of a problem can be cut into parts, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hope_schema import Cut
from hope_schema.cutting import Node, Piece, Region, pieces
from planner_api.planning.problem.arrays import FloatArray

Shape = tuple[int, ...]
TENTHS = 10
"""Borders lie on this grid (CoDL's ratios)."""


def border(extent: int, step: int, tenths: int) -> int:
    """So many tenths of an axis, at a multiple of the op's granularity."""
    return round(tenths / TENTHS * extent / step) * step


@dataclass(frozen=True, eq=False)
class Cutter:
    """How the ops of a problem can be cut, and what parts, slices, joins and their moves cost.

    Attributes:
        nodes: the problem's ops, in its order, under its names.
        shapes: of every tensor, by name.
        part_us: of an op (by index) and a region of its output: (P,) microseconds; ``inf`` where it does not run.
        glue_us: of a tensor, the shape that a slice or a join of it writes, their axis, and the shapes that they read,
            if that is known: (P,) microseconds.
        move_us: of a tensor and the shape of what is moved of it: (L, L) microseconds from place to place.
    """

    nodes: tuple[Node, ...]
    shapes: Mapping[str, Shape]
    part_us: Callable[[int, Region], FloatArray]
    glue_us: Callable[[str, Shape, int, tuple[Shape, ...]], FloatArray]
    move_us: Callable[[str, Shape], FloatArray]

    def pieces(self, cuts: Sequence[Cut], outputs: Sequence[str]) -> list[Piece]:
        """The ops of the problem that results. Raises CutError."""
        return pieces(self.nodes, cuts, self.shapes, outputs)
