"""The queue: jobs are put with the transaction that needs them, leased, and ended with that which stores the result.

A job's row is the job and its lock: one per kind and key, there while the job waits or is under way. Taking the lease
raises ``attempt``, the fencing token: only the newest lease may renew, finish, fail or hand back, so a worker that was
thought dead and comes back changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

import structlog

from planner_api.db.engine import Database, WriteSession
from planner_api.errors import DatabaseAwayError
from planner_api.jobs import repository
from planner_api.jobs.kind import Kind, Task
from planner_api.jobs.news import News, publish
from planner_api.jobs.owner import is_gone, this_process
from planner_api.jobs.repository import Lease, Wanted

log = structlog.get_logger(__name__)

WORK, ENDED = "work", "ended"
"""Topics: there is work; a job (kind and key) has ended, in whatever way."""
URGENT = 10_000
"""Priority of what somebody waits for at this moment."""
LOOK_S = 1.0
"""Who waits for a job and hears nothing looks by itself this often: an embedded planner listens to no other process,
and one may have taken its job."""
FORGET_S = 86_400.0
"""A worker that has not looked for so long is no longer listed."""


async def put(session: WriteSession, *wanted: Wanted) -> dict[tuple[str, str], int]:
    """Queue jobs, no two of one kind and key, in the caller's transaction; return the id of each of them."""
    if not wanted:
        return {}
    ids = await (await session.connection()).run_sync(repository.put, wanted)
    await publish(session, WORK)
    return ids


async def have(database: Database, *wanted: Wanted) -> None:
    """See to it that jobs begin after what was committed before: queue those of which no run is still to come.

    Who has much to add to one job does so without its row, for which all that add would wait.
    """
    async with database.read() as session:
        to_come = await repository.to_come(session, [(one.kind, one.key) for one in wanted])
    if missing := [one for one in wanted if (one.kind, one.key) not in to_come]:
        async with database.write() as session:
            await put(session, *missing)


class Queue:
    """Jobs of any number of workers in any number of processes.

    A lease lasts ``ttl_s`` unless renewed (every third of it): the longest that work of a vanished machine waits.
    """

    def __init__(self, database: Database, news: News, *, ttl_s: float) -> None:
        self.database = database
        self.news = news
        self.ttl_s = ttl_s
        self.owner = this_process()
        self.kept: set[Lease] = set()
        """What this process is at: however late it renews a lease, it does not take it for a vanished worker's."""

    async def next(self, kinds: Sequence[str]) -> tuple[Lease | None, float | None]:
        """Lease the first job of these kinds; without one, the seconds until there may be one (None: nobody knows)."""
        try:
            # A look without the write lock first: idle workers must not hold up SQLite's writers.
            async with self.database.read() as session:
                due_in_s = await repository.due_in_s(session, kinds)
            if due_in_s is None or due_in_s > 0:
                return None, due_in_s
            async with self.database.write() as session:
                return await repository.take(session, kinds, self.owner, self.ttl_s), None
        except DatabaseAwayError as error:
            log.warning("queue_unreachable", error=error.reason)
            return None, None

    async def renew(self, lease: Lease) -> bool:
        """Push the end of a lease; False when it is lost."""
        async with self.database.write() as session:
            return await repository.renew(session, lease, self.ttl_s)

    async def finish(self, session: WriteSession, lease: Lease, *, again: bool = False, priority: int = 0) -> bool:
        """End a job in the transaction that stores its result; False when the lease is lost (then roll back)."""
        if not await repository.finish(session, lease, again=again, priority=priority):
            return False
        await publish(session, ENDED, f"{lease.kind} {lease.key}")
        await publish(session, WORK)  # what waited for its end, or its next run
        return True

    async def fail(
        self, kind: Kind, lease: Lease, error: str, *, permanent: bool, task: Task | None = None
    ) -> bool | None:
        """End a lease without a result.

        Returns:
            True when the job waits for its next try, False when it has failed for good, None when the lease was lost.
        """
        async with self.database.write() as session:
            again = False if permanent else await repository.retry(session, lease, error)
            if again:
                await publish(session, WORK)
            elif again is False:
                if not await self.finish(session, lease, priority=kind.priority):
                    return None
                await kind.failed(session, lease, task, error)
        return again

    async def hand_back(self, lease: Lease) -> bool:
        """Return an unfinished job to the queue without blame; False when the lease was lost."""
        async with self.database.write() as session:
            held = await repository.hand_back(session, lease)
            if held:
                await publish(session, WORK)
        return held

    async def reap(self, kinds: Mapping[str, Kind]) -> list[str]:
        """Let the work of vanished workers wait again (or fail what outlived too many); return the keys that wait."""
        async with self.database.read() as session:
            holders = await repository.owners(session)
        if not holders:
            return []
        async with self.database.write() as session:
            gone = [owner for owner in holders if is_gone(owner)]
            waiting, dead = await repository.reap(session, list(kinds), gone, [one.id for one in self.kept])
            if waiting:
                await publish(session, WORK)
            for lease in dead:
                kind = kinds[lease.kind]
                await self.finish(session, lease, priority=kind.priority)
                error = f"its worker vanished {repository.MAX_ABANDONED} times while at it"
                await kind.failed(session, lease, None, error)
        return waiting

    async def looked(self, slots: int) -> None:
        """Note that a worker of this process lives, and forget those that ended."""
        async with self.database.read() as session:
            gone = [row.owner for row in await repository.workers(session) if is_gone(row.owner)]
        async with self.database.write() as session:
            await repository.left(session, gone, FORGET_S)
            await repository.looked(session, self.owner, slots)

    async def left(self) -> None:
        """Note that this process's worker has ended."""
        async with self.database.write() as session:
            await repository.left(session, [self.owner], FORGET_S)

    async def ended(self, *jobs: tuple[str, str], timeout_s: float) -> bool:
        """Hasten jobs that are there, and wait, one after the other, until none is; False when that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while (job := await self._first_there(jobs)) is not None:
                    with self.news.watching(ENDED, " ".join(job)) as ended:
                        async with self.database.write() as session:
                            there = await repository.hasten(session, [job], URGENT)
                            await publish(session, WORK)
                        if there and not self.news.stopping.is_set():
                            with contextlib.suppress(TimeoutError):
                                await asyncio.wait_for(ended.wait(), LOOK_S)
                    if self.news.stopping.is_set():
                        return False
        except TimeoutError:
            return False
        return True

    async def _first_there(self, jobs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
        async with self.database.read() as session:
            return await repository.first_there(session, jobs)
