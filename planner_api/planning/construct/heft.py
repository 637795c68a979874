"""HEFT (Topcuoglu et al. 2002) with insertion, its transfers charged as the cost model charges them."""

from __future__ import annotations

import bisect
import math

from planner_api.planning.budget import Budget
from planner_api.planning.construct.finish import placed
from planner_api.planning.construct.listing import by_rank, upward_rank
from planner_api.planning.judge.simulator import Decoder, simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem


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

    def place(self, op: int, here: int) -> None:
        """Append an op; its interval is busy for all rivals."""
        super().place(op, here)
        for rival in self.lists.rivals[here]:
            _occupy(self.busy_us[rival], self.start[op], self.finish[op])


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


def solve(problem: Problem, budget: Budget) -> Solution:
    """Ops by descending upward rank, each into the gap where it finishes first; scored by the simulator.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    order = by_rank(problem, upward_rank(problem, moves=True))
    found = placed(Inserting(problem), order, range(problem.host))
    sequence = sorted(problem.lists.order, key=found.start.__getitem__)
    return Solution(simulate(problem, found.home, sequence), "heft")
