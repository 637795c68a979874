"""Scoring methods whose plans run in rounds, one strictly after the other: slices of MOSAIC, levels of PartitionTuner.

The simulator starts every op as early as it can, which is what our engine does and not what these papers do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from planner_api.planning.construct.listing import list_order
from planner_api.planning.judge.simulator import Move, Schedule, simulate, value_of
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem


def in_rounds(problem: Problem, assignment: Sequence[int], rounds: Sequence[Sequence[int]]) -> Schedule:
    """Time a placement whose rounds never overlap; within a round every op starts as early as it can.

    The moves of an op's inputs stand before it on its time, those of an output right behind it.

    Args:
        problem: the problem.
        assignment: processor of each op.
        rounds: the ops, each once; chained together they are a topological order.

    Raises:
        ValueError: the rounds are no topological order of all ops.
    """
    sequence = [op for ops in rounds for op in ops]
    eager = simulate(problem, assignment, sequence)
    if math.isinf(eager.makespan_us):
        return eager
    lists = problem.lists
    fetches: list[list[Move]] = [[] for _ in sequence]
    leaves: list[list[Move]] = [[] for _ in sequence]
    for move in eager.transfers:
        if move.reader >= 0:
            fetches[move.reader].append(move)
        else:
            leaves[lists.producer[move.tensor]].append(move)
    start, finish, left = [0.0] * len(sequence), [0.0] * len(sequence), [0.0] * len(sequence)
    free = [0.0] * problem.host
    moves: list[Move] = []

    def lag(earlier: int, op: int) -> float:
        home = eager.assignment[earlier]
        return 0.0 if home == eager.assignment[op] else float(problem.machine.lag_us[home])

    for ops in rounds:
        free = [max(free)] * problem.host
        for op in ops:
            processor = eager.assignment[op]
            now = start[op] = max(
                [free[processor], *[left[earlier] + lag(earlier, op) for earlier in lists.before[op]]]
            )
            for move in fetches[op]:
                now = _issue(moves, move, now)
            paid = sum([move.finish_us - move.start_us for move in fetches[op]])
            now = finish[op] = now + (eager.finish_us[op] - eager.start_us[op] - paid)
            for move in leaves[op]:
                now = _issue(moves, move, now)
            left[op] = now
            for rival in lists.rivals[processor]:
                free[rival] = max(free[rival], now)
    return replace(
        eager,
        start_us=tuple(start),
        finish_us=tuple(finish),
        done_us=tuple(left),
        makespan_us=max(left),
        value_us=value_of(problem, left),
        transfers=tuple(moves),
    )


def _issue(moves: list[Move], move: Move, now: float) -> float:
    """Append the move, as it takes from ``now`` on, and say when it ends."""
    end = now + (move.finish_us - move.start_us)
    moves.append(move._replace(start_us=now, finish_us=end))
    return end


def overlapped(problem: Problem, solution: Solution) -> Solution:
    """A solution as our engine runs it: without the rounds, in their order or in list order, whichever is shorter."""
    if not solution.in_rounds:
        return solution
    problem = solution.cut or problem
    placement = solution.schedule.assignment
    orders = (solution.schedule.sequence, list_order(problem, placement))
    best = min((simulate(problem, placement, order) for order in orders), key=lambda schedule: schedule.makespan_us)
    return replace(solution, schedule=best, method=f"{solution.method}+overlap", in_rounds=False)
