"""How ops may be cut, as flat arrays for the kernels: borders, what parts take and read, what moving some of a tensor
costs.
"""

import numpy as np

from hope_schema.cutting import CutError, Region, Span
from planner_api.planning.native import Struct
from planner_api.planning.problem import FloatArray, IntArray, Problem
from planner_api.planning.problem.choices import AXES, TENTHS

FIELDS = 7
HOME, TENTH, LOW, HIGH, PARTS, AXIS, CHAINED = range(FIELDS)
"""Fields of a part in `State.mode`, how an op is computed. Of each part: its processor, the tenth at which it begins,
the first and one past the last element that it computes, with what a chain adds. In those of the first part, of the op:
in how many parts, along which axis, and whether its parts are to read the same parts of what it reads and nothing else.
"""
RANK = 16
"""Axes that a tensor has at most."""
WHOLE, NEVER = -1, -2
"""Instead of an axis: a part reads all of the tensor; no such part can be."""


def ways_of(problem: Problem) -> Struct:
    """Write down what may be cut; nothing where ops stay whole."""
    n, p = problem.latency_us.shape
    choices = problem.choices
    names = list(choices.axes)
    row = np.full(n, -1)
    axes, extent = np.full((n, AXES), -1), np.ones((n, AXES), dtype=np.int64)
    border = np.zeros((n, AXES, TENTHS + 1), dtype=np.int64)
    more_us = np.zeros((len(names), AXES, p))
    needs = _Needs(problem)
    fixed, slope, glue = _moves(problem)
    options: list[tuple[int, IntArray]] = []
    for d, name in enumerate(names):
        op = choices.index[name]
        row[op] = d
        for g, team, at in choices.options(name):
            mode = np.zeros((choices.most_parts, FIELDS), dtype=np.int64)
            mode[: len(team), HOME], mode[: len(team), TENTH] = team, at[:-1]
            mode[0, PARTS], mode[0, AXIS] = len(team), g
            options.append((op, mode))
        for g, axis in enumerate(choices.axes[name]):
            needs.add(op, g, axis)
            axes[op, g] = axis
            border[op, g] = choices.tenths(name, axis)
            extent[op, g] = border[op, g, -1]
            more_us[d, g] = _more(choices.parts_us[d, g], border[op, g])
    options.sort(key=lambda option: option[0])
    return Struct(
        "Ways",
        row=row,
        part_us=choices.parts_us,
        more_us=more_us,
        axes=axes,
        extent=extent,
        border=border,
        needs=needs.arrays(),
        fixed=fixed,
        slope=slope,
        glue=glue,
        option_at=np.searchsorted([op for op, _ in options], np.arange(n + 1)),
        option=np.array([mode for _, mode in options], dtype=np.int64).reshape(-1),
    )


def _more(part_us: FloatArray, border: IntArray) -> FloatArray:
    """(P,) by how much a part takes longer for each element along the axis: the smallest beside the largest."""
    small, large = part_us[0, 1:TENTHS], border[1:TENTHS]
    known = np.flatnonzero(np.isfinite(small).any(axis=1) & (large > 0))
    if len(known) < 2 or large[known[-1]] == large[known[0]]:
        return np.zeros(part_us.shape[-1])
    with np.errstate(invalid="ignore"):
        more = (small[known[-1]] - small[known[0]]) / (large[known[-1]] - large[known[0]])
    least: FloatArray = np.maximum(np.nan_to_num(more), 0.0)
    return least


class _Needs:
    """What parts read, by read and axis."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.first = problem, np.cumsum([0, *map(len, problem.reads)])
        count = int(self.first[-1])
        self.axis = np.full((count, AXES), NEVER)
        self.span, self.at = np.ones((count, AXES), dtype=np.int64), np.full((count, AXES), -1)
        self.low: list[int] = []
        self.high: list[int] = []

    def arrays(self) -> Struct:
        low, high = (np.array(ends, dtype=np.int64) for ends in (self.low, self.high))
        return Struct("Needs", axis=self.axis, span=self.span, at=self.at, low=low, high=high)

    def add(self, op: int, g: int, axis: int) -> None:
        """Note what the parts of an op along one of its axes read."""
        node, shapes, first = self.problem.cutter.nodes[op], self.problem.cutter.shapes, int(self.first[op])
        tensors = [self.problem.tensors[tensor] for tensor in self.problem.reads[op]]
        tenths = self.problem.choices.tenths(node.id, axis)
        extent = tenths[-1]

        def asked(start: int, stop: int) -> dict[str, Span | None] | None:
            try:
                needs = node.needs(Region.along(axis, start, stop))
                return {name: need.spans[0] if need else None for name, need in needs.items()}
            except CutError:
                return None

        inner = [border for border in tenths if 0 < border < extent]
        halves = {(0, border): asked(0, border) for border in inner}
        halves |= {(border, extent): asked(border, extent) for border in inner}
        some = next((found for found in halves.values() if found is not None), None)
        if some is None:
            return
        plain = True
        for e, tensor in enumerate(tensors, start=first):
            need = some.get(tensor)
            self.axis[e, g] = WHOLE if need is None else need.axis
            if need is not None:
                self.span[e, g] = shapes[tensor][need.axis]
                own = ((part, found.get(tensor)) for part, found in halves.items() if found is not None)
                plain = plain and all(other is not None and other[1:] == part for part, other in own)
        if plain:
            return
        starts = [asked(start, extent) for start in range(extent)]
        stops = [asked(0, stop) for stop in range(1, extent + 1)]
        for e, tensor in enumerate(tensors, start=first):
            if self.axis[e, g] == WHOLE:
                continue
            # What cannot be made reads nothing: from the far end to the beginning.
            low = [found[tensor] if found else None for found in starts]
            high = [found[tensor] if found else None for found in stops]
            self.at[e, g] = len(self.low)
            self.low += [need.start if need else int(self.span[e, g]) for need in low] + [int(self.span[e, g])]
            self.high += [0] + [need.stop if need else 0 for need in high]


def _moves(problem: Problem) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lines through a move of all of a tensor and one of about a third of it; what copying it takes."""
    choices, cutter = problem.choices, problem.cutter
    tensors, places = len(problem.tensors) if choices.axes else 0, len(problem.machine.places)
    fixed, slope = np.zeros((2, tensors, places, places))
    glue = np.zeros((tensors, RANK))
    read = {tensor for name in choices.axes for tensor in problem.reads[choices.index[name]]}
    made = {tensor for name in choices.axes for tensor in problem.lists.writes[choices.index[name]]}
    for tensor in sorted(read | made):
        name = problem.tensors[tensor]
        shape = cutter.shapes[name]
        axis = max(range(len(shape)), key=lambda one: shape[one], default=-1)
        if axis < 0 or shape[axis] < 2:
            continue
        size = max(1, shape[axis] // 3)
        whole = cutter.move_us(name, shape)
        some = cutter.move_us(name, (*shape[:axis], size, *shape[axis + 1 :]))
        finite = np.isfinite(whole) & np.isfinite(some)
        part = size / shape[axis]
        slope[tensor][finite] = np.clip((whole[finite] - some[finite]) / (1 - part), 0.0, whole[finite])
        fixed[tensor] = np.where(finite, whole - slope[tensor], np.inf)
        for along in range(len(shape)):
            glue[tensor, along] = cutter.glue_us(name, shape, (along,), ()).min()
    return fixed, slope, glue
