"""Every query of the queue, of its workers' signs of life, and of how much waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Interval,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.tables import JobRow, WorkerRow
from planner_api.db.types import UtcDateTime
from planner_api.db.upsert import upserting

MAX_FAILURES = 3
"""Failures after which a child's death (crash, time limit, memory) is final."""
MAX_ABANDONED = 10
"""Failures after which a vanished worker is final too. That says less about the job than a child's death does, though
a job that takes whole machines down must not circle for ever."""
RETRY_S, RETRY_MOST_S = 0.5, 60.0
"""Pause before the second try; it doubles with each failure up to the longest."""
ALIVE_S = 30.0
"""A worker that has not looked for longer is taken for gone."""
LONGEST_LEASE_S = 660.0
"""No lease is given for longer (``Settings.lease_s``). One that ends later was written before a clock was set back."""
SET_BACK_S = 1.0
"""A job queued so far in the future was put before a clock was set back, and does not wait until it catches up."""
MAX_ERROR = 2000
"""Characters of an error that is kept."""


@dataclass(frozen=True)
class Wanted:
    """A job to be queued. One that waits already is neither queued twice nor put off, but may be hastened.

    It comes before a job of priority 0 that was queued ``priority`` seconds sooner; so low priorities age, and none
    waits for ever. ``after`` is the id of a job that has to end first. With ``again`` a run that is under way does not
    count: another one follows it. It is counted among the jobs of ``asked_by``.
    """

    kind: str
    key: str
    priority: int = 0
    delay_s: float = 0.0
    after: int | None = None
    again: bool = False
    asked_by: str | None = None


ASKED = "kind", "key", "priority", "after", "asked_by"
"""What a job's row says as ``Wanted`` does."""


@dataclass(frozen=True)
class Lease:
    """The right to do one job until it expires or is taken by a newer attempt, which fences this one off."""

    id: int
    attempt: int
    kind: str
    key: str
    failures: int = 0
    priority: int = 0
    asked_by: str | None = None


def _now(session: AsyncSession, delta_s: float = 0.0) -> ColumnElement[datetime]:
    """The database's own clock, shifted: workers on many machines must not compare leases by their own clocks.

    SQLite is one machine, so there the process's clock is the database's.
    """
    if session.get_bind().dialect.name == "sqlite":
        return literal(datetime.now(UTC) + timedelta(seconds=delta_s), UtcDateTime())
    return func.clock_timestamp(type_=UtcDateTime()) + literal(timedelta(seconds=delta_s), Interval())


_WAITS = JobRow.lease_owner.is_(None)


def put(connection: Connection, wanted: Sequence[Wanted]) -> dict[tuple[str, str], int]:
    """Queue jobs, no two of one kind and key, in the transaction of a connection; return the id of each."""
    ids: dict[tuple[str, str], int] = {}
    dialect = connection.dialect.name
    # In the order of their keys, so that two transactions cannot wait for each other.
    ordered = sorted(wanted, key=lambda one: (one.kind, one.key))
    for again in (False, True):
        if rows := [_row(dialect, one) for one in ordered if one.again == again]:
            ids |= {(row.kind, row.key): row.id for row in connection.execute(_put(dialect, again=again), rows)}
    return ids


def _row(dialect: str, one: Wanted) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(one, name) for name in ASKED}
    for name, delta_s in (("rank", -one.priority), ("queued_at", 0.0), ("not_before", one.delay_s)):
        shift = timedelta(seconds=delta_s)
        values[f"{name}_"] = datetime.now(UTC) + shift if dialect == "sqlite" else shift
    return values


@cache
def _put(dialect: str, *, again: bool) -> Any:
    """Queue rows as ``_row`` makes them; built once, for each upload is such a row."""
    names = "rank", "queued_at", "not_before"
    if dialect == "sqlite":
        moments: dict[str, Any] = {name: bindparam(f"{name}_", type_=UtcDateTime()) for name in names}
    else:
        now = func.clock_timestamp(type_=UtcDateTime())
        moments = {name: now + bindparam(f"{name}_", type_=Interval()) for name in names}
    told: dict[str, Any] = {name: bindparam(name) for name in ASKED}
    insert = upserting(dialect, JobRow).values(told | moments | {"again": False, "attempt": 0, "failures": 0})
    new = insert.excluded
    sooner = and_(_WAITS, new.rank < JobRow.rank)
    # What has failed waits out its pause, whoever asks for it.
    earlier = and_(_WAITS, JobRow.failures == 0, new.not_before < JobRow.not_before)
    return insert.on_conflict_do_update(
        index_elements=["kind", "key"],
        set_={
            "priority": case((sooner, new.priority), else_=JobRow.priority),
            "rank": case((sooner, new.rank), else_=JobRow.rank),
            "not_before": case((earlier, new.not_before), else_=JobRow.not_before),
            "again": or_(JobRow.again, ~_WAITS) if again else JobRow.again,
        },
    ).returning(JobRow.id, JobRow.kind, JobRow.key)


