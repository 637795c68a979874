"""Lower bounds that are always valid."""

from planner_api.planning.bound.trivial import trivial
from planner_api.planning.problem import Problem
from planner_api.planning.solver import Bound, Budget


def lower_bound(problem: Problem, budget: Budget) -> Bound:
    """The best bound that the budget allows."""
    return trivial(problem)
