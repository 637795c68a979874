"""The whole of planning on plain data: candidates, method, fallback, bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner_api.planning.bound import lower_bound
from planner_api.planning.bound.trivial import trivial
from planner_api.planning.construct.listing import list_order
from planner_api.planning.construct.rounds import overlapped
from planner_api.planning.construct.single import singles
from planner_api.planning.judge.checker import check
from planner_api.planning.judge.simulator import Schedule, simulate
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.feasible import any_placement, prune
from planner_api.planning.solver import Bound, Budget, Solution, UnknownMethod, solve

BOUND_SHARE = 0.3
"""Part of the budget that the lower bound may take before the search starts."""
FIRST_AID = ("greedy", "heft", "dmdar")
"""What is tried, in this order, when the method asked for fails and no single processor runs the whole graph."""
PROVES_ITSELF = frozenset({"auto"})
"""Methods that bring a bound of their own (``Solution.bound``), found beside the search."""
QUICK = frozenset({"greedy", "heft", "dmdar", "single", "mosaic", "partitiontuner"})
"""Methods that answer at once, and so get the bound that costs nothing."""


@dataclass(frozen=True)
class Outcome:
    """The best plan found, the best bound proven, and what each processor could do alone (by processor index)."""

    solution: Solution
    bound: Bound
    singles: dict[int, Schedule]


def optimise(problem: Problem, method: str, budget: Budget) -> Outcome:
    """Find a schedule by a method and prove how good it is.

    Never worse than the best single processor. A method that fails falls back to the best plan in hand and the
    solution's notes say so. Every schedule returned has passed the checker.

    Raises:
        PlanningError: the method is unknown, or no legal plan was found.
    """
    problem = prune(problem)
    alone = singles(problem)
    bound = trivial(problem) if method in PROVES_ITSELF else _bound(problem, method, budget)
    solution = _attempt(problem, method, budget, alone)
    for schedule in alone.values():
        if schedule.makespan_us < solution.schedule.makespan_us:
            check(problem, schedule)
            solution = replace(solution, schedule=schedule, method=_instead(method, "single"))
    if solution.bound is not None and solution.bound.us > bound.us:
        bound = solution.bound
    makespan = solution.schedule.makespan_us
    return Outcome(solution, replace(bound, us=min(bound.us, makespan)), alone)


def _bound(problem: Problem, method: str, budget: Budget) -> Bound:
    if method in QUICK or budget.left() == 0:
        return trivial(problem)
    return lower_bound(problem, budget.within(BOUND_SHARE * budget.seconds))


def _attempt(problem: Problem, method: str, budget: Budget, alone: dict[int, Schedule]) -> Solution:
    try:
        solution = overlapped(problem, solve(problem, method, budget))
        check(problem, solution.schedule)
        return solution
    except (PlanningError, RuntimeError, MemoryError, OSError) as error:
        if isinstance(error, UnknownMethod):
            raise
        note = f"{method} failed ({error}); this is the best plan in hand"
    candidates = [Solution(plan, "single") for plan in alone.values()]
    for name in FIRST_AID:
        try:
            solution = solve(problem, name, Budget(0.0, budget.rounds, budget.seed))
            check(problem, solution.schedule)
            candidates.append(solution)
        except PlanningError:  # one that fails leaves the others; if all do, a complete search has the last word
            continue
    if not candidates:
        placement = any_placement(problem)
        candidates = [Solution(simulate(problem, placement, list_order(problem, placement)), "any")]
    best = min(candidates, key=lambda solution: solution.schedule.makespan_us)
    return replace(best, method=_instead(method, best.method), notes=(*best.notes, note))


def _instead(method: str, found: str) -> str:
    """What a plan's method reads where another one found it: the one asked for, then that other.

    ``auto`` takes the best of many by its nature.
    """
    return found if method in ("auto", found) else f"{method}→{found}"
