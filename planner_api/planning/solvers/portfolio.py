"""Ours: start from the best of the literature, search on, and stop when the bound says that there is nothing left."""

from __future__ import annotations

import math

from planner_api.planning.bound.trivial import trivial
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.solver import Bound, Budget, Solution
from planner_api.planning.solver import solve as solve_by

STARTS = ("single", "dmdar", "heft", "greedy", "mosaic")
"""Constructive methods, quick ones first."""
CLOSED = 1e-9
"""Relative gap at which a plan counts as optimal."""


def solve(problem: Problem, budget: Budget) -> Solution:
    """The best plan that the budget buys; see `prove`."""
    return prove(problem, budget)[0]


def start(problem: Problem, budget: Budget) -> Solution:
    """The best constructive plan: all methods when there is time, the first that answers when there is none.

    Raises:
        PlanningError: no method finds a legal plan.
    """
    best: Solution | None = None
    causes = []
    for method in STARTS:
        if best is not None and budget.left() <= 0 and budget.seconds > 0:
            break
        try:
            found = solve_by(problem, method, budget)
        except PlanningError as error:
            causes.append(f"{method}: {error}")
            continue
        if found.schedule.makespan_us < (best.schedule.makespan_us if best else math.inf):
            best = found
    if best is None:
        raise PlanningError(f"no legal plan was found ({'; '.join(causes)})")
    return best


def prove(problem: Problem, budget: Budget) -> tuple[Solution, Bound]:
    """The best plan that the budget buys, and the best lower bound that was proven beside it."""
    from planner_api.planning.solvers.search import Search

    begun = start(problem, budget)
    bound = trivial(problem)
    search = Search(problem, begun.schedule, budget.seed)
    search.run(budget, bound.us * (1 + CLOSED))
    if search.makespan_us < begun.schedule.makespan_us:
        return Solution(search.schedule(), "annealing", rounds=search.rounds), bound
    return Solution(begun.schedule, begun.method, rounds=search.rounds), bound
