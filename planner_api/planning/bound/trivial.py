"""The two bounds that need no solver, critical path and load; longest ways, best rates and smallest parts besides."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from hope_schema.cutting import CutError, Region, Span, axes_of
from planner_api.planning.methods import Bound
from planner_api.planning.problem import FloatArray, Problem

TILES = (3,), (2, 3)
"""Axes along which tiles are cut beside those of stripes."""


def longest(problem: Problem, us: Sequence[float], release_us: Sequence[float] | None = None) -> list[float]:
    """Return the longest way through the graph that ends with each op, in microseconds, where ops take ``us``.

    What reads graph inputs begins at its ``release_us`` at the earliest; None: they are all there at once.
    """
    lists = problem.lists
    finish = list(us)
    for op in lists.order:
        ready = [finish[earlier] for earlier in lists.before[op]]
        if release_us is not None and any(lists.producer[tensor] < 0 for tensor in lists.reads[op]):
            ready.append(release_us[op])
        finish[op] += max(ready, default=0.0)
    return finish


def at_best_rate(problem: Problem) -> FloatArray:
    """What an op takes at the best rate of any of its parts that is known: (n, P) microseconds."""
    whole, choices = problem.latency_us.copy(), problem.choices
    for (name, axes), parts_us in zip(choices.axes.items(), choices.parts_us, strict=True):
        op = choices.index[name]
        for axis, us in zip(axes, parts_us, strict=False):
            borders = np.array(choices.tenths(name, axis))
            size = np.maximum(borders - borders[:, None], 1)[..., None]
            whole[op] = np.minimum(whole[op], (us * borders[-1] / size).min(axis=(0, 1)))
    return whole


def smallest_parts(problem: Problem) -> FloatArray:
    """What the smallest part takes that an op can be cut into, by stripes or by tiles: (n, P) microseconds.

    That is the op itself where it stays whole, and nothing where its smallest part is none by itself. Parts on the grid
    count too: measured, they may take less than is predicted of smaller ones.
    """
    least, cutter, choices = problem.latency_us.copy(), problem.cutter, problem.choices
    for name, parts_us in zip(choices.axes, choices.parts_us, strict=True):
        op = choices.index[name]
        least[op] = np.minimum(least[op], parts_us.min(axis=(0, 1, 2)))
    for op, node in enumerate(cutter.nodes):
        shape = cutter.shapes[node.writes[0]]
        for axes in (*((axis,) for axis in axes_of(shape)), *(TILES if len(shape) == 4 else ())):
            with suppress(CutError):  # along which it stays whole
                middle = Region(tuple(_middle(axis, shape[axis], node.granularity(axis)) for axis in axes))
                least[op] = np.minimum(least[op], _part_us(problem, op, middle))
    return least


def _middle(axis: int, extent: int, step: int) -> Span:
    """One step in the middle of an axis, where no window is cut off."""
    start = extent // 2 // step * step
    return Span(axis, start, min(start + step, extent))


def _part_us(problem: Problem, op: int, part: Region) -> FloatArray | float:
    try:
        return problem.cutter.part_us(op, part)
    except CutError:
        return 0.0


def critical_path(problem: Problem) -> Bound:
    """Longest path when every op runs where that ends soonest, for each reader anew, and moves wait for nothing.

    A tensor is at a place no sooner than its producer ended somewhere and it came from there, whoever brought it.
    """
    machine, lists, place = problem.machine, problem.lists, problem.machine.place
    move = problem.transfer_us.copy()  # from wherever a tensor stands already: over the cheapest way
    move[:, range(len(machine.places)), range(len(machine.places))] = 0.0
    for k in range(len(machine.places)):
        move = np.minimum(move, move[:, :, k, None] + move[:, None, k, :])
    begin = np.array([min((problem.release_us[op] for op in readers), default=0.0) for readers in lists.readers])
    there = begin[:, None] + move[:, machine.host, place]  # of graph inputs; by tensor and processor
    between, ends = move[:, place[:, None], place], problem.latency_us.copy()
    for op in lists.order:
        if reads := lists.reads[op]:
            ends[op] += there[reads].max(axis=0)
        for tensor in lists.writes[op]:
            there[tensor] = (ends[op, :, None] + between[tensor]).min(axis=0)
    finish = ends.min(axis=1)
    outputs = np.flatnonzero(problem.is_output & (problem.producer >= 0))
    maker = problem.producer[outputs]
    np.maximum.at(finish, maker, (ends[maker] + move[outputs[:, None], place, machine.host]).min(axis=1))
    return Bound(float((problem.weight * (finish - problem.due_us)).max()), "critical-path")


def load(problem: Problem) -> Bound:
    """The least work of each op, spread evenly over all resources."""
    finish = evenly(problem, problem.latency_us)
    # The last job to end, whichever it is, ends no sooner.
    return Bound(float((problem.weight * (finish - problem.due_us)).min()), "load")


def evenly(problem: Problem, us: FloatArray) -> float:
    """The time in which all resources together do the least work of each op, where ops take ``us``."""
    uses = problem.machine.uses
    work = us * problem.shares * uses.sum(axis=1)
    return float(work.min(axis=1).sum()) / int(uses.shape[1])


def trivial(problem: Problem) -> Bound:
    """For plans of whole ops."""
    return max(critical_path(problem), load(problem), key=lambda bound: bound.us)
