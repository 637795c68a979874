"""Units and subgraphs: what of a network one processor can run in one go (Band, section 3.1).

A *unit* is a maximal set of adjacent ops that the same processors support; a *subgraph* is a run of units that one
processor supports all of. What an accelerator would get in too small sets is left to the CPU first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

LEAST_OPS: Final = 7
"""Adjacent ops below which a set is not worth an accelerator (Band's own default)."""
Support = Sequence[frozenset[int]]
"""Per op the processors that support it."""
Before = Sequence[Sequence[int]]
"""Per op the ops that it reads from; ops stand in a topological order."""


def worthwhile(support: Support, before: Before, accelerators: Collection[int]) -> list[frozenset[int]]:
    """Per op the processors that support it, without accelerators that support too few of the ops adjacent to it."""
    found = list(support)
    for accelerator in accelerators:
        own = [own & {accelerator} for own in support]
        for members in units(own, before):
            if own[members[0]] and len(members) < LEAST_OPS:
                for op in members:
                    found[op] -= {accelerator}
    return found


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
