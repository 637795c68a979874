"""The queue: jobs are put with the transaction that needs them, leased, and ended with that which stores the result.

A job's row is the job and its lock: one per kind and key, there while the job waits or is under way. Taking the lease
raises ``attempt``, the fencing token: only the newest lease may renew, finish, fail or hand back, so a worker that was
thought dead and comes back changes nothing.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, func, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import JobRow
from planner_api.jobs.kind import Kind, Lease, Task
from planner_api.jobs.news import News, publish
from planner_api.jobs.wanted import URGENT, WAITS, WORK, Job, among, hastened, now
from planner_api.jobs.workers import is_gone, this_process

ENDED = "ended"
"""Topic: a job (kind and key) has ended, in whatever way."""
LOOK_S = 1.0
"""Who waits for a job and hears nothing looks by itself this often: an embedded planner listens to no other process,
and one may have taken its job."""
MAX_FAILURES = 3
"""Failures after which a child's death (crash, time limit, memory) is final."""
MAX_ABANDONED = 10
"""Failures after which a vanished worker is final too. That says less about the job than a child's death does, though
a job that takes whole machines down must not circle for ever."""
RETRY_S, RETRY_MOST_S = 0.5, 60.0
"""Pause before the second try; it doubles with each failure up to the longest."""
LONGEST_LEASE_S = 660.0
"""No lease is given for longer (``Settings.lease_s``). One that ends later was written before a clock was set back."""
SET_BACK_S = 1.0
"""A job queued so far in the future was put before a clock was set back, and does not wait until it catches up."""
MAX_ERROR = 2000
"""Characters of an error that is kept."""
_RELEASED: dict[str, Any] = {"lease_owner": None, "lease_until": None, "started_at": None}
_LEASE = tuple(getattr(JobRow, name) for name in Lease.__dataclass_fields__)


async def hasten(session: WriteSession, job: Job, priority: int) -> bool:
    """Let a job that waits come next, with a priority; return whether it is there, waiting or under way."""
    sooner = hastened(priority, now(session, -priority), now(session))
    return await session.touches(update(JobRow).where(among([job])).values(sooner).returning(JobRow.id))


def _not_before(session: AsyncSession) -> ColumnElement[datetime]:
    """When a job may be begun, by a clock that may have been set back since it was queued."""
    return case((JobRow.queued_at > now(session, SET_BACK_S), now(session)), else_=JobRow.not_before)


def _ready(kinds: Sequence[str]) -> tuple[ColumnElement[bool], ...]:
    return JobRow.kind.in_(kinds), WAITS, JobRow.after.is_(None)


async def take(session: WriteSession, kinds: Sequence[str], owner: str, ttl_s: float) -> Lease | None:
    """Lease the first job of these kinds; None when there is none to begin."""
    first = (
        select(JobRow.id)
        .where(*_ready(kinds), _not_before(session) <= now(session))
        .order_by(JobRow.rank, JobRow.id)
        .limit(1)
        .with_for_update(skip_locked=True)  # of two workers on PostgreSQL each takes another one
        .correlate(None)
        .scalar_subquery()
    )
    taken = (
        update(JobRow)
        .where(JobRow.id == first, WAITS)
        .values(attempt=JobRow.attempt + 1, lease_owner=owner, lease_until=now(session, ttl_s), started_at=now(session))
        .returning(*_LEASE)
    )
    row = (await session.execute(taken)).first()
    return None if row is None else Lease(**row._mapping)


