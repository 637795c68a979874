"""The polisher: one short window of a schedule at a time, solved to its optimum by HiGHS.

Annealing leaves little to find in ten consecutive ops, so this is for a search that has stopped finding anything. The
program is HOPE's (eqs 1-6) with the rest of the schedule as it is: what lies before is fixed, and what lies after
enters as the longest path that must still follow each op, and each processor. Transfers that a change would move past
the window are not seen: the simulator has the last word.
"""

from __future__ import annotations

from planner_api.planning.construct.partial import Partial
from planner_api.planning.ilp.highs import SolverFailed, run
from planner_api.planning.ilp.model import Window
from planner_api.planning.judge.simulator import Schedule, simulate
from planner_api.planning.problem import Problem

WIDTH = 10
"""Ops of a window."""
NODES = 500
"""Branch-and-bound nodes per window: deterministic."""
SLACK = 1e-6
"""Relative room above the known makespan for rounding."""


def polish(problem: Problem, schedule: Schedule, low: int, high: int, seconds: float) -> Schedule:
    """Solve positions ``low`` to ``high`` anew and keep what is better.

    Args:
        problem: the problem.
        schedule: its positions in start-time order.
        low: first position of the window.
        high: one past its last.
        seconds: time limit for HiGHS.

    Returns:
        The better schedule, or the same.
    """
    sequence = list(schedule.sequence)
    ops = sequence[low:high]
    fixed = Partial(problem)
    for op in sequence[:low]:
        fixed.place(op, schedule.assignment[op])
    tails, upcoming = _after(problem, schedule, high)
    window = Window(problem, fixed, ops, schedule.makespan_us * (1 + SLACK), [tails[op] for op in ops])
    for on, finish in zip(window.on, window.finish, strict=True):
        for processor, column in on.items():
            if upcoming[processor] > 0.0:
                follows = [(window.makespan, 1.0), (finish, -1.0), (column, -upcoming[processor])]
                window.program.at_least(follows, 0.0)
    point = window.point(
        [schedule.assignment[op] for op in ops],
        [schedule.start_us[op] for op in ops],
        [schedule.finish_us[op] for op in ops],
    )
    point[window.makespan] = schedule.makespan_us - window.base
    try:
        answer = run(window.program, seconds=seconds, nodes=NODES, start=point)
    except SolverFailed:
        return schedule
    chosen, order = window.decode(answer.values)
    assignment = list(schedule.assignment)
    for op, processor in zip(ops, chosen, strict=True):
        assignment[op] = processor
    better = simulate(problem, assignment, [*sequence[:low], *(ops[i] for i in order), *sequence[high:]])
    return better if better.makespan_us < schedule.makespan_us else schedule


def _after(problem: Problem, schedule: Schedule, high: int) -> tuple[list[float], list[float]]:
    """For each op the longest path that follows its finish through ops past ``high``; the same for each processor."""
    lists = problem.lists
    through = [0.0] * len(problem.ops)
    upcoming = [0.0] * problem.host
    for op in reversed(schedule.sequence[high:]):
        processor = schedule.assignment[op]
        follows = [through[later] for later in lists.after[op]]
        follows += [upcoming[rival] for rival in lists.rivals[processor]]
        through[op] = schedule.finish_us[op] - schedule.start_us[op] + max(follows)
        upcoming[processor] = through[op]
    behind = set(schedule.sequence[high:])
    tails = [max((through[later] for later in after if later in behind), default=0.0) for after in lists.after]
    return tails, [max(upcoming[rival] for rival in lists.rivals[p]) for p in range(problem.host)]
