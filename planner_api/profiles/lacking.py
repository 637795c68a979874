"""What a profile lacks of a model, by its statistics, which stay in memory while devices of one SoC ask in a row."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from planner_api.db.engine import Database
from planner_api.models.figures import Figures, Latency, Transfer
from planner_api.profiles import facts, repository
from planner_api.profiles.folding import wanted
from planner_api.profiles.predictions import Predictions
from planner_api.profiles.repository import ProfileHead
from planner_api.profiles.statistics import Statistics, device_hash
from planner_api.shared import SharedCalls

REMEMBERED = 8
"""Profiles whose statistics stay in memory."""

Figure = Latency | Transfer


class Lacking:
    """Looks into statistics, which nobody changes here: whoever asks of one profile at once waits for one reading."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statistics: OrderedDict[int, tuple[ProfileHead, Statistics]] = OrderedDict()
        self._reading: SharedCalls[Statistics] = SharedCalls()
        self._predictions = Predictions()

    async def open_figures(
        self,
        head: ProfileHead | None,
        figures: Figures,
        kinds: Sequence[str],
        places: Sequence[str],
        device: str | None,
        most: int,
    ) -> tuple[list[Figure], list[Figure]]:
        """Return the figures that nobody has said, and at most ``most`` that a device should say too (None: none)."""
        statistics = None if head is None else await self._of(head)
        if statistics is None:
            return [*figures.latencies(kinds), *figures.transfers(places)], []
        return await asyncio.to_thread(open_figures, statistics, figures, kinds, places, device, most)

    async def ordered(self, body_zstd: bytes, unknown: Sequence[Latency], counts: Mapping[str, int]) -> list[Latency]:
        """Latencies that a device is to measure, the most telling first; ``counts``: how often each op runs."""
        known = facts.asking(self._database)
        return await asyncio.to_thread(self._predictions.ordered, body_zstd, unknown, counts, known)

    async def _of(self, head: ProfileHead) -> Statistics:
        known = self._statistics.get(head.id)
        if known is None or known[0] != head:
            statistics = await self._reading.get(head, lambda: self._read(head))
            self._statistics[head.id] = known = head, statistics
        self._statistics.move_to_end(head.id)
        while len(self._statistics) > REMEMBERED:
            self._statistics.popitem(last=False)
        return known[1]

    async def _read(self, head: ProfileHead) -> Statistics:
        async with self._database.read() as session:
            dumped = await repository.statistics(session, head.id)
        return await asyncio.to_thread(Statistics.load, dumped)


def open_figures(
    statistics: Statistics,
    figures: Figures,
    kinds: Sequence[str],
    places: Sequence[str],
    device: str | None,
    most: int,
) -> tuple[list[Figure], list[Figure]]:
    """Return the figures that nobody has said, and at most ``most`` that a device should say too (None: none)."""
    latencies, transfers = list(figures.latencies(kinds)), list(figures.transfers(places))
    known = statistics.latencies.known(), statistics.transfers.known()
    unknown: list[Figure] = [key for key in latencies if key not in known[0]]
    unknown += [key for key in transfers if key not in known[1]]
    if device is None:
        return unknown, []
    name = device_hash(device)
    unsure: list[Any] = [
        *wanted(statistics.latencies, name, latencies, most),
        *wanted(statistics.transfers, name, transfers, most),
    ]
    return unknown, unsure[:most]
