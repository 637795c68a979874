"""Plans that rest on predictions, hedged against processors that turn out slower than was predicted.

What predictions get wrong they get wrong together: all small ops on a GPU, all ops of a type known in other sizes only.
And a search that believes every figure seeks out those that are too low. So it also plans as if all but the best single
processor were slower by a standard deviation of every prediction. Of the two plans, and of that processor alone, it
takes the one that is best in the mean where figures hold, and where that processor, or all others, are slower by one
and by two standard deviations. (A plan made as if that processor were slower was never worth its time.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.construct.single import singles
from planner_api.planning.judge.simulator import Schedule, in_start_order, simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem
from planner_api.planning.problem.arrays import FloatArray
from planner_api.planning.problem.symmetry import equal_processors

SHARE = 0.5
"""Part of the budget for the plan that believes what is predicted; the other takes the rest."""
FAR = 2.0
"""Standard deviations of the worst cases."""
NOTE = "hedged: where predictions turn out too low it takes less than the plan that believes them all"


def uncertain(problem: Problem) -> bool:
    """Whether some latency is predicted."""
    return problem.predicted_spread is not None and bool(problem.predicted_spread.any())


def hedge(problem: Problem, budget: Budget, solve: Callable[[Problem, Budget], Solution]) -> Solution:
    """Plan by ``solve`` believing and cautiously, and take what is best in the mean of all cases.

    Where no single processor runs everything there is none to fall back on, and what is predicted is believed.

    Args:
        problem: with ``predicted_spread``.
        budget: for all of it; counted in rounds, each of the two plans takes them.
        solve: plans may have cut ops; the cautious one is of whole ops.

    Returns:
        A schedule timed by the figures as they are predicted, with the bound proven on them.
    """
    alone = singles(problem)
    if not alone:
        return solve(problem, budget)
    seconds = min(budget.seconds, budget.left())
    believing = solve(problem, budget.within(SHARE * seconds))
    best = min(alone, key=lambda p: alone[p].value_us)
    (first,) = (members for members in equal_processors(problem) if best in members)
    here = np.isin(np.arange(problem.latency_us.shape[1]), first)
    near, others = here.astype(float), (~here).astype(float)
    cases = (0 * near, near, others, FAR * near, FAR * others)
    whole = replace(problem, cutter=None)
    plans = [(mean_us(believing.cut or whole, believing.schedule, cases), believing)]
    cautious = solve(slower(whole, others), budget.within((1 - SHARE) * seconds))
    for other in (cautious, Solution(alone[best], "single")):
        taken = simulate(whole, other.schedule.assignment, other.schedule.sequence)
        timed = replace(other, schedule=in_start_order(whole, taken), bound=believing.bound, notes=(NOTE,))
        plans.append((mean_us(whole, timed.schedule, cases), timed))
    return min(plans, key=lambda one: one[0])[1]


def slower(problem: Problem, case: FloatArray) -> Problem:
    """The problem with every predicted latency ``case`` standard deviations longer, by processor."""
    assert problem.predicted_spread is not None
    return replace(problem, latency_us=problem.latency_us * np.exp(problem.predicted_spread * case))


def mean_us(problem: Problem, schedule: Schedule, cases: Sequence[FloatArray]) -> float:
    """What a schedule comes to in the mean over cases."""
    values = (simulate(slower(problem, case), schedule.assignment, schedule.sequence).value_us for case in cases)
    return float(np.mean(list(values)))
