"""The sequence of subgraphs that ends a network soonest, by dynamic programming over its units (Band, section 3.3).

``end[j] = min over i < j and processors p of max(end[i], free[p]) + latency(i..j-1, p)``: O(processors x units²). Of
equals the last in the order of i and p wins. The native library computes the same where it is there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from agent_sdk import native
from agent_sdk.scheduling.network import NEVER, Network

MOST_UNITS: Final = 256
"""Units that the native library looks at; it has no memory for more."""


class Choice(NamedTuple):
    """The first subgraph of the best sequence, and the second.

    Attributes:
        end_ns: when the whole sequence is expected to end; ``NEVER`` or more where nobody can run it.
        last: last unit of the first subgraph.
        processor: who runs that.
        then: the second subgraph as (first unit, last unit, processor); None where there is one only.
    """

    end_ns: int
    last: int
    processor: int
    then: tuple[int, int, int] | None


class Shortest:
    """Finds the best way on; for one thread at a time, because its answer stands in memory of its own."""

    def __init__(self) -> None:
        self._library = native.library()
        self._answer = array("q", [0] * 6)
        self._address = self._answer.buffer_info()[0]

    def __call__(self, network: Network, unit: int, free_ns: array[int], now_ns: int) -> Choice:
        """The best way on from a unit, where each processor is expected to be free at ``free_ns``."""
        if self._library is None or network.units > MOST_UNITS:
            return in_python(network, unit, free_ns, now_ns)
        table, free = network.table.buffer_info()[0], free_ns.buffer_info()[0]
        self._library.hope_sequence(table, network.units, network.processors, unit, free, now_ns, self._address)
        end, last, processor, first, until, other = self._answer
        return Choice(end, last, processor, (first, until, other) if first >= 0 else None)


def in_python(network: Network, unit: int, free_ns: Sequence[int], now_ns: int) -> Choice:
    """What ``Shortest`` does, without the library."""
    units = network.units
    end = {unit: now_ns}
    way: dict[int, tuple[int, int]] = {}
    for until in range(unit + 1, units + 1):
        end[until] = 2 * NEVER
        for first in range(unit, until):
            for processor, free in enumerate(free_ns):
                ns = network.expected(first, until - 1, processor)
                found = max(end[first], free) + ns
                if ns < NEVER and end[first] < NEVER + now_ns and found <= end[until]:
                    end[until], way[until] = found, (first, processor)
    if units not in way:
        return Choice(2 * NEVER, -1, -1, None)
    then, at = None, units
    while way[at][0] != unit:
        first, processor = way[at]
        then, at = (first, at - 1, processor), first
    return Choice(end[units], at - 1, way[at][1], then)
