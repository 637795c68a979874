"""Ours: start from the best of the literature, search on, and stop when the bound says that there is nothing left."""

from __future__ import annotations

import functools
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

import numpy as np

from planner_api.planning.bound import lower_bound
from planner_api.planning.bound.trivial import trivial
from planner_api.planning.construct.rounds import overlapped
from planner_api.planning.construct.single import singles
from planner_api.planning.problem import PlanningError, Problem, TransferMode
from planner_api.planning.solver import Bound, Budget, Solution
from planner_api.planning.solver import solve as solve_by

Stage = Literal["articulation", "search"]
"""What comes with kernels of its own."""

STARTS = ("single", "heft", "dmdar", "greedy", "mosaic")
"""Constructive methods, quick ones first."""
MANY_OPS = 1500
"""Above this many ops a method can take seconds: MOSAIC, quadratic on wide graphs, is left out."""
PIECES_SHARE = 0.4
"""Part of what the starts left of the budget, after which pieces that are not proven yet are left to the search."""
CLOSED = 1e-5
"""Relative gap at which the search stops: a microsecond in a tenth of a second."""


def solve(problem: Problem, budget: Budget) -> Solution:
    """The best plan that the budget buys, with the best lower bound proven on the way.

    The bound is found on a second thread while this one searches; both do the same work whatever the other does, so
    a budget of rounds gives the same answer every time.

    Raises:
        PlanningError: no method finds a legal plan.
    """
    best = start(problem, budget)
    bound = trivial(problem)
    if budget.left() <= 0 or budget.rounds == 0:
        return replace(best, bound=bound)
    # numba takes about a second to import: who plans without a budget should not wait for it.
    budget = _after_loading(budget, "articulation", problem.mode)
    from planner_api.planning.exact.articulation import solve_pieces

    pieces = solve_pieces(problem, budget.within(PIECES_SHARE * min(budget.seconds, budget.left())))
    if pieces is not None:
        bound = max(bound, pieces.bound, key=lambda one: one.us)
        if pieces.schedule is not None and pieces.schedule.makespan_us < best.schedule.makespan_us:
            best = Solution(pieces.schedule, "articulation")
    if not closed(best, bound):
        budget = _after_loading(budget, "search", problem.mode)
        from planner_api.planning.search.search import Search

        with ThreadPoolExecutor(1) as pool:
            proof = pool.submit(lower_bound, problem, budget)
            search = Search(problem, best.schedule, budget.seed)
            search.run(budget, bound.us * (1 + CLOSED))
            bound = max(bound, proof.result(), key=lambda one: one.us)
        if search.makespan_us < best.schedule.makespan_us:
            best = Solution(search.schedule(), "annealing", rounds=search.rounds)
    # Sums taken in another order may differ in the last bit: a bound is never above a makespan.
    return replace(best, bound=Bound(min(bound.us, best.schedule.makespan_us), bound.method))


def warm(mode: TransferMode) -> None:
    """Load or compile every kernel that a plan may need, about half a minute where nothing is compiled yet."""
    _load("articulation", mode)
    _load("search", mode)


def _after_loading(budget: Budget, stage: Stage, mode: TransferMode) -> Budget:
    """The budget once a stage's kernels are loaded, or compiled: the first use in a process is not charged for it."""
    began = time.monotonic()
    _load(stage, mode)
    return budget.postponed(time.monotonic() - began)


@functools.cache
def _load(stage: Stage, mode: TransferMode) -> None:
    """Put a problem of three ops through a stage, so that whatever it compiles is there."""
    tiny = Problem(
        ops=("a", "b", "c"),
        processors=("p", "q"),
        latency_us=np.array([[3.0, 1.0], [1.0, 2.0], [2.0, 3.0]]),
        conflicts=np.eye(2, dtype=np.bool_),
        producer=np.array([-1, 0, 1, 2]),
        reads=((0,), (1,), (1, 2)),
        is_output=np.array([False, False, False, True]),
        transfer_us=np.ones((4, 3, 3)) - np.eye(3),
        mode=mode,
        tensors=("x", "a", "b", "c"),
    )
    if stage == "articulation":
        from planner_api.planning.exact.articulation import solve_pieces

        solve_pieces(tiny, Budget(rounds=1))
    else:
        from planner_api.planning.search.search import Search

        Search(tiny, singles(tiny)[0], seed=0).round(moves=1)


def closed(solution: Solution, bound: Bound) -> bool:
    """True when the bound leaves nothing worth searching for."""
    return solution.schedule.makespan_us <= bound.us * (1 + CLOSED)


def start(problem: Problem, budget: Budget) -> Solution:
    """The best constructive plan: of all methods if there is time, else of those that answered before the deadline.

    Raises:
        PlanningError: no method finds a legal plan.
    """
    best: Solution | None = None
    causes = []
    many = len(problem.ops) > MANY_OPS
    for method in STARTS:
        if best is not None:
            # Zero seconds buy the best of all methods where they are quick, the first two where there are many ops.
            late = budget.left() <= 0 and (budget.seconds > 0 or (many and method not in ("single", "heft")))
            if late or (many and method == "mosaic"):
                break
        try:
            found = overlapped(problem, solve_by(problem, method, budget))
        except PlanningError as error:
            causes.append(f"{method}: {error}")
            continue
        if found.schedule.makespan_us < (math.inf if best is None else best.schedule.makespan_us):
            best = found
    if best is None:
        raise PlanningError(f"no legal plan was found ({'; '.join(causes)})")
    return best
