"""The fleet in numbers, counted in the background while somebody looks, so that nobody waits for the counting."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import structlog

from planner_api.db.engine import Database
from planner_api.errors import DatabaseAwayError
from planner_api.jobs.chores import end
from planner_api.profiles.repository import count_pairs
from planner_api.rollout import repository as releases
from planner_api.views import drift, pages
from planner_api.views.service import summary

log = structlog.get_logger(__name__)

FRESH_S = 5.0
"""Younger numbers are shown as they are; older ones too, while newer ones are counted behind them ..."""
STALE_S = 900.0
"""... unless they are older than this."""
DRIFT_BOUNDS = (-0.5, -0.25, -0.1, -0.05, 0.05, 0.1, 0.25, 0.5)
"""Where the steps of the drift's histogram end."""
LISTED = 8


class Overviews:
    """The newest overview of a database; one counting at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._newest: SimpleNamespace | None = None
        self._counted = 0.0
        self._counting: asyncio.Task[SimpleNamespace] | None = None

    async def get(self) -> SimpleNamespace:
        age = time.monotonic() - self._counted
        if self._newest is not None and age < FRESH_S:
            return self._newest
        if self._counting is None or self._counting.done():
            self._counting = asyncio.create_task(self._count(), name="console-overview")
            self._counting.add_done_callback(_report)
        if self._newest is not None and age < STALE_S:
            return self._newest
        return await asyncio.shield(self._counting)

    async def stop(self) -> None:
        await end(self._counting)

    async def _count(self) -> SimpleNamespace:
        self._newest = await count(self._database)
        self._counted = time.monotonic()
        return self._newest


async def count(database: Database) -> SimpleNamespace:
    """Count the fleet: how it is ``at`` a moment, in ``numbers`` and in lists."""
    now = datetime.now(UTC)
    numbers = await summary(database)
    async with database.read() as session:
        uploads, since = await pages.inbox(session)
        return SimpleNamespace(
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


def _report(counting: asyncio.Task[SimpleNamespace]) -> None:
    """Log a counting that failed, which nobody may be waiting for."""
    if not counting.cancelled() and (error := counting.exception()) is not None:
        if isinstance(error, DatabaseAwayError):
            log.warning("overview_lost_database", error=error.reason)
        else:
            log.error("overview_failed", exc_info=error)
