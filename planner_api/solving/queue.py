"""The solve queue: the plan row is the lock, whatever carries the jobs.

A plan row is ``queued`` → ``solving`` (leased) → ``done`` or ``failed``. Taking the lease raises ``attempt``, the
fencing token: only the newest lease may renew, finish, fail or hand back, so a worker that was thought dead and comes
back changes nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from planner_api.db.engine import Database, WriteSession
from planner_api.settings import Settings
from planner_api.solving import repository
from planner_api.solving.events import Events
from planner_api.solving.owner import is_gone, this_process
from planner_api.solving.repository import Lease

LEASE_S = 6.0
"""How long a lease lasts unless renewed (every third of it): the longest that work of a vanished machine waits."""

GRACE_S = 20.0
"""How long running solves may go on after a stop before they are handed back."""

Handler = Callable[[Lease], Awaitable[None]]
"""Solves one leased plan and ends its lease; must hand the lease back when cancelled."""


class SolveQueue(ABC):
    """Everything that happens on the plan row; one contract-test suite holds both databases to it.

    They differ in how a row that became ready reaches a worker (``_carry``, ``work``).

    Args:
        database: where the plans are.
        events: told, in the same transaction, of plans that have failed for good.
        ttl_s: how long a lease lasts unless renewed.
        grace_s: how long running solves may go on after a stop.
    """

    def __init__(self, database: Database, events: Events, *, ttl_s: float = LEASE_S, grace_s: float = GRACE_S) -> None:
        self._database = database
        self._events = events
        self.ttl_s = ttl_s
        self._grace_s = grace_s
        self._owner = this_process()

    async def open(self) -> None:
        """Connect what the queue needs beside the database."""
        return

    async def close(self) -> None:
        """Undo :meth:`open`."""
        return

    @abstractmethod
    async def _carry(self, session: WriteSession, plans: Sequence[tuple[str, int]]) -> None:
        """Tell workers of ready ``(plan id, priority)``, once the session's transaction commits."""

    @abstractmethod
    async def work(self, handler: Handler, stop: asyncio.Event, *, slots: int = 1) -> None:
        """Lease ready plans and pass them to ``handler``, ``slots`` at a time, until ``stop`` is set.

        Survives a database that goes away. When stopped it waits for its handlers up to the grace period, then
        cancels them.
        """

    async def enqueue(self, session: WriteSession, plan_id: str, *, priority: int = 0) -> bool:
        """Queue a plan's solve in the caller's transaction; nothing is queued unless that commits.

        Args:
            session: the transaction in which the row was inserted or is known to exist.
            plan_id: a row that is new (``queued_at`` null), ``done`` or ``failed``.
            priority: higher first.

        Returns:
            Whether it was queued; False when it waits or is being solved already.
        """
        return await self.enqueue_all(session, [plan_id], priority=priority) == 1

    async def enqueue_all(self, session: WriteSession, plan_ids: Sequence[str], *, priority: int = 0) -> int:
        """:meth:`enqueue` for many; returns how many were queued."""
        queued = await repository.mark_queued(session, plan_ids, priority)
        await self._carry(session, [(plan_id, priority) for plan_id in queued])
        return len(queued)

    async def hasten(self, session: WriteSession, plan_id: str, *, priority: int) -> bool:
        """Raise the priority of a plan that waits with a lower one; False when it does not."""
        raised = await repository.raise_priority(session, plan_id, priority)
        if raised:
            await self._carry(session, [(plan_id, priority)])
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
                await self._carry(session, [(lease.plan_id, lease.priority)])
            elif again is False:
                await self._events.publish(session, lease.plan_id, 0, settled=True)
        return again

    async def hand_back(self, lease: Lease) -> bool:
        """Return an unfinished plan to the queue without blame; False when the lease was lost."""
        async with self._database.write() as session:
            held = await repository.hand_back(session, lease)
            if held:
                await self._carry(session, [(lease.plan_id, lease.priority)])
        return held

    async def reap(self) -> list[str]:
        """Queue the work of vanished workers again (or fail what outlived too many); returns the queued ids."""
        async with self._database.read() as session:
            holders = await repository.owners(session)
        if not holders:
            return []
        async with self._database.write() as session:
            queued, failed = await repository.reap(session, [owner for owner in holders if is_gone(owner)])
            await self._carry(session, queued)
            for plan_id in failed:
                await self._events.publish(session, plan_id, 0, settled=True)
        return [plan_id for plan_id, _priority in queued]

    async def _take(self, plan_id: str | None = None) -> Lease | None:
        async with self._database.write() as session:
            return await repository.take(session, self._owner, self.ttl_s, plan_id)


def build_queue(database: Database, settings: Settings, events: Events) -> SolveQueue:
    """The queue of this database's dialect."""
    # NOTE: imported here, because both build on this module, and a planner on SQLite needs no procrastinate.
    if database.dialect == "sqlite":
        from planner_api.solving.lease import LeaseQueue as Kind
    else:
        from planner_api.solving.jobs import ProcrastinateQueue as Kind  # type: ignore[assignment]
    return Kind(database, events, ttl_s=settings.lease_s, grace_s=settings.grace_s)
