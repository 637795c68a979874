"""A good schedule of a part to start HiGHS from: what it need not find, and what makes its big-Ms small."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from planner_api.planning.construct.partial import Partial, runnable, stuck
from planner_api.planning.problem import Problem


def ends(part: Sequence[int]) -> Callable[[Partial], float]:
    """The function that says when the last op of the part finishes."""
    return lambda partial: max(partial.finish[op] for op in part)


def start(problem: Problem, fixed: Partial, part: Sequence[int]) -> Partial:
    """Append a part to a schedule: the best of two greedy orders.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    return min((greedy_order(problem, fixed, order) for order in _orders(problem, part)), key=ends(part))


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
