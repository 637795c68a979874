"""Plans with cuts: placement, order and cuts annealed together, then what they make, as any problem is searched."""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from hope_schema import Cut
from hope_schema.cutting import CutError
from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import realised
from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.judge.ways import AXIS, HOME, PARTS, TENTH
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem
from planner_api.planning.search.replays import settled
from planner_api.planning.search.search import PATIENCE, Search

JOINT_SHARE = 0.65
"""Part of the budget for choosing cuts; the rest anneals what they make."""
TRIAL_SHARE = 0.25
"""Part of that, by the end of which cuts must have half of what would be enough: where they gain, they gain at once."""
TRIAL_PATIENCE = 5
"""Rounds without a gain, for each op, after which a trial ends before that."""
LANES = 2
"""Searches side by side, where ops can be shared at all."""


def search_cuts(
    problem: Problem,
    whole: Schedule,
    budget: Budget,
    target_us: float,
    enough_us: float = math.inf,
    others: Callable[[], Iterable[Solution]] = tuple,
) -> Solution | None:
    """The best plan with cuts that the budget buys; None, before the budget ends, where cuts gain too little.

    Searches with several seeds run side by side: where they end differs by more than what one finds in twice the time.

    Args:
        problem: with its cutter.
        whole: the plan to begin with.
        budget: its rounds count for each part of each search.
        target_us: no plan is shorter.
        enough_us: what cuts must come to, or better, to be worth going on with.
        others: makes further plans with cuts, beside the searches; what it makes is searched as well.
    """
    lanes = range(LANES) if problem.choices.axes else ()
    searches = [Search(problem, whole, LANES * budget.seed + lane) for lane in lanes]
    with ThreadPoolExecutor(LANES + 2) as pool:
        running = [pool.submit(_lane, search, budget, target_us, enough_us) for search in searches]
        running += [pool.submit(_polished, one, budget, target_us, enough_us) for one in others()]
        found = [plan for one in running if (plan := one.result())]
    return min(found, key=lambda plan: plan.value_us, default=None)


def _lane(search: Search, budget: Budget, target_us: float, enough_us: float) -> Solution | None:
    """What one search finds; None where nobody shares an op, that is too little, or its cuts cannot be made."""
    joint = budget.part(JOINT_SHARE)
    if not _gains(search, joint, target_us, enough_us) or (search.state.mode[:, 0, PARTS] == 1).all():
        return None
    try:
        found = found_by(search)
    except CutError:
        return None
    return _polished(found, budget, target_us, enough_us)


def _polished(found: Solution, budget: Budget, target_us: float, enough_us: float) -> Solution | None:
    """A plan with cuts, what they make annealed as whole ops are; None where that gains too little."""
    assert found.cut is not None
    polish = Search(found.cut, found.schedule, budget.seed)
    if not _gains(polish, budget, target_us, enough_us):
        return None
    polished = replace(found, schedule=polish.found("cuts").schedule)
    return min((settled(found.cut, one) for one in (found, polished)), key=lambda one: one.value_us)


def _gains(search: Search, budget: Budget, target_us: float, enough_us: float) -> bool:
    """Whether a search comes to what is enough. It ends early where its trial has not come halfway."""
    halfway = (max(search.value_us, enough_us) + enough_us) / 2
    for part, patience, least in ((budget.part(TRIAL_SHARE), TRIAL_PATIENCE, halfway), (budget, PATIENCE, enough_us)):
        search.run(part, target_us, patience)
        if search.value_us > least:
            return False
    return True


def found_by(search: Search) -> Solution:
    """What a search found, as a problem of its own. Raises CutError for a cut that cannot be made."""
    problem, state, choices = search.problem, search.state, search.problem.choices
    cuts: dict[str, Cut] = {}
    homes, begins = {}, {}
    for name, op in choices.index.items():
        mode = state.mode[op, : state.mode[op, 0, PARTS]]
        homes[name] = tuple(mode[:, HOME].tolist())
        begins[name] = tuple((state.finish - state.spent).reshape(len(state.mode), -1)[op, : len(mode)].tolist())
        if len(mode) > 1:
            axis = choices.axes[name][int(mode[0, AXIS])]
            at = np.array(choices.tenths(name, axis))[mode[1:, TENTH]]
            chained = search.kernels.holds_on(op)
            cuts[name] = Cut(op=name, axes=(axis,), at=(tuple(at.tolist()),), chained=chained)
    return realised(problem, cuts, homes, begins, "cuts")
