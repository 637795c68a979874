"""Plans that rest on predictions, hedged against processors that turn out slower than was predicted.

What predictions get wrong they get wrong together: all small ops on a GPU, all ops of a type known in other sizes only.
And a search that believes every figure seeks out those that are too low. So what a plan that believes them loses is
bounded: even where all processors but the best single one are slower by two standard deviations of every prediction, it
takes little longer than that one alone. Where it would, a plan takes its place that was made as if they were slower by
one; where that would too, the one processor alone.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.construct.single import singles
from planner_api.planning.judge.simulator import in_start_order, simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem
from planner_api.planning.problem.recipes import of_own_choice
from planner_api.planning.search.replays import judged

SHARE = 0.7
"""Part of the budget for the plan that believes what is predicted; another, if it comes to that, takes the rest."""
FAR = 2.0
"""Standard deviations of the worst case."""
MOST = 0.2
"""By so much of what the best single processor takes a plan may be worse than that there."""
NOTE = "hedged: where predictions turn out too low it takes less than the plan that believes them all"


def uncertain(problem: Problem) -> bool:
    """Whether some latency is predicted."""
    return problem.predicted_spread is not None and bool(problem.predicted_spread.any())


def hedge(problem: Problem, budget: Budget, solve: Callable[[Problem, Budget], Solution]) -> Solution:
    """Plan by ``solve``, and bound what is lost where predictions are too low.

    Where no single processor runs everything there is none to fall back on, and what is predicted is believed.

    Args:
        problem: with ``predicted_spread``.
        budget: for all of it; counted in rounds, each of the two plans takes them.
        solve: plans may have cut ops; the cautious one is of whole ops, by their processors' own choice.

    Returns:
        A schedule timed by the figures as they are predicted, with the bound proven on them.
    """
    alone = singles(problem)
    if not alone:
        return solve(problem, budget)
    members, best = min(alone, key=lambda one: one[1].value_us)
    others = np.array([p not in members for p in range(problem.host)])
    most = best.value_us + MOST * best.makespan_us

    def bounded(found: Solution) -> bool:
        worst = slower(found.cut or problem, FAR * others)
        return simulate(worst, found.schedule.assignment, found.schedule.sequence).value_us <= most

    believing = solve(problem, budget.part(SHARE))
    if bounded(believing):
        return believing
    whole = of_own_choice(problem.whole)
    cautious = solve(slower(whole, others), budget)
    chosen = cautious if bounded(cautious) else Solution(best, "single")
    taken = simulate(whole, chosen.schedule.assignment, chosen.schedule.sequence)
    found = replace(chosen, schedule=in_start_order(whole, taken), bound=believing.bound, notes=(NOTE,))
    return judged(whole, found)  # for the cautious one was judged by its own figures


def slower(problem: Problem, deviations: np.ndarray) -> Problem:
    """The problem with every predicted latency so many standard deviations longer, by processor."""
    assert problem.predicted_spread is not None
    return replace(problem, latency_us=problem.latency_us * np.exp(problem.predicted_spread * deviations))
