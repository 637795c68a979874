"""Scoring methods whose plans run in rounds, one strictly after the other: slices of MOSAIC, levels of PartitionTuner.

The simulator starts every op as early as it can, which is what our engine does and not what these papers do.
"""

from collections.abc import Sequence
from dataclasses import replace

from planner_api.planning.construct.listing import listed
from planner_api.planning.judge.simulator import Decoder, Schedule, simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem


def in_rounds(problem: Problem, assignment: Sequence[int], rounds: Sequence[Sequence[int]]) -> Schedule:
    """Time a placement whose rounds never overlap; within a round every op starts as early as it can.

    A round ends when all that it made is where it must go.

    Args:
        problem: the problem.
        assignment: processor of each op.
        rounds: the ops, each once; chained together they are a topological order.

    Raises:
        ValueError: the rounds are no topological order of all ops.
    """
    decoder = Decoder(problem)
    for ops in rounds:
        for op in ops:
            decoder.place(op, assignment[op])
        decoder.wait(max(decoder.done[op] for op in ops))
    return decoder.schedule()


def overlapped(problem: Problem, solution: Solution) -> Solution:
    """A solution as our engine runs it: without the rounds, in their order or in list order, whichever is shorter."""
    if not solution.in_rounds:
        return solution
    problem = solution.cut or problem
    placement = solution.schedule.assignment
    orders = (solution.schedule.sequence, listed(problem, placement).sequence)
    best = min((simulate(problem, placement, order) for order in orders), key=lambda schedule: schedule.makespan_us)
    return replace(solution, schedule=best, method=f"{solution.method}+overlap", in_rounds=False)
