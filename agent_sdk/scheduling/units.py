"""Units and subgraphs: what of a network one processor can run in one go (Band, section 3.1).

A *unit* is a maximal set of adjacent ops that the same processors support; a *subgraph* is a run of units that one
processor supports all of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

Support = Sequence[frozenset[int]]
"""Per op the processors that support it."""
Before = Sequence[Sequence[int]]
"""Per op the ops that it reads from; ops stand in a topological order."""
SMALLEST: Final = 7
"""Sets of ops on an accelerator that are smaller are left to the CPU: moving their tensors would cost more."""


def without_small_sets(support: Support, before: Before, cpus: frozenset[int], smallest: int = SMALLEST) -> Support:
    """The support without connected sets of fewer than ``smallest`` ops on a processor that is none of ``cpus``."""
    kept = [set(own) for own in support]
    for processor in frozenset().union(*support) - cpus:
        for members in _connected([op for op, own in enumerate(support) if processor in own], before):
            if len(members) < smallest:
                for op in members:
                    kept[op].discard(processor)
    return [frozenset(own) for own in kept]


def units(support: Support, before: Before) -> list[tuple[int, ...]]:
    """The units, in an order in which they can run; a unit need not be connected.

    A unit grows from the first op that is ready over every ready op with the same processors, until none is left.
    """
    left, done = list(range(len(support))), set[int]()
    found = []
    while left:
        ready = next(op for op in left if done.issuperset(before[op]))
        members: list[int] = []
        grown = True
        while grown:
            new = [op for op in left if support[op] == support[ready] and done.issuperset(before[op])]
            grown = bool(new)
            members += new
            done.update(new)
            left = [op for op in left if op not in done]
        found.append(tuple(sorted(members)))
    return found


def subgraphs(support: Support, members: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """Every subgraph, as its first unit, its last one and its processor."""
    own = [support[unit[0]] for unit in members]
    found = []
    for first in range(len(own)):
        shared = own[first]
        for last in range(first, len(own)):
            shared &= own[last]
            found += [(first, last, processor) for processor in sorted(shared)]
    return found


def _connected(ops: Sequence[int], before: Before) -> list[list[int]]:
    """The connected sets among some ops."""
    root = {op: op for op in ops}

    def find(op: int) -> int:
        while root[op] != op:
            root[op] = root[root[op]]
            op = root[op]
        return op

    for op in ops:
        for other in before[op]:
            if other in root:
                root[find(op)] = find(other)
    sets: dict[int, list[int]] = {}
    for op in ops:
        sets.setdefault(find(op), []).append(op)
    return list(sets.values())