async def to_come(session: AsyncSession, jobs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Which of these (kind, key) will begin: those that wait, and those under way that another run follows."""
    named = or_(*(and_(JobRow.kind == kind, JobRow.key == key) for kind, key in jobs))
    found = await session.execute(select(JobRow.kind, JobRow.key).where(named, or_(_WAITS, JobRow.again)))
    return {(kind, key) for kind, key in found}


async def hasten(session: WriteSession, jobs: Sequence[tuple[str, str]], priority: int) -> bool:
    """Let jobs that wait come next, with a priority; return whether any of them is there, waiting or under way."""
    there = or_(*(and_(JobRow.kind == kind, JobRow.key == key) for kind, key in jobs))
    values = {"priority": priority, "rank": _now(session, -priority), "not_before": _now(session)}
    waits = _WAITS, JobRow.failures == 0
    await session.execute(update(JobRow).where(there, *waits, JobRow.rank > values["rank"]).values(values))
    await session.execute(
        update(JobRow).where(there, *waits, JobRow.not_before > _now(session)).values(not_before=_now(session))
    )
    return (await session.execute(select(JobRow.id).where(there).limit(1))).first() is not None


def _not_before(session: AsyncSession) -> ColumnElement[datetime]:
    """When a job may be begun, by a clock that may have been set back since it was queued."""
    return case((JobRow.queued_at > _now(session, SET_BACK_S), _now(session)), else_=JobRow.not_before)


def _ready(kinds: Sequence[str]) -> tuple[ColumnElement[bool], ...]:
    return JobRow.kind.in_(kinds), _WAITS, JobRow.after.is_(None)


async def due_in_s(session: AsyncSession, kinds: Sequence[str]) -> float | None:
    """Seconds until a job of these kinds may be begun, at most 0 for one that may be; None: there is none."""
    row = (await session.execute(select(func.min(_not_before(session)), _now(session)).where(*_ready(kinds)))).one()
    return None if row[0] is None else float((row[0] - row[1]).total_seconds())


async def take(session: WriteSession, kinds: Sequence[str], owner: str, ttl_s: float) -> Lease | None:
    """Lease the first job of these kinds; None when there is none to begin."""
    first = (
        select(JobRow.id)
        .where(*_ready(kinds), _not_before(session) <= _now(session))
        .order_by(JobRow.rank, JobRow.id)
        .limit(1)
        .with_for_update(skip_locked=True)  # of two workers on PostgreSQL each takes another one
        .correlate(None)
        .scalar_subquery()
    )
    taken = (
        update(JobRow)
        .where(JobRow.id == first, _WAITS)
        .values(
            attempt=JobRow.attempt + 1, lease_owner=owner, lease_until=_now(session, ttl_s), started_at=_now(session)
        )
        .returning(*(getattr(JobRow, name) for name in Lease.__dataclass_fields__))
    )
    row = (await session.execute(taken)).first()
    return None if row is None else Lease(**row._mapping)


def _held(lease: Lease) -> ColumnElement[bool]:
    return and_(JobRow.id == lease.id, JobRow.attempt == lease.attempt, ~_WAITS)


_RELEASED: dict[str, Any] = {"lease_owner": None, "lease_until": None, "started_at": None}


async def renew(session: WriteSession, lease: Lease, ttl_s: float) -> bool:
    """Push the lease's end; False when it is lost."""
    renewed = update(JobRow).where(_held(lease)).values(lease_until=_now(session, ttl_s))
    return await session.touches(renewed.returning(JobRow.id))


async def hand_back(session: WriteSession, lease: Lease) -> bool:
    """Return an unfinished job to the queue without blame; False when the lease is lost."""
    back = update(JobRow).where(_held(lease)).values(**_RELEASED)
    return await session.touches(back.returning(JobRow.id))


async def finish(session: WriteSession, lease: Lease, *, again: bool, priority: int) -> bool:
    """End a job; False when the lease is lost (then the caller must roll back).

    It stands in the queue anew, with a priority, if it is to be done ``again`` or was asked for meanwhile.
    """
    query = select(JobRow.again, JobRow.started_at).where(_held(lease)).with_for_update()
    row = (await session.execute(query)).first()
    if row is None:
        return False
    if not (again or row.again):
        await session.execute(delete(JobRow).where(JobRow.id == lease.id))
        return True
    # Who asked while it was under way waits for the next run, everybody else for this one.
    waited = JobRow.after == lease.id, JobRow.queued_at <= row.started_at
    await session.execute(update(JobRow).where(*waited).values(after=None))
    renewed = {"rank": _now(session, -priority), "queued_at": _now(session), "not_before": _now(session)}
    values = renewed | _RELEASED | {"priority": priority, "failures": 0, "again": False, "error": None}
    await session.execute(update(JobRow).where(JobRow.id == lease.id).values(values))
    return True


async def retry(session: WriteSession, lease: Lease, error: str) -> bool | None:
    """Let a failed job wait for its next try: True. False: it has failed for good, and the caller has to end it; None:
    the lease is lost.
    """
    query = select(JobRow.failures).where(_held(lease)).with_for_update()
    failures = await session.scalar(query)
    if failures is None:
        return None
    if failures + 1 >= MAX_FAILURES:
        return False
    pause_s = min(RETRY_S * 2.0**failures, RETRY_MOST_S)
    values = {"failures": failures + 1, "error": error[:MAX_ERROR], "not_before": _now(session, pause_s), **_RELEASED}
    await session.execute(update(JobRow).where(_held(lease)).values(values))
    return True


async def owners(session: AsyncSession) -> Sequence[str]:
    """Who holds leases now."""
    query = select(JobRow.lease_owner).where(~_WAITS).distinct()
    return [owner for owner in (await session.execute(query)).scalars() if owner is not None]


async def reap(
    session: WriteSession, kinds: Sequence[str], gone: Sequence[str], kept: Sequence[int] = ()
) -> tuple[list[str], list[Lease]]:
    """Let what expired of some kinds, or belongs to an owner known to be ``gone``, wait again, but for ids ``kept``.

    Returns:
        The keys of what waits, and what has outlived too many workers: the caller has to end that.
    """
    until = JobRow.lease_until
    ended = or_(until < _now(session), until > _now(session, LONGEST_LEASE_S), JobRow.lease_owner.in_(list(gone)))
    lost = and_(JobRow.kind.in_(kinds), ~_WAITS, ended, JobRow.id.not_in(kept))
    columns = [getattr(JobRow, name) for name in Lease.__dataclass_fields__]
    dead = select(*columns).where(lost, JobRow.failures + 1 >= MAX_ABANDONED).with_for_update()
    found = [Lease(**row._mapping) for row in await session.execute(dead)]
    values = {"failures": JobRow.failures + 1, "not_before": _now(session), **_RELEASED}
    back = update(JobRow).where(lost, JobRow.failures + 1 < MAX_ABANDONED).values(values).returning(JobRow.key)
    return list(await session.scalars(back)), found


async def first_there(session: AsyncSession, jobs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """The first of these (kind, key) that waits or is under way."""
    query = select(JobRow.kind, JobRow.key)
    query = query.where(or_(*(and_(JobRow.kind == kind, JobRow.key == key) for kind, key in jobs)))
    there = {(kind, key) for kind, key in await session.execute(query)}
    return next((job for job in jobs if job in there), None)


async def count_asked_by(session: AsyncSession, owner: str) -> int:
    """How many different keys' jobs of an owner wait or are under way."""
    return await session.scalar(select(func.count(JobRow.key.distinct())).where(JobRow.asked_by == owner)) or 0


async def looked(session: WriteSession, owner: str, slots: int) -> None:
    """Note that a worker lives and looks for work."""
    now = _now(session)
    insert = upserting(session.get_bind().dialect.name, WorkerRow)
    insert = insert.values(owner=owner, slots=slots, started_at=now, looked_at=now)
    await session.execute(
        insert.on_conflict_do_update(index_elements=["owner"], set_={"slots": slots, "looked_at": now})
    )


async def left(session: WriteSession, owners: Sequence[str], before_s: float) -> None:
    """Forget workers that have ended, and those that have not looked for so many seconds."""
    old = WorkerRow.looked_at < _now(session, -before_s)
    await session.execute(delete(WorkerRow).where(or_(WorkerRow.owner.in_(list(owners)), old)))


@dataclass(frozen=True)
class Seen:
    """A worker that lives, or lived a while ago; ``age_s``: since it last looked for work; ``busy``: jobs it is at."""

    owner: str
    slots: int
    started_at: datetime
    looked_at: datetime
    age_s: float
    busy: int


async def workers(session: AsyncSession) -> Sequence[Seen]:
    """The workers of a database, by the database's clock."""
    busy = select(func.count()).where(JobRow.lease_owner == WorkerRow.owner).scalar_subquery()
    columns = WorkerRow.owner, WorkerRow.slots, WorkerRow.started_at, WorkerRow.looked_at
    rows = await session.execute(select(*columns, _now(session), busy).order_by(WorkerRow.owner))
    return [
        Seen(owner, slots, started_at, looked_at, max(0.0, (now - looked_at).total_seconds()), count)
        for owner, slots, started_at, looked_at, now, count in rows
    ]


async def count_looking(session: AsyncSession) -> Mapping[str, float]:
    """How many workers look for work."""
    return {"looking": sum(worker.age_s < ALIVE_S for worker in await workers(session))}


async def count_by_state(session: AsyncSession) -> Mapping[str, float]:
    """How many jobs wait, and how many are under way."""
    query = select(func.count().filter(_WAITS), func.count().filter(~_WAITS)).select_from(JobRow)
    waiting, running = (await session.execute(query)).one()
    return {"waiting": waiting, "running": running}
