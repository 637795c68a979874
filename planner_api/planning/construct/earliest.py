"""Ops by descending upward rank, each where it ends first: by stretches of one grain, or into gaps.

*grain* settles for a stretch of ops at a time how many cores an op takes. Where runtimes are offered on all cores,
halves, quarters, ..., the earliest finish of one op alone is nearly always on the most cores, so that all ops follow
one another, though two on half of the cores take less than one after the other on all. So a stretch is placed once per
grain, on processors that take equally many resources, and the grain stays on which the stretch ends first: all cores
for the stem of a network, halves or quarters for its branches. Where no groups nest, each op goes where it ends first.

*heft* (Topcuoglu et al. 2002) inserts; its transfers are charged as the cost model charges them.
"""

import bisect
import math
from collections.abc import Container, Sequence
from typing import Final

import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import by_rank, first_end, upward_rank
from planner_api.planning.judge.simulator import Decoder, Times, simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem

STRETCH: Final = 10
"""Ops that are placed on one grain: about a cell's branches. Of 5 to 80, 10 and 20 gave the shortest plans."""


def placed(decoder: Decoder, ops: Sequence[int], among: Container[int] | None = None) -> Decoder:
    """A decoder with more ops, each where it ends first among some processors; anywhere, if none supports it."""
    for op in ops:
        decoder.append(first_end(decoder, op, among))
    return decoder


def grains(problem: Problem) -> list[frozenset[int]]:
    """The processors by how many resources they take, most first; one that shares none with another grain is in all."""
    size = problem.machine.uses.sum(axis=1)
    rivals = problem.machine.conflicts & (size[:, None] != size)
    apart = ~rivals.any(axis=1)
    nested = sorted(set(size[~apart].tolist()), reverse=True)
    return [frozenset(np.flatnonzero((size == grain) | apart).tolist()) for grain in nested] or [
        frozenset(range(problem.host))
    ]


def grain(problem: Problem, budget: Budget) -> Solution:
    """Ops by descending upward rank, stretch by stretch on the grain that ends it first."""
    order = by_rank(problem, upward_rank(problem))
    decoder, choices = Decoder(problem), grains(problem)
    length = STRETCH if len(choices) > 1 else len(order)

    def end(stretch: Sequence[int], processors: Container[int]) -> float:
        """When all would have ended with a stretch on some processors."""
        latest = placed(decoder, stretch, processors).latest
        for _ in stretch:
            decoder.take_back()
        return latest

    for first in range(0, len(order), length):
        stretch = order[first : first + length]
        ends = [end(stretch, processors) for processors in choices] if len(choices) > 1 else [0.0]
        placed(decoder, stretch, choices[ends.index(min(ends))])
    return Solution(decoder.schedule(), "grain")


class Inserting(Decoder):
    """A decoder that lets an op begin in a gap between others, where it and what it pays for fit."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.busy_us: list[list[tuple[float, float]]] = [[] for _ in range(problem.host)]

    def opening(self, op: int, here: int, begin: float, paid: float) -> float:
        """The first gap of the processor, and of its rivals: they share its list of busy intervals."""
        busy, length = self.busy_us[here], paid + self.lists.latency[op][here]
        gap = bisect.bisect_left(busy, (begin, -math.inf))
        if gap and busy[gap - 1][1] > begin:
            begin = busy[gap - 1][1]
        while gap < len(busy) and begin + length > busy[gap][0]:
            begin = max(begin, busy[gap][1])
            gap += 1
        return begin

    def append(self, times: Times) -> None:
        """Append an op; its interval is busy for all rivals."""
        super().append(times)
        for rival in self.lists.rivals[times.here]:
            _occupy(self.busy_us[rival], times.start, times.finish)


def _occupy(busy: list[tuple[float, float]], begin: float, end: float) -> None:
    """Add an interval to sorted, disjoint ones; intervals that touch become one, so that only gaps are searched."""
    first = bisect.bisect_left(busy, (begin, -math.inf))
    if first and busy[first - 1][1] >= begin:
        first -= 1
    last = first
    while last < len(busy) and busy[last][0] <= end:
        begin, end = min(begin, busy[last][0]), max(end, busy[last][1])
        last += 1
    busy[first:last] = [(begin, end)]


def heft(problem: Problem, budget: Budget) -> Solution:
    """Ops by descending upward rank, each into the gap where it finishes first; scored by the simulator."""
    order = by_rank(problem, upward_rank(problem, moves=True))
    found = placed(Inserting(problem), order)
    sequence = sorted(problem.lists.order, key=found.start.__getitem__)
    return Solution(simulate(problem, found.home, sequence), "heft")
