"""What a policy knows of a network: its units, and how long each subgraph takes where."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Mapping
from typing import Final

from agent_sdk.errors import InputError

NEVER: Final = 2**60
"""Nanoseconds that stand for "this processor does not run it"."""
ALPHA: Final = 0.1
"""Weight of a new measurement in the expected latency (Band, section 3.2)."""
MARGIN: Final = 0.5
"""A run may well take longer than expected by this share. What takes longer still is learnt from as if it took no more:
a machine's stall says nothing of a group."""
RUNS: Final = 100
"""Runs by which the next one's risk is told. Where there were none yet, they are taken to have spread evenly up to half
as long again."""
FORGOTTEN: Final = 1000
"""What was learnt of a processor fades by one part in so many with each run elsewhere: it may have been a disturbance,
and what is taken for too slow is measured no more."""


class Network:
    """Expected latencies of one network's subgraphs, in integer nanoseconds.

    Args:
        name: as told to people.
        units: how many there are.
        processors: how many the device has.
        latency_ns: by (first unit, last unit, processor); what is missing cannot run there.

    Attributes:
        alike: processors that are equally fast, by processor: what one of them takes is learnt of all.
        assumed: processors whose figure is a guess: what is measured there first takes its place.
        cheaper: what runs instead of it where it would be too late and may be degraded; None where there is nothing.
        border_ns: by processor the longest time from one border of a run to the next; without one it runs in one go.
        dropped: how many of its runs were dropped since one ended.
        vain_ns: when the first of those was asked for.
        in_flight: how many of its runs may be under way at once.
    """

    cheaper: Network | None = None
    in_flight: int = 2**31
    dropped: int = 0
    vain_ns: int = 0

    def __init__(self, name: str, units: int, processors: int, latency_ns: Mapping[tuple[int, int, int], int]) -> None:
        self.name, self.units, self.processors = name, units, processors
        self.alike: dict[int, list[int]] = {}
        self.assumed: set[int] = set()
        self.border_ns: dict[int, int] = {}
        self._times = deque((1.0 + MARGIN * (run + 1) / RUNS for run in range(RUNS)), RUNS)
        """What the latest runs of the whole took ÷ what was expected, wherever they were."""
        self._sorted = sorted(self._times)
        self.table = array("q", [NEVER]) * (processors * units * units)
        """By processor, first and last unit; ``NEVER`` where it cannot run."""
        self._told = self.table[:]
        """Likewise what was measured first: what is learnt fades to that."""
        for key, ns in latency_ns.items():
            self.set(key, ns)

    def expected(self, first: int, last: int, processor: int) -> int:
        """Expected latency of a subgraph; ``NEVER`` where it cannot run there."""
        return self.table[(processor * self.units + first) * self.units + last]

    def learn(self, first: int, last: int, processor: int, ns: int) -> None:
        """Take note of what a subgraph took; where the clock did not move, that is the least that there is."""
        ns = max(ns, 1)
        before = self.expected(first, last, processor)
        unknown = before >= NEVER or processor in self.assumed
        alike = self.alike.get(processor, (processor,))
        self.assumed.difference_update(alike)
        if unknown:
            for other in alike:
                at = (other * self.units + first) * self.units + last
                self.table[at], self._told[at] = ns, min(ns, self._told[at])
            return
        if last - first == self.units - 1:
            del self._sorted[bisect_left(self._sorted, self._times[0])]
            self._times.append(ns / before)
            insort(self._sorted, ns / before)
        now = round(ALPHA * min(ns, before + MARGIN * before) + (1 - ALPHA) * before)
        for other in range(self.processors):
            at = (other * self.units + first) * self.units + last
            if other in alike:
                self.table[at] = now
            elif self._told[at] < self.table[at] < NEVER:
                self.table[at] -= (self.table[at] - self._told[at]) // FORGOTTEN

    def longest(self, ns: int) -> int:
        """What a run may well take that is expected to take so long."""
        return ns + round(MARGIN * ns)

    def risk(self, ns: int, within_ns: int) -> int:
        """How many of the latest runs would take longer than allowed where so much is expected; of ``RUNS``."""
        return RUNS - bisect_right(self._sorted, within_ns / ns)

    def runs_on(self, processor: int) -> bool:
        """Whether one processor runs the whole network."""
        return self.expected(0, self.units - 1, processor) < NEVER

    def wholes(self) -> list[tuple[int, int]]:
        """Processors that run the whole network, and how long each takes."""
        every = self.table[self.units - 1 :: self.units * self.units]
        return [(processor, ns) for processor, ns in enumerate(every) if ns < NEVER]

    def doubt(self, processor: int) -> None:
        """What is measured there next takes the place of what is expected, instead of being smoothed into it."""
        self.assumed.update(self.alike.get(processor, (processor,)))

    def forget(self, processor: int) -> None:
        """It cannot run there any more."""
        for alike in self.alike.values():
            if processor in alike:
                alike.remove(processor)
        for first in range(self.units):
            for last in range(first, self.units):
                self.table[(processor * self.units + first) * self.units + last] = NEVER

    def set(self, key: tuple[int, int, int], ns: int) -> None:
        """Say what is expected of (first unit, last unit, processor). Raises InputError where that is not there."""
        first, last, processor = key
        if not (0 <= first <= last < self.units and 0 <= processor < self.processors):
            raise InputError(f"'{self.name}' has no units {first} to {last}, or the device no processor {processor}")
        at = (processor * self.units + first) * self.units + last
        self.table[at] = self._told[at] = min(max(ns, 1), NEVER - 1)
