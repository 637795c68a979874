"""A good schedule of a part to start HiGHS from: what it need not find, and what makes its big-Ms small."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from planner_api.planning.construct.partial import Partial, runnable, stuck
from planner_api.planning.problem import Problem

Value = TypeVar("Value")
Past = tuple[int, int, "Past | None"]
"""The op placed last, by position in the part, its processor, and what came before."""

WIDTH = 16
"""Partial schedules kept per op."""
MOST_OPS = 16
"""Larger parts, single levels that cannot be cut, start from the greedy orders alone."""


def ends(part: Sequence[int]) -> Callable[[Partial], float]:
    """The function that says when the last op of the part finishes."""
    return lambda partial: max(partial.finish[op] for op in part)


def start(problem: Problem, fixed: Partial, part: Sequence[int]) -> Partial:
    """Append a part to a schedule: the best of two greedy orders and of a beam search.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    end = ends(part)
    best = min((greedy_order(problem, fixed, order) for order in _orders(problem, part)), key=end)
    if len(part) > MOST_OPS:
        return best
    found = _Beam(problem, fixed, part).search(end(best))
    return best if found is None else min(best, found, key=end)


def greedy_order(problem: Problem, fixed: Partial, order: Sequence[int]) -> Partial:
    """Append ops to a schedule, each where it finishes first.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    partial = fixed.copy()
    for op in order:
        end, processor = min((partial.interval(op, p)[1], p) for p in runnable(problem.lists.latency[op]))
        if math.isinf(end):
            raise stuck(problem, op)
        partial.place(op, processor)
    return partial


def _orders(problem: Problem, part: Sequence[int]) -> list[list[int]]:
    """Two topological orders of a part: as given, and by the longest way down within it."""
    lists, inside = problem.lists, set(part)
    down: dict[int, float] = {}
    for op in reversed(part):
        longest = max((down[later] for later in lists.after[op] if later in inside), default=0.0)
        down[op] = longest + min(lists.latency[op])
    place = {op: index for index, op in enumerate(part)}
    return [list(part), sorted(part, key=lambda op: (-down[op], place[op]))]


class _State(NamedTuple):
    """Some ops of a part placed.

    Attributes:
        rank: no completion ends before it.
        done: bit set of the ops placed.
        free: [processor].
        finish: [op].
        there: [tensor] bit set of the processors that hold it.
        source: [tensor] place that it is fetched from.
        latest: start of the op placed last; ops are placed by start time.
        peak: the longest way to the end through any op placed.
        left: work of the others, each at its fastest.
        past: how it came to be; None while nothing is placed.
    """

    rank: float
    done: int
    free: tuple[float, ...]
    finish: tuple[float, ...]
    there: tuple[int, ...]
    source: tuple[int, ...]
    latest: float
    peak: float
    left: float
    past: Past | None


class _Beam:
    """Partial schedules of a part, op by op, of which the most promising survive."""

    def __init__(self, problem: Problem, fixed: Partial, part: Sequence[int]) -> None:
        lists = problem.lists
        self.fixed, self.part = fixed, part
        self.rivals = lists.rivals
        index = {op: i for i, op in enumerate(part)}
        self.latency = [lists.latency[op] for op in part]
        self.before = [[index[e] for e in lists.before[op] if e in index] for op in part]
        self.needs = [sum(1 << k for k in before) for before in self.before]
        self.release = [max((fixed.finish[e] for e in lists.before[op] if e not in index), default=0.0) for op in part]
        self.fastest = [min(row) for row in self.latency]
        self.tail = [0.0] * len(part)
        for i in reversed(range(len(part))):
            for k in self.before[i]:
                self.tail[k] = max(self.tail[k], self.fastest[i] + self.tail[i])
        tensors = {tensor: k for k, tensor in enumerate(dict.fromkeys(t for op in part for t in lists.reads[op]))}
        self.reads = [[tensors[t] for t in lists.reads[op]] for op in part]
        self.writes = [[tensors[t] for t in lists.writes[op] if t in tensors] for op in part]
        self.cost = [lists.transfer[tensor] for tensor in tensors]
        places = range(problem.host)
        self.there = tuple(sum(1 << p for p in places if fixed.is_there(tensor, p)) for tensor in tensors)
        self.source = tuple(fixed.source(tensor) for tensor in tensors)

    def search(self, limit: float) -> Partial | None:
        """The best schedule met that ends before ``limit``; None when there is none."""
        nothing = (0.0,) * len(self.part)
        work = sum(self.fastest)
        states = [_State(0.0, 0, tuple(self.fixed.free), nothing, self.there, self.source, 0.0, 0.0, work, None)]
        for _ in self.part:
            fresh: dict[object, _State] = {}
            for state in states:
                for child in self._children(state, limit):
                    same = child.done, child.free, child.there, child.source
                    if same not in fresh or child.rank < fresh[same].rank:
                        fresh[same] = child
            states = sorted(fresh.values(), key=lambda state: (state.rank, sum(state.free)))[:WIDTH]
        if not states:
            return None
        steps: list[tuple[int, int]] = []
        past = states[0].past
        while past is not None:
            i, processor, past = past
            steps.append((i, processor))
        found = self.fixed.copy()
        for i, processor in reversed(steps):
            found.place(self.part[i], processor)
        return found

    def _children(self, state: _State, limit: float) -> list[_State]:
        """Every op that may start next on every processor, where that may still end before ``limit``."""
        _, done, free, finish, there, source, latest, peak, left, past = state
        host = len(free)
        children = []
        for i, latency in enumerate(self.latency):
            if done >> i & 1 or self.needs[i] & ~done:
                continue
            ready = max([self.release[i], latest, *[finish[k] for k in self.before[i]]])
            for p in range(host):
                begin = free[p]
                if begin < ready:
                    begin = ready
                now = begin + latency[p]
                held, origin = there, source
                for t in self.reads[i]:
                    if not held[t] >> p & 1:
                        now += self.cost[t][origin[t]][p]
                        held = _put(held, t, held[t] | 1 << p)
                top = max(peak, now + self.tail[i])
                if top >= limit:
                    continue
                for t in self.writes[i]:
                    held = _put(held, t, 1 << p)
                    origin = _put(origin, t, p)
                after = list(free)
                for rival in self.rivals[p]:
                    after[rival] = max(after[rival], now)
                rest = left - self.fastest[i]
                rank = max(top, (sum([begin if us < begin else us for us in after]) + rest) / host)
                if rank < limit:
                    ended = _put(finish, i, now)
                    children.append(
                        _State(rank, done | 1 << i, tuple(after), ended, held, origin, begin, top, rest, (i, p, past))
                    )
        return children


def _put(values: tuple[Value, ...], index: int, value: Value) -> tuple[Value, ...]:
    """The values with one of them replaced."""
    return (*values[:index], value, *values[index + 1 :])
