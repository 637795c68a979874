"""Every op on one processor: the plans that no other plan may be worse than (design promise 1)."""

import math
from dataclasses import replace

from planner_api.planning.budget import Budget
from planner_api.planning.judge.simulator import Schedule, simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.symmetry import equal_processors


def singles(problem: Problem) -> dict[int, Schedule]:
    """The schedule of each processor that can run the whole graph alone, by processor."""
    alone: dict[int, Schedule] = {}
    for members in equal_processors(problem):
        plan = simulate(problem, [members[0]] * len(problem.ops), problem.lists.order)
        if plan.makespan_us < math.inf:
            alone |= {p: replace(plan, assignment=(p,) * len(problem.ops)) for p in members}
    return dict(sorted(alone.items()))


def solve(problem: Problem, budget: Budget) -> Solution:
    plans = singles(problem)
    if not plans:
        raise PlanningError("no processor runs every op of the graph alone")
    return Solution(min(plans.values(), key=lambda plan: plan.value_us), "single")
