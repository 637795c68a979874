"""The fleet in numbers, counted in the background while somebody looks, so that nobody waits for the counting."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hope_schema import FleetSummary
from planner_api.db.engine import Database
from planner_api.db.tables import ReleaseRow
from planner_api.jobs.chores import end, report
from planner_api.profiles.repository import count_pairs
from planner_api.rollout import repository as releases
from planner_api.views import drift, pages
from planner_api.views.service import summary

FRESH_S = 5.0
"""Younger numbers are shown as they are; older ones too, while newer ones are counted behind them ..."""
STALE_S = 900.0
"""... unless they are older than this."""
DRIFT_BOUNDS = (-0.5, -0.25, -0.1, -0.05, 0.05, 0.1, 0.25, 0.5)
"""Where the steps of the drift's histogram end."""
LISTED = 8


@dataclass(frozen=True)
class Overview:
    """The fleet at one moment.

    Attributes:
        contacts: devices by when they were last heard of.
        socs: the SoCs with the most devices, and how many those are.
        pairs: pairs of SoC and frequency that the fleet counts.
        models: those asked for most.
        drift: newest reports per step of ``DRIFT_BOUNDS``.
        waiting: releases that an admin decides about.
        inbox: uploads that are not folded yet, since ``inbox_since``.
    """

    at: datetime
    numbers: FleetSummary
    contacts: Any
    socs: Sequence[tuple[str | None, int]]
    pairs: int
    models: Sequence[Any]
    drift: Sequence[int]
    drifting: Sequence[Any]
    failed: Sequence[Any]
    waiting: Sequence[ReleaseRow]
    inbox: int
    inbox_since: datetime | None


class Overviews:
    """The newest overview of a database; one counting at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._newest: Overview | None = None
        self._counted_at = -math.inf
        self._counting: asyncio.Task[Overview] | None = None

    async def get(self) -> Overview:
        age_s = time.monotonic() - self._counted_at
        if age_s >= FRESH_S and (self._counting is None or self._counting.done()):
            self._counting = asyncio.create_task(self._count(), name="console-overview")
            self._counting.add_done_callback(_report)
        if self._newest is not None and age_s < STALE_S:
            return self._newest
        assert self._counting is not None
        return await asyncio.shield(self._counting)

    async def stop(self) -> None:
        await end(self._counting)

    async def _count(self) -> Overview:
        self._newest = await count(self._database)
        self._counted_at = time.monotonic()
        return self._newest


async def count(database: Database) -> Overview:
    now = datetime.now(UTC)
    numbers = await summary(database)
    async with database.read() as session:
        uploads, since = await pages.inbox(session)
        return Overview(
            at=now,
            numbers=numbers,
            contacts=await pages.contacts(session, now),
            socs=await pages.devices_by_soc(session, LISTED),
            pairs=await count_pairs(session),
            models=await pages.covered(session, LISTED),
            drift=await drift.histogram(session, DRIFT_BOUNDS),
            drifting=await drift.furthest(session, LISTED),
            failed=await pages.failed_plans(session, LISTED),
            waiting=await releases.releases(session, states=("waiting",), limit=LISTED),
            inbox=uploads,
            inbox_since=since,
        )


def _report(counting: asyncio.Task[Overview]) -> None:
    if not counting.cancelled() and (error := counting.exception()) is not None:
        report("overview", error)
