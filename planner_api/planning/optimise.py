"""The orchestrator: the method asked for, what to do when it fails, and how good the plan is."""

import logging
import math
from dataclasses import dataclass, replace

import numpy as np

from planner_api.planning.auto import start
from planner_api.planning.bound import lower_bound, quick_bound
from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import listed
from planner_api.planning.construct.single import singles
from planner_api.planning.judge.checker import check
from planner_api.planning.methods import Bound, Solution, UnknownMethod, method, solve
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.feasible import any_placement, prune
from planner_api.planning.search.replays import judged, settled

_log = logging.getLogger(__name__)

BOUND_SHARE = 0.3
"""Part of the budget that the lower bound may take before a method that proves nothing itself starts."""
ROUNDING = 1e-9
"""By how much of what is added up sums in another order may differ."""


@dataclass(frozen=True)
class Outcome:
    """The best plan found, the best bound proven, and the plan of each processor alone (by processor index)."""

    solution: Solution
    bound: Bound
    singles: dict[int, Solution]


def optimise(problem: Problem, name: str, budget: Budget) -> Outcome:
    """Find a schedule by a method and prove how good it is.

    Never worse than the best single processor. A method that fails falls back to the best plan in hand and the
    solution's notes say so. Every schedule returned has passed the checker.

    Raises:
        PlanningError: the method is unknown, or no legal plan was found.
    """
    chosen = method(name)
    problem = prune(problem)
    if not chosen.cuts:
        problem = problem.whole  # bounds on whole ops are better
    bounds = []
    if not chosen.proves and not chosen.at_once and budget.left() > 0:
        bounds.append(lower_bound(problem, budget.part(BOUND_SHARE)))
    alone = _alone(problem)
    try:
        solution = settled(problem, solve(problem, name, budget))
        check(solution.cut or problem, solution.schedule)
    except UnknownMethod:
        raise
    except (PlanningError, RuntimeError, MemoryError, OSError) as error:
        solution = _first_aid(problem, name, budget, str(error))
    best = min(alone.values(), key=lambda one: one.value_us, default=solution)
    if best.value_us < solution.value_us:
        check(problem, best.schedule)
        found = replace(best, notes=solution.notes, rounds=solution.rounds, bound=solution.bound)
        solution = replace(found, method=_instead(name, "single"))
    if solution.bound is not None:
        bounds.append(solution.bound)
    # Where ops may be cut the quick bound takes a while as well: nobody's search pays for it.
    bound = max(bounds or [quick_bound(problem)], key=lambda one: one.us)
    return Outcome(*_bounded(problem, solution, bound), alone)


def _bounded(problem: Problem, solution: Solution, bound: Bound) -> tuple[Solution, Bound]:
    """The solution, and a bound that is not above it.

    Sums taken in another order differ in their last bits. A bound above the plan by more than that is wrong, and proves
    nothing: the plan says so.
    """
    value_us = solution.value_us
    us = np.array([value_us, bound.us, *problem.weight * problem.due_us, *problem.weight * solution.makespan_us])
    if bound.us <= value_us + ROUNDING * np.abs(us).max():
        return solution, replace(bound, us=min(bound.us, value_us))
    note = f"the bound '{bound.method}' is wrong: it is {bound.us:.9g} us, and the plan takes {value_us:.9g} us"
    _log.error(note)
    return replace(solution, notes=(*solution.notes, note)), Bound(-math.inf, bound.method)


def _alone(problem: Problem) -> dict[int, Solution]:
    """What `singles` finds, by processor; what is equal is judged once."""
    found: dict[int, Solution] = {}
    for members, plan in singles(problem):
        one = judged(problem, Solution(plan, "single"))
        for p in members:
            found[p] = replace(one, schedule=replace(plan, assignment=(p,) * len(problem.ops)))
    return dict(sorted(found.items()))


def _first_aid(problem: Problem, name: str, budget: Budget, cause: str) -> Solution:
    """The best plan in hand where a method failed; if constructive methods fail as well a search has the last word."""
    try:
        best = start(problem, Budget(0.0, budget.rounds, budget.seed))
    except PlanningError:
        placement = any_placement(problem)
        best = judged(problem, Solution(listed(problem, placement), "any"))
    check(problem, best.schedule)
    note = f"{name} failed ({cause}); this is the best plan in hand"
    return replace(best, method=_instead(name, best.method), notes=(*best.notes, note))


def _instead(name: str, found: str) -> str:
    """What a plan's method reads where another one found it: the one asked for, then that other.

    ``auto`` takes the best of many by its nature.
    """
    return found if name in ("auto", found) else f"{name}→{found}"
