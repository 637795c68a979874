"""A problem with some of its ops cut: parts, slices and joins are ops like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hope_schema import Cut
from hope_schema.cutting import Node, Piece, Region, pieces
from planner_api.planning.problem.arrays import FloatArray

if TYPE_CHECKING:
    from planner_api.planning.problem.problem import Problem

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
        glue_us: of a tensor, the shape that a slice or a join of it writes, and their axis: (P,) microseconds.
        move_us: of a tensor and the shape of what is moved of it: (L, L) microseconds from place to place.
    """

    nodes: tuple[Node, ...]
    shapes: Mapping[str, Shape]
    part_us: Callable[[int, Region], FloatArray]
    glue_us: Callable[[str, Shape, int], FloatArray]
    move_us: Callable[[str, Shape], FloatArray]

    def pieces(self, cuts: Sequence[Cut], outputs: Sequence[str]) -> list[Piece]:
        """The ops of the problem that results. Raises CutError."""
        return pieces(self.nodes, cuts, self.shapes, outputs)


def cut_problem(problem: Problem, cuts: Sequence[Cut]) -> tuple[Problem, list[Piece]]:
    """The problem with its cuts made, and what each of its ops is of the one without.

    Raises:
        CutError: a cut that cannot be made.
        PlanningError: the problem has several jobs.
    """
    cutter = problem.cutter
    assert cutter is not None
    index = {node.id: op for op, node in enumerate(cutter.nodes)}
    known = {name: tensor for tensor, name in enumerate(problem.tensors)}
    outputs = [problem.tensors[tensor] for tensor in problem.lists.outputs]
    made = cutter.pieces(cuts, outputs)

    inputs = [name for name in problem.tensors if problem.producer[known[name]] < 0]
    shapes: dict[str, Shape] = {name: cutter.shapes[name] for name in inputs}
    whole: dict[str, str] = dict(zip(inputs, inputs, strict=True))
    latency, source = [], []
    for piece in made:
        source.append(index[piece.op] if piece.kind in ("whole", "part") else -1)
        if piece.kind == "whole":
            shapes |= {name: cutter.shapes[name] for name in piece.writes}
            whole |= {name: name for name in piece.writes}
            latency.append(problem.latency_us[source[-1]])
            continue
        assert piece.region is not None
        name, (axis, start, stop) = piece.writes[0], piece.region
        tensor = cutter.nodes[source[-1]].writes[0] if piece.kind == "part" else piece.op
        base = cutter.shapes[tensor] if piece.kind == "part" else shapes[piece.reads[0]]
        shapes[name], whole[name] = (*base[:axis], stop - start, *base[axis + 1 :]), tensor
        if piece.kind == "part":
            runs = np.isfinite(problem.latency_us[source[-1]])
            latency.append(np.where(runs, cutter.part_us(source[-1], piece.region), np.inf))
        else:
            latency.append(cutter.glue_us(tensor, shapes[name], axis))

    tensors = tuple(shapes)
    place = {name: tensor for tensor, name in enumerate(tensors)}
    producer = np.full(len(tensors), -1, dtype=np.int64)
    for op, piece in enumerate(made):
        for name in piece.writes:
            producer[place[name]] = op
    transfer = np.stack(
        [
            problem.transfer_us[known[name]] if name in known else cutter.move_us(whole[name], shapes[name])
            for name in tensors
        ]
    )
    kept, wholes = np.array(source), np.array([piece.kind == "whole" for piece in made])

    def carried(values: FloatArray | None, default: float) -> FloatArray | None:
        """What holds of an op holds of its parts; slices and joins take the default."""
        return None if values is None else np.where(kept[:, None] < 0, default, values[kept])

    cut = replace(
        problem,
        ops=tuple(piece.writes[0] if piece.kind != "whole" else piece.op for piece in made),
        latency_us=np.array(latency),
        producer=producer,
        reads=tuple(tuple(dict.fromkeys(place[name] for name in piece.reads)) for piece in made),
        is_output=np.array([name in set(outputs) for name in tensors], dtype=np.bool_),
        transfer_us=transfer,
        tensors=tensors,
        share=carried(problem.share, 1.0),
        in_parts=None if problem.in_parts is None else problem.in_parts[kept] & wholes[:, None],
        predicted_spread=carried(problem.predicted_spread, 0.0),
        cutter=None,
    )
    return cut, made
