"""The orchestrator: candidates, the method asked for, what to do when it fails, and how good the plan is."""

from __future__ import annotations

import logging
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from planner_api.planning.bound import lower_bound
from planner_api.planning.bound.trivial import trivial
from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import list_order
from planner_api.planning.construct.rounds import overlapped
from planner_api.planning.construct.single import singles
from planner_api.planning.hedge import hedge, uncertain
from planner_api.planning.judge.checker import check
from planner_api.planning.judge.simulator import Schedule, in_start_order, simulate
from planner_api.planning.methods import Bound, Method, Solution, UnknownMethod, features, method, solve
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.feasible import any_placement, prune
from planner_api.planning.warming import after_loading

BOUND_SHARE = 0.3
"""Part of the budget that the lower bound may take before a method other than ``auto`` starts."""
STARTS = ("single", "heft", "grain", "dmdar", "greedy", "mosaic")
"""What ``auto`` starts from the best of, quick ones first."""
AT_ONCE = 3
"""How many of them are made however little the budget is: without them a short one buys a single processor alone,"""
AT_ONCE_OF_MANY = 2
"""and how many above ``MANY_OPS``, where each may take seconds."""
FIRST_AID = ("greedy", "finish", "heft", "dmdar")
"""What is tried, in this order, when the method asked for fails."""
MANY_OPS = 1500
"""Above this many ops a method can take seconds: MOSAIC, quadratic on wide graphs, is left out,"""
MANY_CHOICES = 15_000
"""and above so many pairs of op and processor."""
WHOLE_SHARE = 0.6
"""Part of the budget for whole ops where they may also be cut."""
NOISE = 0.01
"""Relative gain below which ops stay whole: figures are hardly better than that, and parts are more to launch."""
PIECES_SHARE = 0.4
"""Part of what the starts left of the budget, after which pieces that are not proven yet are left to the search."""
CLOSED = 1e-5
"""Relative gap at which the search stops: a microsecond in a tenth of a second."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """The best plan found, the best bound proven, and what each processor could do alone (by processor index)."""

    solution: Solution
    bound: Bound
    singles: dict[int, Schedule]


def optimise(problem: Problem, name: str, budget: Budget) -> Outcome:
    """Find a schedule by a method and prove how good it is.

    Never worse than the best single processor. A method that fails falls back to the best plan in hand and the
    solution's notes say so. Every schedule returned has passed the checker.

    Raises:
        PlanningError: the method is unknown, or no legal plan was found.
    """
    chosen = method(name)
    problem = _cuttable(prune(problem), chosen)
    alone = singles(problem)
    bounds = []
    if chosen.entry != method("auto").entry and not chosen.at_once and budget.left() > 0:
        bounds.append(lower_bound(problem, budget.within(BOUND_SHARE * budget.seconds)))
    solution = _attempt(problem, name, budget, alone)
    for schedule in alone.values():
        if schedule.value_us < solution.schedule.value_us:
            check(problem, schedule)
            solution = replace(solution, schedule=schedule, method=_instead(name, "single"), cuts=(), cut=None)
    if solution.bound is not None:
        bounds.append(solution.bound)
    # Where ops may be cut the trivial bound takes a while as well: nobody's search pays for it.
    bound = max(bounds or [trivial(problem)], key=lambda one: one.us)
    return Outcome(solution, _clipped(bound, solution), alone)


def _cuttable(problem: Problem, chosen: Method) -> Problem:
    """The problem without its cutter where a method has no use for it: bounds on whole ops are better."""
    if problem.cutter is None or chosen.entry == method("codl").entry:
        return problem
    if chosen.entry == method("auto").entry and "jobs" not in features(problem):
        from planner_api.planning.split.choices import choices_of

        if choices_of(problem).axes:
            return problem
    return replace(problem, cutter=None)


def auto(problem: Problem, budget: Budget) -> Solution:
    """The best plan that the budget buys, with the best lower bound proven on the way.

    Where figures are predicted and there is time to search, the plan is hedged against their being too low.

    Raises:
        PlanningError: no method finds a legal plan.
    """
    if budget.left() <= 0 or budget.rounds == 0 or not uncertain(problem):
        return _believing(problem, budget)
    found = hedge(problem, budget, _believing)
    return replace(found, bound=_clipped(found.bound or trivial(problem), found))


def _believing(problem: Problem, budget: Budget) -> Solution:
    """The best plan for the figures as they stand.

    Whole ops first. Where cutting some is worth what it costs to work side by side, and the bound of plans with cuts
    leaves room for a gain beyond ``NOISE``, the rest of the budget goes to a search for cuts around that plan. Where
    they turn out to gain less, what is left goes to whole ops again.

    Raises:
        PlanningError: no method finds a legal plan.
    """
    if problem.cutter is None or budget.left() <= 0 or budget.rounds == 0:
        return _whole(problem, budget)
    budget = after_loading(after_loading(budget, "pieces"), "search")
    uncut = replace(problem, cutter=None)
    whole = _whole(uncut, budget.within(WHOLE_SHARE * min(budget.seconds, budget.left())))
    best, bound = whole, trivial(problem)
    enough = (1 - NOISE) * whole.schedule.value_us
    if bound.us < enough:
        budget = after_loading(budget, "cuts")
        from planner_api.planning.split.search import search_cuts

        found = search_cuts(problem, whole.schedule, budget, bound.us + CLOSED * bound.us, enough)
        if found is None or found.schedule.value_us > enough:
            best = _searched(uncut, whole, budget, whole.bound or bound)
        else:
            best = Solution(found.schedule, "cuts", cuts=tuple(found.cuts.values()), cut=found.problem)
    return replace(best, bound=_clipped(bound, best))


def _whole(problem: Problem, budget: Budget) -> Solution:
    """The best plan of whole ops.

    Starts, then the pieces between the ops that everything must pass, then annealing. The bound is found on a second
    thread while this one searches; both do the same work whatever the other does, so a budget of rounds gives the same
    answer every time.
    """
    best = start(problem, budget)
    bound = trivial(problem)
    if budget.left() <= 0 or budget.rounds == 0 or closed(best, bound):
        return replace(best, bound=_clipped(bound, best))
    # numba takes about a second to import: who plans without a budget should not wait for it.
    budget = after_loading(budget, "pieces")
    from planner_api.planning.exact.articulation import solve_pieces

    pieces = solve_pieces(problem, budget.within(PIECES_SHARE * min(budget.seconds, budget.left())))
    if pieces is not None:
        bound = max(bound, pieces.bound, key=lambda one: one.us)
        if pieces.schedule is not None and pieces.schedule.value_us < best.schedule.value_us:
            best = Solution(pieces.schedule, "articulation")
    if not closed(best, bound):
        budget = after_loading(budget, "search")
        with ThreadPoolExecutor(1) as pool:
            proof = pool.submit(lower_bound, problem, budget)
            best = _searched(problem, best, budget, bound)
            bound = max(bound, proof.result(), key=lambda one: one.us)
    return replace(best, bound=_clipped(bound, best))


def _searched(problem: Problem, best: Solution, budget: Budget, bound: Bound) -> Solution:
    """What annealing makes of a plan of whole ops until the budget ends or nothing is left to gain."""
    from planner_api.planning.search.search import Search

    search = Search(problem, best.schedule, budget.seed)
    search.run(budget, bound.us + CLOSED * abs(bound.us))
    if search.value_us >= best.schedule.value_us:
        return best
    return Solution(search.schedule(), "annealing", rounds=search.rounds)


def _clipped(bound: Bound, found: Solution) -> Bound:
    """Sums taken in another order may differ in the last bit: a bound is never above what was found."""
    return replace(bound, us=min(bound.us, found.schedule.value_us))


def start(problem: Problem, budget: Budget) -> Solution:
    """The best constructive plan: of all methods if there is time, else of those that answered before the deadline.

    Raises:
        PlanningError: no method finds a legal plan.
    """
    best: Solution | None = None
    causes = []
    many = len(problem.ops) > MANY_OPS
    wide = many or len(problem.ops) * problem.host > MANY_CHOICES
    for index, name in enumerate(STARTS):
        if best is not None:
            # Zero seconds buy the best of all methods where they are quick.
            at_once = AT_ONCE_OF_MANY if many else AT_ONCE
            late = budget.left() <= 0 and (budget.seconds > 0 or many) and index >= at_once
            if late or (wide and name == "mosaic"):
                break
        try:
            found = _settled(problem, overlapped(problem, solve(problem, name, budget)))
        except PlanningError as error:
            causes.append(f"{name}: {error}")
            continue
        if best is None or found.schedule.value_us < best.schedule.value_us:
            best = found
    if best is None or math.isinf(best.schedule.value_us):
        raise PlanningError(f"no legal plan was found ({'; '.join(causes)})")
    return best


def _settled(problem: Problem, found: Solution) -> Solution:
    """A solution as it is charged in the order of its starts."""
    return replace(found, schedule=in_start_order(found.cut or problem, found.schedule))


def closed(solution: Solution, bound: Bound) -> bool:
    """True when the bound leaves nothing worth searching for."""
    return solution.schedule.value_us <= bound.us + CLOSED * abs(bound.us)


def _attempt(problem: Problem, name: str, budget: Budget, alone: dict[int, Schedule]) -> Solution:
    try:
        solution = _settled(problem, overlapped(problem, solve(problem, name, budget)))
        check(solution.cut or problem, solution.schedule)
        return solution
    except (PlanningError, RuntimeError, MemoryError, OSError) as error:
        if isinstance(error, UnknownMethod):
            raise
        note = f"{name} failed ({error}); this is the best plan in hand"
    candidates = [Solution(plan, "single") for plan in alone.values()]
    for other in FIRST_AID:
        try:
            solution = solve(problem, other, Budget(0.0, budget.rounds, budget.seed))
            check(problem, solution.schedule)
            candidates.append(solution)
        except PlanningError:  # one that fails leaves the others; if all do, a complete search has the last word
            continue
    if not candidates:
        placement = any_placement(problem)
        candidates = [Solution(simulate(problem, placement, list_order(problem, placement)), "any")]
    best = min(candidates, key=lambda solution: solution.schedule.value_us)
    return replace(best, method=_instead(name, best.method), notes=(*best.notes, note))


def _instead(name: str, found: str) -> str:
    """What a plan's method reads where another one found it: the one asked for, then that other.

    ``auto`` takes the best of many by its nature.
    """
    return found if name in ("auto", found) else f"{name}→{found}"
