"""Ours, from top to bottom: a start, then pieces, search and cuts, each of which ends early where plan and bound meet.

1. *Start* from the best of the constructive methods.
2. *Pieces*: exact plans between the ops that everything must pass, which may prove the whole.
3. *Search*: annealing of whole ops, with the *bound* on a second thread, where ops cannot be cut: it holds for whole
   ops only. Both do the same work whatever the other does, so a budget of rounds gives the same answer every time.
4. *Cuts*: where the bound of plans with cuts leaves room for a gain beyond ``NOISE``, the rest of the budget goes to a
   search for cuts around that plan; where they turn out to gain less, what is left goes to whole ops again.

Where figures are predicted all of it is done twice, hedged against their being too low (`hedge`).
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

from planner_api.planning.bound import lower_bound, quick_bound
from planner_api.planning.budget import Budget
from planner_api.planning.construct.vsm import tiled
from planner_api.planning.exact.articulation import solve_pieces
from planner_api.planning.hedge import hedge, uncertain
from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.methods import Bound, Solution, features
from planner_api.planning.methods import solve as solve_named
from planner_api.planning.native import NotBuilt, library
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.choices import NOISE
from planner_api.planning.search.cuts import search_cuts
from planner_api.planning.search.replays import settled
from planner_api.planning.search.search import Search

STARTS = ("single", "grain", "heft", "dmdar", "greedy", "mosaic")
"""What it starts from the best of, quick ones first;"""
EARLIER = "planner_api.planning.again:solve"
"""before all, where there is one, an earlier plan of the same, which has its cuts where ops may be cut;"""
OF_JOBS = ("earliest_deadline", "least_slack")
"""before those where there are jobs,"""
OF_HOSTS = ("one_host", "neurosurgeon", "dads", "hpa")
"""and before all of them where there are several hosts."""
AT_ONCE = 3
"""How many of them are made however little the budget is: without them a short one buys a single processor alone,"""
AT_ONCE_OF_MANY = 2
"""and how many above ``MANY_OPS``, where each may take seconds."""
MANY_OPS = 1500
"""Above this many ops a method can take seconds: MOSAIC, quadratic on wide graphs, is left out,"""
MANY_CHOICES = 15_000
"""and above so many pairs of op and processor."""
WHOLE_SHARE = 0.6
"""Part of the budget for whole ops where they may also be cut."""
PIECES_SHARE = 0.4
"""Part of what the starts left of the budget, after which pieces that are not proven yet are left to the search."""
CLOSED = 1e-5
"""Relative gap at which the search stops: a microsecond in a tenth of a second."""


def solve(problem: Problem, budget: Budget) -> Solution:
    """The best plan that the budget buys, and the best lower bound that was proven on the way, if one was."""
    problem = problem if problem.choices.possible else problem.whole
    if budget.left() <= 0 or budget.rounds == 0:
        return replace(start(problem, budget), bound=quick_bound(problem))
    try:
        library()
    except NotBuilt as error:
        found = start(problem, budget)
        return replace(found, notes=(*found.notes, str(error)), bound=quick_bound(problem))
    return hedge(problem, budget, planned) if uncertain(problem) else planned(problem, budget)


def planned(problem: Problem, budget: Budget) -> Solution:
    """The best plan for the figures as they stand."""
    uncut, cuttable = problem.whole, problem.cuttable
    share = budget.part(WHOLE_SHARE) if cuttable else budget

    best, bound = start(uncut, share), quick_bound(uncut)
    if best.value_us > met_at(bound):
        best, bound = with_pieces(uncut, best, bound, share)
    if best.value_us > met_at(bound):
        with ThreadPoolExecutor(1) as pool:
            proof = None if problem.cutter.nodes else pool.submit(lower_bound, uncut, share)
            best = searched(uncut, best, share, bound)
            bound = max(bound, proof.result(), key=lambda one: one.us) if proof else bound
    if not problem.cutter.nodes:
        return replace(best, bound=bound)

    floor, enough_us = quick_bound(problem), best.value_us - NOISE * best.makespan_us
    if cuttable and floor.us < enough_us:
        others = partial(_with_cuts, problem, best.schedule, budget)
        found = search_cuts(problem, best.schedule, budget, met_at(floor), enough_us, others)
        best = found if found and found.value_us < best.value_us else searched(uncut, best, budget, bound)
    return replace(best, bound=floor)


def _with_cuts(problem: Problem, whole: Schedule, budget: Budget) -> Iterator[Solution]:
    """Plans that a search op by op would not find: tiles between hosts, and an earlier plan that has cuts."""
    if (tiles := tiled(problem, whole, budget)) is not None:
        yield tiles
    if problem.earlier is not None and problem.earlier.cuts:
        with suppress(PlanningError):
            yield solve_named(problem, EARLIER, budget)


def start(problem: Problem, budget: Budget) -> Solution:
    """The best constructive plan: of all methods if there is time, else of those that answered before the deadline."""
    best: Solution | None = None
    causes = []
    many = len(problem.ops) > MANY_OPS
    wide = many or len(problem.ops) * problem.host > MANY_CHOICES
    starts = (*OF_JOBS, *STARTS) if "jobs" in features(problem) else STARTS
    starts = (*OF_HOSTS, *starts) if problem.machine.owner is not None else starts
    starts = (EARLIER, *starts) if problem.earlier is not None else starts
    for index, name in enumerate(starts):
        if best is not None:
            # Zero seconds buy the best of all methods where they are quick.
            at_once = AT_ONCE_OF_MANY if many else AT_ONCE
            late = budget.left() <= 0 and (budget.seconds > 0 or many) and index >= at_once + len(starts) - len(STARTS)
            if late or (wide and name == "mosaic"):
                break
        try:
            found = settled(problem, solve_named(problem, name, budget))
        except PlanningError as error:
            causes.append(f"{name}: {error}")
            continue
        if best is None or found.value_us < best.value_us:
            best = found
    if best is None or math.isinf(best.value_us):
        raise PlanningError(f"no legal plan was found ({'; '.join(causes)})")
    return best


def with_pieces(problem: Problem, best: Solution, bound: Bound, budget: Budget) -> tuple[Solution, Bound]:
    """The better of a plan and what exact pieces make, and the better bound."""
    pieces = solve_pieces(problem, budget.part(PIECES_SHARE))
    if pieces is None:
        return best, bound
    if pieces.schedule is not None:
        best = min(best, settled(problem, Solution(pieces.schedule, "articulation")), key=lambda one: one.value_us)
    return best, max(bound, pieces.bound, key=lambda one: one.us)


def searched(problem: Problem, best: Solution, budget: Budget, bound: Bound) -> Solution:
    """What annealing makes of a plan of whole ops until the budget ends or nothing is left to gain."""
    search = Search(best.cut or problem, best.schedule, budget.seed)
    begun_us = search.value_us
    search.run(budget, met_at(bound))
    if search.value_us >= begun_us:
        return best
    found = settled(problem, search.found("annealing"))
    return min(best, found, key=lambda one: one.value_us)


def met_at(bound: Bound) -> float:
    """The value at which a bound leaves nothing worth searching for."""
    return bound.us + CLOSED * abs(bound.us)
