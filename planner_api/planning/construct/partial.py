"""A schedule under construction: what the constructive methods (HEFT, DMDAR, greedy) grow op by op.

It sees the problem as `Lists` does: whole processors, transfers paid by their first reader on a processor.
"""

from __future__ import annotations

import math

from planner_api.planning.problem import PlanningError, Problem


class Partial:
    """Ops placed so far, at the end of each processor's line.

    Attributes:
        start, finish: [op] interval in microseconds; 0 while not placed.
        home: [op] processor, -1 while not placed.
        free: [processor] when it and its rivals are free.
        sequence: ops in the order of placement.
    """

    def __init__(self, problem: Problem) -> None:
        self.lists = problem.lists
        n, self.host = len(problem.ops), problem.host
        self.start = [0.0] * n
        self.finish = [0.0] * n
        self.home = [-1] * n
        self.free = [0.0] * self.host
        self.sequence: list[int] = []
        self._source = [self.host] * len(problem.tensors)
        self._there = [[False] * len(problem.tensors) for _ in range(self.host)]

    def copy(self) -> Partial:
        """An independent copy; the problem's lists are shared."""
        twin = object.__new__(Partial)
        twin.lists, twin.host = self.lists, self.host
        twin.start, twin.finish = self.start.copy(), self.finish.copy()
        twin.home, twin.free = self.home.copy(), self.free.copy()
        twin.sequence, twin._source = self.sequence.copy(), self._source.copy()
        twin._there = [row.copy() for row in self._there]
        return twin

    def ready(self, op: int) -> float:
        """When the last of its producers finishes."""
        finish = self.finish
        latest = 0.0
        for earlier in self.lists.before[op]:
            if finish[earlier] > latest:
                latest = finish[earlier]
        return latest

    def fetch(self, op: int, processor: int) -> float:
        """Sum of the transfers the op would pay for there, in microseconds."""
        there = self._there[processor]
        total = 0.0
        for tensor in self.lists.reads[op]:
            if not there[tensor]:
                total += self.lists.transfer[tensor][self._source[tensor]][processor]
        return total

    def missing(self, tensors: list[int], processor: int) -> list[tuple[int, float]]:
        """Those of the tensors that are not there yet, each with its transfer cost."""
        there, transfer, source = self._there[processor], self.lists.transfer, self._source
        return [(tensor, transfer[tensor][source[tensor]][processor]) for tensor in tensors if not there[tensor]]

    def is_there(self, tensor: int, processor: int) -> bool:
        """Whether the tensor was made or has been fetched there."""
        return self._there[processor][tensor]

    def source(self, tensor: int) -> int:
        """Where the tensor is fetched from: its producer's processor, or the host."""
        return self._source[tensor]

    def interval(self, op: int, processor: int) -> tuple[float, float]:
        """Start and finish if the op were placed there next; ``inf`` where it cannot run."""
        begin = max(self.free[processor], self.ready(op))
        return begin, begin + self.fetch(op, processor) + self.lists.latency[op][processor]

    def place(self, op: int, processor: int) -> None:
        """Append the op to the processor's line."""
        lists, there = self.lists, self._there[processor]
        begin, end = self.interval(op, processor)
        for tensor in lists.reads[op]:
            there[tensor] = True
        for rival in lists.rivals[processor]:
            if end > self.free[rival]:
                self.free[rival] = end
        for tensor in lists.writes[op]:
            self._source[tensor] = processor
            there[tensor] = True
        self.start[op], self.finish[op] = begin, end
        self.home[op] = processor
        self.sequence.append(op)


def stuck(problem: Problem, op: int) -> PlanningError:
    """The error for an op that ends nowhere."""
    return PlanningError(f"op '{problem.ops[op]}' cannot get its inputs on any processor that supports it")


def runnable(latency: list[float]) -> list[int]:
    """The processors that support an op, given its row of latencies."""
    return [processor for processor, us in enumerate(latency) if us < math.inf]
