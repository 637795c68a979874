"""HEFT (Topcuoglu et al. 2002) with insertion, its transfers charged as the cost model charges them."""

from __future__ import annotations

import bisect
import math

import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import by_rank
from planner_api.planning.construct.partial import runnable, stuck
from planner_api.planning.judge.simulator import simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem


def _rank(problem: Problem) -> list[float]:
    """Upward rank: mean latency, plus the longest way down with mean transfers."""
    lists = problem.lists
    between, pairs = problem.between_us
    finite = np.where(np.isfinite(between), between, 0.0)
    mean = ((finite * pairs).sum(axis=(1, 2)) / max(pairs.sum(), 1)).tolist()
    rank = [0.0] * len(problem.ops)
    for op in reversed(lists.order):
        known = [us for us in lists.latency[op] if us < math.inf]
        tail = max(
            (rank[reader] + mean[tensor] for tensor in lists.writes[op] for reader in lists.readers[tensor]),
            default=0.0,
        )
        rank[op] = sum(known) / len(known) + tail
    return rank


class _Lines:
    """The busy intervals of each processor, and when each tensor is on it."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.lists = problem, problem.lists
        self.busy: list[list[tuple[float, float]]] = [[] for _ in range(problem.host)]
        self.start = [0.0] * len(problem.ops)
        self.finish = [0.0] * len(problem.ops)
        self.home = [-1] * len(problem.ops)
        self.cached: list[dict[int, float]] = [{} for _ in range(problem.host)]

    def earliest(self, op: int, processor: int) -> tuple[float, float]:
        """Earliest interval in a gap of the processor (and its rivals: they share its list of busy intervals)."""
        lists, host = self.lists, self.problem.host
        latency = lists.latency[op][processor]
        cached = self.cached[processor]
        ready = 0.0
        for earlier in lists.before[op]:
            ready = max(ready, self.finish[earlier])
        fetch = []
        for tensor in lists.reads[op]:
            producer = lists.producer[tensor]
            source = self.home[producer] if producer >= 0 else host
            if source == processor:
                continue
            cost = lists.transfer[tensor][source][processor]
            fetch.append((cached.get(tensor, math.inf), cost))
        begin = ready
        if math.isinf(latency) or any(math.isinf(cost) for _, cost in fetch):
            return math.inf, math.inf
        busy = self.busy[processor]
        place = bisect.bisect_left(busy, (begin, -math.inf))
        if place and busy[place - 1][1] > begin:
            begin = busy[place - 1][1]
        while True:
            length = latency + sum(cost for since, cost in fetch if since > begin)
            if place == len(busy) or begin + length <= busy[place][0]:
                return begin, begin + length
            begin = max(begin, busy[place][1])
            place += 1

    def place(self, op: int, processor: int, begin: float, end: float) -> None:
        lists = self.lists
        self.start[op], self.finish[op], self.home[op] = begin, end, processor
        for rival in lists.rivals[processor]:
            _occupy(self.busy[rival], begin, end)
        cached = self.cached[processor]
        for tensor in lists.reads[op]:
            cached[tensor] = min(cached.get(tensor, math.inf), begin)


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
    lines = _Lines(problem)
    for op in by_rank(problem, _rank(problem)):
        choices = []
        for processor in runnable(problem.lists.latency[op]):
            begin, end = lines.earliest(op, processor)
            choices.append((end, processor, begin))
        end, processor, begin = min(choices)
        if math.isinf(end):
            raise stuck(problem, op)
        lines.place(op, processor, begin, end)
    sequence = sorted(problem.lists.order, key=lambda op: lines.start[op])
    return Solution(simulate(problem, lines.home, sequence), "heft")