def _held(lease: Lease) -> ColumnElement[bool]:
    return and_(JobRow.id == lease.id, JobRow.attempt == lease.attempt, ~WAITS)


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
        self.no_child = ""
        """Why this process's worker had no child to do the last job in; empty: it had one, or there is no job."""

    @property
    def stands_still(self) -> bool:
        """Whether this process's worker has no child, and does not try to start one just now."""
        return bool(self.no_child) and not self.kept

    async def next(self, kinds: Sequence[str]) -> tuple[Lease | None, float | None]:
        """Lease the first job of these kinds; without one, the seconds until there may be one (None: nobody knows)."""
        # A look without the write lock first: idle workers must not hold up SQLite's writers.
        async with self.database.read() as session:
            first = select(func.min(_not_before(session)), now(session)).where(*_ready(kinds))
            begins, moment = (await session.execute(first)).one()
        if begins is None or begins > moment:
            return None, None if begins is None else (begins - moment).total_seconds()
        async with self.database.write() as session:
            return await take(session, kinds, self.owner, self.ttl_s), None

    async def renew(self, lease: Lease) -> bool:
        async with self.database.write() as session:
            renewed = update(JobRow).where(_held(lease)).values(lease_until=now(session, self.ttl_s))
            return await session.touches(renewed.returning(JobRow.id))

    async def finish(self, session: WriteSession, lease: Lease, *, again: bool = False) -> bool:
        """End a job in the transaction that stores its result; False when the lease is lost (then roll back).

        It stands in the queue anew, with priority 0, if it is to be done ``again`` or was asked for meanwhile.
        """
        query = select(JobRow.again, JobRow.started_at).where(_held(lease)).with_for_update()
        row = (await session.execute(query)).first()
        if row is None:
            return False
        if again or row.again:
            # Who asked while it was under way waits for the next run, everybody else for this one.
            waited = JobRow.after == lease.id, JobRow.queued_at <= row.started_at
            await session.execute(update(JobRow).where(*waited).values(after=None))
            renewed = dict.fromkeys(("rank", "queued_at", "not_before"), now(session))
            values = renewed | _RELEASED | {"priority": 0, "failures": 0, "again": False, "error": None}
            await session.execute(update(JobRow).where(JobRow.id == lease.id).values(values))
        else:
            await session.execute(delete(JobRow).where(JobRow.id == lease.id))
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
            failures = await session.scalar(select(JobRow.failures).where(_held(lease)).with_for_update())
            if failures is None:
                return None
            if permanent or failures + 1 >= MAX_FAILURES:
                await self.finish(session, lease)
                await kind.failed(session, lease, task, error, permanent=permanent)
                return False
            pause = now(session, min(RETRY_S * 2.0**failures, RETRY_MOST_S))
            values = {"failures": failures + 1, "error": error[:MAX_ERROR], "not_before": pause, **_RELEASED}
            await session.execute(update(JobRow).where(_held(lease)).values(values))
            await publish(session, WORK)
        return True

    async def hand_back(self, lease: Lease, behind: Job | None = None) -> bool:
        """Return an unfinished job to the queue without blame, ``behind`` another one if that is there.

        Returns:
            Whether the lease was still held.
        """
        async with self.database.write() as session:
            other = aliased(JobRow)
            first = select(other.id).where(tuple_(other.kind, other.key).in_([behind] if behind else []))
            # One that ends just now is waited for: PostgreSQL would refuse to refer to it.
            after = first.with_for_update(read=True, key_share=True).scalar_subquery()
            back = update(JobRow).where(_held(lease)).values(**_RELEASED, after=after)
            held = await session.touches(back.returning(JobRow.id))
            if held:
                await publish(session, WORK)
        return held

    async def reap(self, kinds: Mapping[str, Kind]) -> list[str]:
        """Let the work of vanished workers wait again (or fail what outlived too many); return the keys that wait."""
        async with self.database.read() as session:
            holders = (await session.scalars(select(JobRow.lease_owner).where(~WAITS).distinct())).all()
        if not holders:
            return []
        async with self.database.write() as session:
            until, gone = JobRow.lease_until, [owner for owner in holders if owner is not None and is_gone(owner)]
            ended = or_(until < now(session), until > now(session, LONGEST_LEASE_S), JobRow.lease_owner.in_(gone))
            ours = JobRow.kind.in_(list(kinds)), JobRow.id.not_in([one.id for one in self.kept])
            lost = and_(*ours, ~WAITS, ended)
            dead = select(*_LEASE).where(lost, JobRow.failures + 1 >= MAX_ABANDONED).with_for_update()
            failed = [Lease(**row._mapping) for row in await session.execute(dead)]
            values = {"failures": JobRow.failures + 1, "not_before": now(session), **_RELEASED}
            back = update(JobRow).where(lost, JobRow.failures + 1 < MAX_ABANDONED).values(values)
            waiting = list(await session.scalars(back.returning(JobRow.key)))
            if waiting:
                await publish(session, WORK)
            for lease in failed:
                error = f"its worker vanished {MAX_ABANDONED} times while at it"
                await self.finish(session, lease)
                await kinds[lease.kind].failed(session, lease, None, error, permanent=False)
        return waiting

    async def ended(self, *jobs: Job, timeout_s: float) -> bool:
        """Hasten jobs that are there, and wait, one after the other, until none is; False when that takes too long, or
        this process's worker has no child.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while (job := await self._first_there(jobs)) is not None:
                    with self.news.watching(ENDED, " ".join(job)) as ended:
                        async with self.database.write() as session:
                            there = await hasten(session, job, URGENT)
                            await publish(session, WORK)
                        if there and not self.news.stopping.is_set() and not self.stands_still:
                            with contextlib.suppress(TimeoutError):
                                await asyncio.wait_for(ended.wait(), LOOK_S)
                    if self.news.stopping.is_set() or self.stands_still:
                        return False
        except TimeoutError:
            return False
        return True

    async def _first_there(self, jobs: Sequence[Job]) -> Job | None:
        async with self.database.read() as session:
            found = await session.execute(select(JobRow.kind, JobRow.key).where(among(jobs)))
            there = {(kind, key) for kind, key in found}
        return next((job for job in jobs if job in there), None)
