"""MOSAIC and PartitionTuner as their papers run them: in rounds, one strictly after the other.

The planner starts every op as early as its inputs and its processor allow, because our engine does; so it has their
placements only. For the comparison with the papers they are timed here as these have them.
"""

from collections.abc import Callable, Sequence

from planner_api.planning.construct.mosaic import levels
from planner_api.planning.judge.simulator import Decoder, Schedule
from planner_api.planning.problem import Problem

ROUNDS: dict[str, Callable[[Problem], list[list[int]]]] = {
    "mosaic": lambda problem: [[op] for op in problem.lists.order],
    "partitiontuner": levels,
}
"""By method the rounds in which a problem's ops run."""


class Waiting(Decoder):
    """A decoder in which nothing starts before ``floor``."""

    floor = 0.0

    def opening(self, op: int, here: int, begin: float, paid: float) -> float:
        return max(self.floor, super().opening(op, here, begin, paid))


def in_rounds(problem: Problem, assignment: Sequence[int], rounds: Sequence[Sequence[int]]) -> Schedule:
    """Time a placement whose rounds never overlap; within a round every op starts as early as it can.

    A round ends when all that it made is where it must go.

    Args:
        assignment: processor of each op.
        rounds: the ops, each once; chained together they are a topological order.

    Raises:
        ValueError: the rounds are no topological order of all ops.
    """
    decoder = Waiting(problem)
    for ops in rounds:
        for op in ops:
            decoder.place(op, assignment[op])
        decoder.floor = max([decoder.floor, *(decoder.done[op] for op in ops)])
    return decoder.schedule()
