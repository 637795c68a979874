"""The two bounds that need no solver, critical path and load; longest ways and best rates, which others are made of."""

from collections.abc import Sequence

import numpy as np

from planner_api.planning.methods import Bound
from planner_api.planning.problem import FloatArray, Problem


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


def rates(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """What an op takes at the best rate of any of its parts, and its shortest part: (n, P) microseconds."""
    whole, least, choices = problem.latency_us.copy(), problem.latency_us.copy(), problem.choices
    for (name, axes), parts_us in zip(choices.axes.items(), choices.parts_us, strict=True):
        op = choices.index[name]
        for axis, us in zip(axes, parts_us, strict=False):
            borders = np.array(choices.tenths(name, axis))
            size = np.maximum(borders - borders[:, None], 1)[..., None]
            least[op] = np.minimum(least[op], us.min(axis=(0, 1)))
            whole[op] = np.minimum(whole[op], (us * borders[-1] / size).min(axis=(0, 1)))
    return whole, least


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
    """The least work of each op, in shares of what it occupies, spread evenly over all resources."""
    uses = problem.machine.uses.sum(axis=1)
    work = problem.latency_us * problem.shares * uses
    finish = float(work.min(axis=1).sum()) / problem.machine.uses.shape[1]
    # The last job to end, whichever it is, ends no sooner.
    return Bound(float((problem.weight * (finish - problem.due_us)).min()), "load")


def trivial(problem: Problem) -> Bound:
    """For plans of whole ops."""
    return max(critical_path(problem), load(problem), key=lambda bound: bound.us)
