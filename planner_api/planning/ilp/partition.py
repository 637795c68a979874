"""HOPE Algorithm 1: cut a graph at an upward rank, again and again, until every part is small enough.

As printed the algorithm has two slips, put right here: its balance test can never hold (``minBalance`` starts
at |V| and is never updated), and cutting at the last rank would leave an empty part. The intent is to minimise
the vertex cut, then the imbalance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

NT = 12
"""Parts hold at most this many ops (HOPE section 2.2)."""
EPSILON = 0.2
"""Imbalance allowed at first (HOPE eq. 7)."""
EPSILON_STEP = 0.1
"""By how much the imbalance grows until a cut is found."""

Graph = Mapping[int, Collection[int]] | Sequence[Collection[int]]
"""Direct predecessors of each vertex."""


def up_rank(vertices: Sequence[int], before: Graph) -> dict[int, int]:
    """Upward rank of each vertex within the part: 1 + the largest rank among its predecessors (HOPE eq. 8).

    ``vertices`` stand in topological order.
    """
    rank: dict[int, int] = {}
    for vertex in vertices:
        rank[vertex] = 1 + max((rank[earlier] for earlier in before[vertex] if earlier in rank), default=0)
    return rank


def bisect(vertices: Sequence[int], before: Graph) -> tuple[list[int], list[int], int]:
    """Cut a part in two at the upward rank with the smallest vertex cut, then the smallest imbalance.

    Returns:
        The two parts, in topological order, and the rank at which they were cut; the second part is empty and
        the rank is the last one when all vertices have one rank, which cannot be cut.
    """
    rank = up_rank(vertices, before)
    count = Counter(rank.values())
    last = max(count)
    size = len(vertices)
    choices = []
    below = 0
    for level in range(1, last):
        below += count[level]
        choices.append((max(below, size - below), count[level], abs(size - 2 * below), level))
    if not choices:
        return list(vertices), [], last
    epsilon = EPSILON
    while True:
        allowed = [choice[1:] for choice in choices if choice[0] <= (1 + epsilon) * size / 2]
        if allowed:
            level = min(allowed)[-1]
            return [v for v in vertices if rank[v] <= level], [v for v in vertices if rank[v] > level], level
        epsilon += EPSILON_STEP


def partition(vertices: Sequence[int], before: Graph, limit: int = NT) -> list[list[int]]:
    """Parts of at most ``limit`` vertices, in an order in which every edge points forward.

    A level wider than the limit cannot be cut and stays whole.
    """
    todo, done = [list(vertices)], []
    while todo:
        part = todo.pop()
        if len(part) <= limit:
            done.append(part)
            continue
        first, second, _ = bisect(part, before)
        if second:
            todo.extend((second, first))
        else:
            done.append(first)
    return done
