"""Scoring methods whose plans run in rounds, one strictly after the other: slices of MOSAIC, levels of PartitionTuner.

The simulator starts every op as early as it can, which is what our engine does and not what these papers do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from planner_api.planning.construct.listing import list_order
from planner_api.planning.judge.simulator import Move, Schedule, simulate
from planner_api.planning.problem import Problem
from planner_api.planning.solver import Solution


def in_rounds(problem: Problem, assignment: Sequence[int], rounds: Sequence[Sequence[int]]) -> Schedule:
    """Time a placement whose rounds never overlap; within a round every op starts as early as it can.

    All moves take the time of an op, also where a channel could carry them meanwhile: those of its inputs stand
    before it, those of an output right behind it.

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
    latency = [lists.latency[op][processor] for op, processor in enumerate(eager.assignment)]
    fetches: list[list[Move]] = [[] for _ in sequence]
    leaves: list[list[Move]] = [[] for _ in sequence]
    place = {op: index for index, op in enumerate(sequence)}
    for move in eager.transfers:
        if move.target == problem.host:
            if lists.producer[move.tensor] >= 0:
                leaves[lists.producer[move.tensor]].append(move)
            continue
        readers = [op for op in lists.readers[move.tensor] if eager.assignment[op] == move.target]
        fetches[min(readers, key=place.__getitem__)].append(move)
    start, finish, left = [0.0] * len(sequence), [0.0] * len(sequence), [0.0] * len(sequence)
    free = [0.0] * problem.host
    moves: list[Move] = []
    for ops in rounds:
        free = [max(free)] * problem.host
        for op in ops:
            processor = eager.assignment[op]
            now = start[op] = max([free[processor], *[left[earlier] for earlier in lists.before[op]]])
            for move in fetches[op]:
                now = _issue(moves, move, now)
            now = finish[op] = now + latency[op]
            for move in leaves[op]:
                now = _issue(moves, move, now)
            left[op] = now
            for rival in lists.rivals[processor]:
                free[rival] = max(free[rival], now)
    return replace(eager, start_us=tuple(start), finish_us=tuple(finish), makespan_us=max(left), transfers=tuple(moves))


def _issue(moves: list[Move], move: Move, now: float) -> float:
    """Append the move, as it takes from ``now`` on, and say when it ends."""
    end = now + (move.finish_us - move.start_us)
    moves.append(move._replace(start_us=now, finish_us=end))
    return end


def overlapped(problem: Problem, solution: Solution) -> Solution:
    """A solution as our engine runs it: without the rounds, in their order or in list order, whichever is shorter."""
    if not solution.in_rounds:
        return solution
    placement = solution.schedule.assignment
    orders = (solution.schedule.sequence, list_order(problem, placement))
    best = min((simulate(problem, placement, order) for order in orders), key=lambda schedule: schedule.makespan_us)
    return replace(solution, schedule=best, method=f"{solution.method}+overlap", in_rounds=False)
