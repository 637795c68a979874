"""The solve queue: the plan row is the job and the lock, on either database.

A plan row is ``queued`` → ``solving`` (leased) → ``done`` or ``failed``. Taking the lease raises ``attempt``, the
fencing token: only the newest lease may renew, finish, fail or hand back, so a worker that was thought dead and comes
back changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
from sqlalchemy import event

from planner_api.db.engine import Database, WriteSession
from planner_api.errors import DatabaseAwayError
from planner_api.jobs import repository
from planner_api.jobs.events import Events
from planner_api.jobs.owner import is_gone, this_process
from planner_api.jobs.repository import Lease
from planner_api.settings import Settings

log = structlog.get_logger(__name__)

POLL_S = 0.25
"""How often an idle worker looks for work of other processes; work enqueued in its own wakes it at once."""

Handler = Callable[[Lease], Awaitable[None]]
"""Solves one leased plan and ends its lease; must hand the lease back when cancelled."""


class SolveQueue:
    """Leases on plan rows, for any number of workers in any number of processes.

    Args:
        database: where the plans are.
        events: told, in the same transaction, of plans that have failed for good.
        ttl_s: how long a lease lasts unless renewed (every third of it): the longest that work of a vanished machine
            waits.
        grace_s: how long running solves may go on after a stop before they are handed back.
    """

    def __init__(self, database: Database, events: Events, *, ttl_s: float, grace_s: float) -> None:
        self._database = database
        self._events = events
        self.ttl_s = ttl_s
        self._grace_s = grace_s
        self._owner = this_process()
        self._ready = asyncio.Event()

    async def work(self, handler: Handler, stop: asyncio.Event, *, slots: int = 1) -> None:
        """Lease ready plans and pass them to ``handler``, ``slots`` at a time, until ``stop`` is set.

        Survives a database that goes away. When stopped it waits for its handlers up to the grace period, then
        cancels them.
        """
        running: set[asyncio.Future[Any]] = set()
        stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                if len(running) == slots:
                    await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
                    continue
                self._ready.clear()
                lease = await self._next()
                if lease is not None:
                    solve: asyncio.Future[Any] = asyncio.ensure_future(handler(lease))
                    running.add(solve)
                    solve.add_done_callback(running.discard)
                    solve.add_done_callback(_report)
                    continue
                ready: asyncio.Future[Any] = asyncio.ensure_future(self._ready.wait())
                await asyncio.wait({stopped, ready, *running}, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                ready.cancel()
        finally:
            stopped.cancel()
        if running:
            await asyncio.wait(running, timeout=self._grace_s)
        for unfinished in running:
            unfinished.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def enqueue(self, session: WriteSession, plan_id: str, *, priority: int = 0) -> bool:
        """Queue a plan's solve in the caller's transaction; False when it waits or is being solved already.

        Its row is new (``queued_at`` null), ``done`` or ``failed``; plans of higher priority come first.
        """
        return await self.enqueue_all(session, [plan_id], priority=priority) == 1

    async def enqueue_all(self, session: WriteSession, plan_ids: Sequence[str], *, priority: int) -> int:
        """:meth:`enqueue` for many; returns how many were queued."""
        queued = await repository.mark_queued(session, plan_ids, priority)
        if queued:
            self._wake(session)
        return len(queued)

    async def hasten(self, session: WriteSession, plan_id: str, *, priority: int) -> bool:
        """Raise the priority of a plan that waits with a lower one; False when it does not."""
        raised = await repository.raise_priority(session, plan_id, priority)
        if raised:
            self._wake(session)
        return raised

    async def renew(self, lease: Lease) -> bool:
        """Push the end of a lease; False when it is lost."""
        async with self._database.write() as session:
            return await repository.renew(session, lease, self.ttl_s)

    async def finish(self, session: WriteSession, lease: Lease) -> bool:
        """End a lease in the transaction that stores its plan; False when it is lost (then roll back)."""
        return await repository.finish(session, lease)

    async def fail(self, lease: Lease, error: str, *, permanent: bool) -> bool | None:
        """End a lease without a plan.

        Returns:
            True when the plan is queued again, False when it has failed for good (``error`` is stored), None when
            the lease was lost.
        """
        async with self._database.write() as session:
            again = await repository.fail(session, lease, error, permanent=permanent)
            if again:
                self._wake(session)
            elif again is False:
                await self._events.publish(session, lease.plan_id, 0, settled=True)
        return again

    async def hand_back(self, lease: Lease) -> bool:
        """Return an unfinished plan to the queue without blame; False when the lease was lost."""
        async with self._database.write() as session:
            held = await repository.hand_back(session, lease)
            if held:
                self._wake(session)
        return held

    async def reap(self) -> list[str]:
        """Queue the work of vanished workers again (or fail what outlived too many); returns the queued ids."""
        async with self._database.read() as session:
            holders = await repository.owners(session)
        if not holders:
            return []
        async with self._database.write() as session:
            queued, failed = await repository.reap(session, [owner for owner in holders if is_gone(owner)])
            if queued:
                self._wake(session)
            for plan_id in failed:
                await self._events.publish(session, plan_id, 0, settled=True)
        return queued

    async def _next(self) -> Lease | None:
        try:
            # A look without the write lock first: idle workers must not hold up SQLite's writers.
            async with self._database.read() as session:
                if not await repository.any_ready(session):
                    return None
            async with self._database.write() as session:
                return await repository.take(session, self._owner, self.ttl_s)
        except DatabaseAwayError as error:
            log.warning("queue_unreachable", error=error.reason)
            return None

    def _wake(self, session: WriteSession) -> None:
        """Let this process's worker look once the session's transaction commits."""
        event.listen(session.sync_session, "after_commit", lambda _session: self._ready.set(), once=True)


def _report(solve: asyncio.Future[None]) -> None:
    """Log what a handler raised: its lease then simply expires."""
    if not solve.cancelled() and (error := solve.exception()) is not None:
        log.error("solve_handler_failed", exc_info=error)


def build_queue(database: Database, settings: Settings, events: Events) -> SolveQueue:
    """The queue as the settings want it."""
    return SolveQueue(database, events, ttl_s=settings.lease_s, grace_s=settings.grace_s)
