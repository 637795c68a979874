"""Lower bounds that are always valid, whatever the machine."""

import logging

from planner_api.planning.bound.trivial import trivial
from planner_api.planning.budget import Budget
from planner_api.planning.methods import Bound
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.recipes import at_best

_log = logging.getLogger(__name__)


def quick_bound(problem: Problem) -> Bound:
    """The bound that costs next to nothing; where ops may be cut, the one that holds there."""
    if not problem.cutter.nodes:
        return trivial(at_best(problem))
    from planner_api.planning.bound.fluid import fluid  # HiGHS takes a while to import

    bound = fluid(problem)
    if problem.recipes:  # where nothing is cut a plan may be of these
        bound = min(bound, trivial(at_best(problem)), key=lambda one: one.us)
    return bound


def lower_bound(problem: Problem, budget: Budget) -> Bound:
    """The best bound that the budget allows. A solver that fails leaves the quick one: nobody loses a plan by it."""
    bound = quick_bound(problem)
    if budget.left() > 0 and not problem.cutter.nodes:
        from planner_api.planning.bound.interval import interval_load

        try:
            better = interval_load(at_best(problem), budget)
        except (PlanningError, RuntimeError, MemoryError) as error:
            _log.warning("the bound is the %s, because the solver failed: %s", bound.method, error)
            return bound
        if better is not None and better.us > bound.us:
            bound = better
    return bound
