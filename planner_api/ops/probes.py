"""Probes and metrics that may be asked as often as anybody likes: they need no token, so they must cost little."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from planner_api.db.engine import Database
from planner_api.db.migrate import HEAD
from planner_api.db.outage import AWAY
from planner_api.db.tables import InboxRow
from planner_api.errors import unavailable
from planner_api.ops.metrics import Metrics
from planner_api.solving.repository import count_by_status

BROKEN: tuple[type[Exception], ...] = (DBAPIError, *AWAY)
PROBE_S = 2.0
"""A database that does not answer within this is away."""
FRESH_S = 1.0
"""How long an outcome is told to everybody who asks."""

T = TypeVar("T")


class Fresh(Generic[T]):
    """The outcome of a call, made at most once at a time and told to everybody for ``FRESH_S`` after it ended."""

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call
        self._task: asyncio.Future[T] | None = None
        self._until = 0.0

    async def get(self) -> T:
        """Return the outcome, or raise what the call raised."""
        if self._task is None or (self._task.done() and time.monotonic() >= self._until):
            self._task = asyncio.ensure_future(self._call())
            self._task.add_done_callback(self._ended)
        return await asyncio.shield(self._task)

    def _ended(self, _task: asyncio.Future[T]) -> None:
        self._until = time.monotonic() + FRESH_S


class Probes:
    """What a process tells about itself and its database."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self._database = database
        self._metrics = metrics
        self._ready = Fresh(self._check_ready)
        self._page = Fresh(self._scrape)

    async def check_ready(self) -> None:
        """Whether requests can be served: the database answers and stands at the newest migration.

        Raises:
            ApiError: 503, saying what is missing.
        """
        await self._ready.get()

    async def scrape(self) -> bytes:
        """The metrics page; without the gauges that the database tells while that is away."""
        return await self._page.get()

    async def _check_ready(self) -> None:
        try:
            async with asyncio.timeout(PROBE_S), self._database.read() as session:
                revision = await session.scalar(text("SELECT version_num FROM alembic_version"))
        except BROKEN:
            raise unavailable("the database does not answer, or was never migrated") from None
        if revision != HEAD:
            raise unavailable(f"the database stands at migration {revision}, not {HEAD}: run hope-planner migrate")

    async def _scrape(self) -> bytes:
        metrics = self._metrics
        try:
            async with asyncio.timeout(PROBE_S), self._database.read() as session:
                by_status = await count_by_status(session)
                inbox = await session.scalar(select(func.count()).where(InboxRow.folded_at.is_(None)))
            metrics.gauges["plans"] = ("status", {status: float(count) for status, count in by_status.items()})
            metrics.gauges["inbox"] = ("state", {"waiting": float(inbox or 0)})
            metrics.gauges["database"] = ("state", {"up": 1.0})
        except BROKEN:
            metrics.gauges = {"database": ("state", {"up": 0.0})}
        return metrics.render()
