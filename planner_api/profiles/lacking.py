"""What a profile lacks of a model, by its statistics, which stay in memory while devices of one SoC ask in a row."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from planner_api.db.engine import Database
from planner_api.models.figures import Figures, Latency, Transfer
from planner_api.profiles import facts, repository
from planner_api.profiles.repository import ProfileHead
from planner_api.shared import SharedCalls

if TYPE_CHECKING:
    from planner_api.profiles.predictions import Predictions
    from planner_api.profiles.statistics import Statistics

REMEMBERED = 8
"""Profiles whose statistics stay in memory."""

Figure = Latency | Transfer


class Lacking:
    """Looks into statistics, which nobody changes here: whoever asks of one profile at once waits for one reading."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statistics: OrderedDict[int, tuple[ProfileHead, Statistics]] = OrderedDict()
        self._reading: SharedCalls[Statistics] = SharedCalls()
        self._predictions: Predictions | None = None

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
        look = _looking().open_figures
        found: tuple[list[Figure], list[Figure]] = await asyncio.to_thread(
            look, statistics, figures, kinds, places, device, most
        )
        return found

    async def ordered(self, body_zstd: bytes, unknown: Sequence[Latency], counts: Mapping[str, int]) -> list[Latency]:
        """Latencies that a device is to measure, the most telling first; ``counts``: how often each op runs."""
        known, looking = facts.asking(self._database), await asyncio.to_thread(_looking)
        self._predictions = self._predictions or looking.Predictions()
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
        return await asyncio.to_thread(lambda: _looking().Statistics.load(dumped))


def _looking() -> ModuleType:
    # NOTE: loaded in a thread, where it is needed first: a process that only serves plans never loads NumPy.
    from planner_api.profiles import looking

    return looking
