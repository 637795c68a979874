"""HOPE Algorithm 1: cut a graph at an upward rank, again and again, until every part is small enough.

As printed the algorithm has two slips, put right here: its balance test can never hold (``minBalance`` starts
at |V| and is never updated), and cutting at the last rank would leave an empty part. The intent is to minimise
the vertex cut, then the imbalance.
"""

from collections.abc import Sequence
from itertools import chain

from planner_api.planning.construct.listing import Before, layers

NT = 12
"""Parts hold at most this many ops (HOPE section 2.2)."""
EPSILON = 0.2
"""Imbalance allowed at first (HOPE eq. 7)."""
EPSILON_STEP = 0.1
"""By how much the imbalance grows until a cut is found."""


def bisect(vertices: Sequence[int], before: Before) -> tuple[list[int], list[int]]:
    """Cut a part in two at the upward rank with the smallest vertex cut, then the smallest imbalance.

    Returns:
        The two parts, in topological order; the second is empty where all vertices have one rank.
    """
    ranked = layers(vertices, before)  # by upward rank (HOPE eq. 8)
    size = len(vertices)
    choices = []
    below = 0
    for rank, level in enumerate(ranked[:-1], start=1):
        below += len(level)
        choices.append((max(below, size - below), len(level), abs(size - 2 * below), rank))
    epsilon, allowed = EPSILON, list[tuple[int, ...]]()
    while choices and not allowed:
        allowed = [choice[1:] for choice in choices if choice[0] <= (1 + epsilon) * size / 2]
        epsilon += EPSILON_STEP
    last = min(allowed)[-1] if allowed else len(ranked)
    first = set(chain.from_iterable(ranked[:last]))
    return [vertex for vertex in vertices if vertex in first], [vertex for vertex in vertices if vertex not in first]


def partition(vertices: Sequence[int], before: Before, limit: int = NT) -> list[list[int]]:
    """Parts of at most ``limit`` vertices, in an order in which every edge points forward.

    A level wider than the limit cannot be cut and stays whole.
    """
    todo, done = [list(vertices)], []
    while todo:
        part = todo.pop()
        first, second = bisect(part, before) if len(part) > limit else (part, [])
        if second:
            todo.extend((second, first))
        else:
            done.append(first)
    return done
