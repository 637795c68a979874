"""A problem in which ops are executed by further recipes, and what no choice of them is better than.

Like cuts, recipes are a rewriting: an op takes the latency and the share of the kernel by which it is executed, so that
the simulator, the checker and the kernels take the problem as any other.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from planner_api.planning.problem.problem import Problem, Recipe


def by_recipes(problem: Problem, chosen: Iterable[Recipe]) -> Problem:
    """The problem with some ops executed by these recipes, each where it is a recipe of; all others as they are."""
    chosen = list(chosen)
    if not chosen:
        return problem
    latency, share = problem.latency_us.copy(), problem.shares.copy()
    recipe = np.full(latency.shape, -1, dtype=np.int64) if problem.recipe is None else problem.recipe.copy()
    for one in chosen:
        at = one.op, one.processor
        latency[at], share[at], recipe[at] = one.us, one.share, one.number
    return replace(problem, latency_us=latency, share=share, recipe=recipe)


def of_own_choice(problem: Problem) -> Problem:
    """The problem with every op executed by its processor's own choice, whatever else there is."""
    earlier = None if problem.earlier is None else replace(problem.earlier, recipes=())
    return replace(problem, recipes=(), earlier=earlier)


def at_best(problem: Problem) -> Problem:
    """The problem with each op as fast as by its fastest recipe, and of as little work as by its smallest.

    No plan of the problem is better than the best one of this, whichever recipes its ops take, if what ops take beside
    their work, a launch or a move, is counted at ``least_shares``: the share here is that of the work alone.
    """
    if not problem.recipes:
        return problem
    latency, work = problem.latency_us.copy(), problem.latency_us * problem.shares
    for one in problem.recipes:
        at = one.op, one.processor
        if np.isinf(latency[at]):
            continue
        latency[at] = min(latency[at], one.us)
        work[at] = min(work[at], one.us * one.taken)
    known = np.isfinite(latency) & (latency > 0.0)
    share = np.divide(work, latency, out=problem.shares.copy(), where=known)
    return replace(problem, latency_us=latency, share=np.minimum(share, 1.0))
