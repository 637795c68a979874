"""A good schedule of a part to start HiGHS from: what it need not find, and what makes its big-Ms small."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner_api.planning.construct.finish import placed
from planner_api.planning.judge.simulator import Decoder
from planner_api.planning.problem import Problem


def ends(part: Sequence[int]) -> Callable[[Decoder], float]:
    """The function that says when the last op of the part finishes."""
    return lambda decoder: max(decoder.finish[op] for op in part)


def start(problem: Problem, fixed: Decoder, part: Sequence[int]) -> Decoder:
    """Append a part to a schedule: the best of two greedy orders.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    return min((greedy_order(problem, fixed, order) for order in _orders(problem, part)), key=ends(part))


def greedy_order(problem: Problem, fixed: Decoder, order: Sequence[int]) -> Decoder:
    """Append ops to a schedule, each where it finishes first.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    return placed(fixed.copy(), order, range(problem.host))


def _orders(problem: Problem, part: Sequence[int]) -> list[list[int]]:
    """Two topological orders of a part: as given, and by the longest way down within it."""
    lists, inside = problem.lists, set(part)
    down: dict[int, float] = {}
    for op in reversed(part):
        longest = max((down[later] for later in lists.after[op] if later in inside), default=0.0)
        down[op] = longest + min(lists.latency[op])
    place = {op: index for index, op in enumerate(part)}
    return [list(part), sorted(part, key=lambda op: (-down[op], place[op]))]
