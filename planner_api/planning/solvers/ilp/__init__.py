"""HOPE:LP: partition by upward rank (Algorithm 1), then an exact program per part (eqs 1-6), one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner_api.planning.listing import list_order
from planner_api.planning.partial import Partial, runnable
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.simulator import simulate
from planner_api.planning.solver import Budget, Solution
from planner_api.planning.solvers import greedy
from planner_api.planning.solvers.ilp.highs import SolverFailed, run
from planner_api.planning.solvers.ilp.model import Window
from planner_api.planning.solvers.ilp.partition import partition

PART_SECONDS = 0.9
"""Most seconds spent on one part."""
PART_NODES = 2000
"""Most branch-and-bound nodes spent on one part when rounds are counted instead of seconds."""
MIN_SECONDS = 0.01
"""Below this a part is left to the greedy order: HiGHS would not get through its presolve."""
GAP = 1e-4
"""Relative gap at which a part counts as solved."""
MOST_FLIPPED = 32
"""Wider parts, single levels that cannot be cut, start from the greedy orders alone."""
SLACK = 1e-6
"""Room above the greedy makespan for rounding."""


def solve(problem: Problem, budget: Budget) -> Solution:
    """Parts in order, each at its exact optimum given the parts before it; scored by the simulator.

    A part that runs out of time keeps the best that was found for it, at least the greedy one; the whole is then
    never worse than HOPE:GS.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    lists = problem.lists
    parts = partition(lists.order, lists.before)
    fixed = Partial(problem)
    unproven = 0
    for done, part in enumerate(parts):
        if budget.left() <= 0:
            unproven += 1
            _place(problem, fixed, part)
            continue
        seconds = min(PART_SECONDS, budget.left() / (len(parts) - done) * 2) if budget.timed else math.inf
        fixed, proven = solve_part(problem, fixed, part, seconds, None if budget.timed else PART_NODES)
        unproven += not proven
    orders = (fixed.sequence, list_order(problem, fixed.home))
    schedule = min((simulate(problem, fixed.home, order) for order in orders), key=lambda s: s.makespan_us)
    if not unproven:
        return Solution(schedule, "ilp")
    note = f"{unproven} of {len(parts)} parts stopped before their optimum was proven"
    in_hand = greedy.solve(problem, budget)
    if in_hand.schedule.makespan_us < schedule.makespan_us:
        return replace(in_hand, notes=(f"{note}; HOPE:GS was better",))
    return Solution(schedule, "ilp", (note,))


def solve_part(
    problem: Problem, fixed: Partial, part: Sequence[int], seconds: float = math.inf, nodes: int | None = None
) -> tuple[Partial, bool]:
    """Append a part to a schedule at its optimum.

    Args:
        problem: the problem.
        fixed: the schedule so far; left as it is.
        part: convex window in topological order.
        seconds: time limit.
        nodes: limit on branch-and-bound nodes.

    Returns:
        The longer schedule, and whether the part is proven optimal.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    first = _start(problem, fixed, part)
    limit = _ends(part)(first)
    if seconds < MIN_SECONDS:
        return first, False
    window = Window(problem, fixed, part, limit * (1 + SLACK) + SLACK)
    start = window.point(
        [first.home[op] for op in part], [first.start[op] for op in part], [first.finish[op] for op in part]
    )
    try:
        answer = run(window.program, seconds=seconds, nodes=nodes, start=start, gap=GAP)
    except SolverFailed:
        return first, False
    assignment, order = window.decode(answer.values)
    exact = fixed.copy()
    for i in order:
        exact.place(part[i], assignment[i])
    return (exact if _ends(part)(exact) <= limit else first), answer.optimal


def _start(problem: Problem, fixed: Partial, part: Sequence[int]) -> Partial:
    """A good schedule of a part to start from: two greedy orders, then single flips for as long as they help."""
    ends = _ends(part)
    best, order = min(
        ((_greedy(problem, fixed, order), order) for order in _orders(problem, part)), key=lambda pair: ends(pair[0])
    )
    improved = True
    while improved and len(part) <= MOST_FLIPPED:
        improved = False
        for flip in order:
            for processor in runnable(problem.lists.latency[flip]):
                if processor == best.home[flip]:
                    continue
                other = fixed.copy()
                for op in order:
                    other.place(op, processor if op == flip else best.home[op])
                if ends(other) < ends(best):
                    best, improved = other, True
    return best


def _ends(part: Sequence[int]) -> Callable[[Partial], float]:
    return lambda partial: max(partial.finish[op] for op in part)


def _orders(problem: Problem, part: Sequence[int]) -> list[list[int]]:
    """Two topological orders of a part: as given, and by the longest way down within it."""
    lists, inside = problem.lists, set(part)
    down: dict[int, float] = {}
    for op in reversed(part):
        longest = max((down[later] for later in lists.after[op] if later in inside), default=0.0)
        down[op] = longest + min(lists.latency[op])
    place = {op: index for index, op in enumerate(part)}
    return [list(part), sorted(part, key=lambda op: (-down[op], place[op]))]


def _greedy(problem: Problem, fixed: Partial, order: Sequence[int]) -> Partial:
    """Each op of the order where it finishes first."""
    partial = fixed.copy()
    _place(problem, partial, order)
    return partial


def _place(problem: Problem, partial: Partial, order: Sequence[int]) -> None:
    for op in order:
        end, processor = min((partial.interval(op, p)[1], p) for p in runnable(problem.lists.latency[op]))
        if math.isinf(end):
            raise PlanningError(f"op '{problem.ops[op]}' cannot get its inputs on any processor that supports it")
        partial.place(op, processor)
