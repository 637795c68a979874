"""Lower bounds that are always valid, whatever the machine."""

from planner_api.planning.bound.trivial import trivial
from planner_api.planning.budget import Budget
from planner_api.planning.methods import Bound
from planner_api.planning.problem import Problem


def lower_bound(problem: Problem, budget: Budget) -> Bound:
    """The best bound that the budget allows."""
    bound = trivial(problem)
    if budget.left() > 0 and problem.cutter is None:
        from planner_api.planning.bound.interval import interval_load  # HiGHS takes a while to import

        better = interval_load(problem, budget)
        if better is not None and better.us > bound.us:
            bound = better
    return bound
