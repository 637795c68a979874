"""What of a network each processor can run in one go, where some support a part of it (Band, section 3.1).

A *unit* is a maximal set of adjacent ops that the same processors support. A scheduler merges units that follow each
other where a processor supports all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

FEWEST: Final = 7
"""Adjacent ops that an accelerator is given; what is smaller is left to the CPU, for its launch costs more."""
Support = Sequence[frozenset[int]]
"""By op the processors that run it."""
Before = Sequence[Collection[int]]
"""By op those that it reads from; ops stand in a topological order."""


def units(support: Support, before: Before) -> list[tuple[int, ...]]:
    """Ops by unit, in an order in which units can run; a unit need not be connected.

    A unit grows from the first op that is ready over every ready op with the same processors, until none is left.
    """
    left, done = list(range(len(support))), set[int]()
    found = []
    while left:
        own = next(support[op] for op in left if done.issuperset(before[op]))
        members = []
        for op in left:  # in topological order, so that what this makes ready comes later
            if support[op] == own and done.issuperset(before[op]):
                members.append(op)
                done.add(op)
        left = [op for op in left if op not in done]
        found.append(tuple(members))
    return found


def without_small(support: Support, before: Before, accelerators: Collection[int]) -> list[frozenset[int]]:
    """The processors of each op, less the accelerators that would have fewer than ``FEWEST`` adjacent ops of it."""
    found = list(support)
    for accelerator in accelerators:
        own = [frozenset({accelerator}) & each for each in support]
        for members in units(own, before):
            if len(members) < FEWEST:
                for op in members:
                    found[op] -= {accelerator}
    return found
