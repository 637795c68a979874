"""The solve queue on SQLite: the plan row carries the lease, and workers look for ready rows themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from sqlalchemy import event

from planner_api.db.engine import Database, WriteSession
from planner_api.errors import DatabaseAwayError
from planner_api.solving import repository
from planner_api.solving.events import Events
from planner_api.solving.queue import GRACE_S, LEASE_S, Handler, SolveQueue
from planner_api.solving.repository import Lease
from planner_api.solving.slots import Slots

log = structlog.get_logger(__name__)

POLL_S = 0.25
"""How often an idle worker looks for work of other processes; work enqueued in its own wakes it at once."""


class LeaseQueue(SolveQueue):
    """Leases on the plan row (``UPDATE … RETURNING``), for any number of processes on one file."""

    def __init__(self, database: Database, events: Events, *, ttl_s: float = LEASE_S, grace_s: float = GRACE_S) -> None:
        super().__init__(database, events, ttl_s=ttl_s, grace_s=grace_s)
        self._ready = asyncio.Event()

    async def _carry(self, session: WriteSession, plans: Sequence[tuple[str, int]]) -> None:
        if plans:
            event.listen(session.sync_session, "after_commit", lambda _session: self._ready.set(), once=True)

    async def work(self, handler: Handler, stop: asyncio.Event, *, slots: int = 1) -> None:
        """See :class:`SolveQueue`."""
        running = Slots(slots, stop)
        while await running.free():
            self._ready.clear()
            lease = await self._next()
            if lease is not None:
                running.start(handler(lease))
            else:
                await running.wait(self._ready, POLL_S)
        await running.drain(self._grace_s)

    async def _next(self) -> Lease | None:
        try:
            # A look without the write lock first: idle workers must not hold up writers.
            async with self._database.read() as session:
                if not await repository.any_ready(session):
                    return None
            return await self._take()
        except DatabaseAwayError as error:
            log.warning("queue_unreachable", error=error.reason)
            return None
