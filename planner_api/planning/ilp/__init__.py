"""HOPE:LP: partition by upward rank (Algorithm 1), then an exact program per part (eqs 1-6), one after the other."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from planner_api.planning.budget import Budget
from planner_api.planning.construct import greedy
from planner_api.planning.construct.earliest import placed
from planner_api.planning.construct.listing import listed
from planner_api.planning.highs import SolverFailed, run
from planner_api.planning.ilp.model import Window
from planner_api.planning.ilp.partition import partition
from planner_api.planning.judge.simulator import Decoder, simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem

PART_SECONDS = 0.7
"""Most seconds meant for one part; HiGHS looks at the clock seldom and may take a few tenths more."""
PART_NODES = 2000
"""Most branch-and-bound nodes spent on one part when rounds are counted instead of seconds."""
MIN_SECONDS = 0.01
"""Below this a part keeps what it starts from: HiGHS would not get through its presolve."""
GAP = 1e-4
"""Relative gap at which a part counts as solved."""
SLACK = 1e-6
"""Room for rounding above the makespan that a part starts from: relative, and in microseconds."""


def solve(problem: Problem, budget: Budget) -> Solution:
    """Parts in order, each at its exact optimum given the parts before it; scored by the simulator.

    A part that runs out of time keeps the best that was found for it, at least the greedy one; the whole is then
    never worse than HOPE:GS, and its method reads ``ilp→greedy`` where it is HOPE:GS. The notes say where the order
    is not the program's.
    """
    lists = problem.lists
    parts = partition(lists.order, lists.before)
    fixed = Decoder(problem)
    unproven = 0
    for done, part in enumerate(parts):
        if budget.left() <= 0:
            unproven += 1
            fixed = placed(fixed.copy(), part)
            continue
        seconds = min(PART_SECONDS, budget.left() / (len(parts) - done) * 2) if budget.rounds is None else math.inf
        fixed, proven = solve_part(problem, fixed, part, seconds, None if budget.rounds is None else PART_NODES)
        unproven += not proven
    notes = []
    if unproven:
        notes.append(f"{unproven} of {len(parts)} parts stopped before their optimum was proven")
    schedule = simulate(problem, fixed.home, fixed.sequence)
    again = listed(problem, fixed.home)
    if again.makespan_us < schedule.makespan_us:
        schedule = again
        notes.append("list scheduling changed the order of the program")
    if unproven:
        in_hand = greedy.solve(problem, budget)
        if in_hand.schedule.makespan_us < schedule.makespan_us:
            return replace(in_hand, method="ilp→greedy", notes=(notes[0], "HOPE:GS was better"))
    return Solution(schedule, "ilp", tuple(notes))


def solve_part(
    problem: Problem, fixed: Decoder, part: Sequence[int], seconds: float = math.inf, nodes: int | None = None
) -> tuple[Decoder, bool]:
    """Append a part, a convex window in topological order, to a schedule, which is left as it is, at its optimum.

    Returns:
        The longer schedule, and whether the part is proven optimal within so many seconds and branch-and-bound nodes.
    """
    began = time.monotonic()
    first = start(problem, fixed, part)
    limit = ends(first, part)
    if seconds < MIN_SECONDS:
        return first, False
    window = Window(problem, fixed, part, limit * (1 + SLACK) + SLACK)
    point = window.point(
        [first.home[op] for op in part], [first.start[op] for op in part], [first.finish[op] for op in part]
    )
    left = max(MIN_SECONDS, seconds - (time.monotonic() - began))
    try:
        answer = run(window.program, seconds=left, nodes=nodes, start=point, gap=GAP)
    except SolverFailed:
        return first, False
    assignment, order = window.decode(answer.values)
    exact = fixed.copy()
    for i in order:
        exact.place(part[i], assignment[i])
    return (exact if ends(exact, part) <= limit else first), answer.optimal


def ends(decoder: Decoder, part: Sequence[int]) -> float:
    """When the last op of a part finishes."""
    return max(decoder.finish[op] for op in part)


def start(problem: Problem, fixed: Decoder, part: Sequence[int]) -> Decoder:
    """A schedule with a part appended that HiGHS need not find, and that makes its big-Ms small.

    The better of two orders: as given, and by the longest way down within the part.
    """
    fastest = problem.latency_us.min(axis=1).tolist()
    way = problem.lists.ways_on(part, fastest)
    orders = part, sorted(part, key=lambda op: -(fastest[op] + way[op]))
    return min((placed(fixed.copy(), order) for order in orders), key=lambda decoder: ends(decoder, part))
