"""Exact plans for a small piece of a graph, by dynamic programming over what has been done so far.

A label is a partial schedule: the set of ops done, when each processor is free, where each live tensor is, and when
the ops that someone still waits for finish. Two labels with the same ops done and the same tensors in the same places
differ only in times; one that is nowhere later, and has every tensor where the other has it, dominates.

Ops are appended by start time: one may not start before the one appended last, it is delayed instead. Every
semi-active schedule listed by start is found without a delay, and those contain an optimum (once placement and order,
hence the transfers, are fixed, nothing gains from waiting). What a dominated label could still do, its rival can do in
the same order and no later, delays included, so dominance loses nothing. Labels that cannot beat the best known plan
are cut.

In an Inception module only some hundred sets of ops can be done (branches are chains), which is why this beats integer
programming there by more than a factor of ten.
"""

from planner_api.planning.native import Struct, zeros
from planner_api.planning.problem import IntArray

MOST_OPS = 62
"""Ops of a piece: the set of ops done is one machine word."""


def room(count: int, piece: Struct) -> Struct:
    """Space for so many labels of a piece."""
    return zeros(
        "Labels",
        count=count,
        **dict.fromkeys(("done", "latest", "peak", "bound", "parent", "op", "processor"), count),
        free=(count, piece.processors),
        finish=(count, piece.ops),
        where=(count, piece.tensors, 2),
    )


def take(labels: Struct, rows: IntArray) -> Struct:
    """Some of them, in that order."""
    return Struct("Labels", count=len(rows), **{name: field[rows] for name, field in labels.arrays().items()})
