"""Jobs as they are put into the queue, with the transaction that needs them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Interval, and_, case, func, literal, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import Database, WriteSession
from planner_api.db.paging import chunks
from planner_api.db.tables import JobRow
from planner_api.db.types import UtcDateTime
from planner_api.db.upsert import upserting
from planner_api.jobs.news import publish

WORK = "work"
"""Topic: there is work."""
URGENT = 10_000
"""Priority of what somebody waits for at this moment."""
WAITS = JobRow.lease_owner.is_(None)

Job = tuple[str, str]
"""A job by its kind and key, of which there is one."""


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


def now(session: AsyncSession, delta_s: float = 0.0) -> ColumnElement[datetime]:
    """The database's own clock, shifted: workers on many machines must not compare leases by their own clocks.

    SQLite is one machine, so there the process's clock is the database's.
    """
    if session.get_bind().dialect.name == "sqlite":
        return literal(datetime.now(UTC) + timedelta(seconds=delta_s), UtcDateTime())
    return func.clock_timestamp(type_=UtcDateTime()) + literal(timedelta(seconds=delta_s), Interval())


def among(jobs: Sequence[Job]) -> ColumnElement[bool]:
    return tuple_(JobRow.kind, JobRow.key).in_(jobs)


async def put(session: WriteSession, *wanted: Wanted) -> dict[Job, int]:
    """Queue jobs, no two of one kind and key, in the caller's transaction; return the id of each of them."""
    if not wanted:
        return {}
    ids: dict[Job, int] = {}
    # In the order of their keys, so that two transactions cannot wait for each other.
    ordered = sorted(wanted, key=lambda one: (one.again, one.kind, one.key))
    for again, some in groupby(ordered, key=lambda one: one.again):
        for part in chunks(list(some)):
            for row in await session.execute(_put(session, part, again=again)):
                ids[row.kind, row.key] = row.id
    await publish(session, WORK)
    return ids


async def have(database: Database, *wanted: Wanted) -> None:
    """See to it that jobs begin after what was committed before: queue those of which no run is still to come.

    Who has much to add to one job does so without its row, for which all that add would wait.
    """
    coming = select(JobRow.kind, JobRow.key).where(among([(one.kind, one.key) for one in wanted]))
    async with database.read() as session:
        to_come = {(kind, key) for kind, key in await session.execute(coming.where(or_(WAITS, JobRow.again)))}
    if missing := [one for one in wanted if (one.kind, one.key) not in to_come]:
        async with database.write() as session:
            await put(session, *missing)


def _put(session: WriteSession, wanted: Sequence[Wanted], *, again: bool) -> Any:
    rows = [_row(session, one) for one in wanted]
    # The list of one row, unlike the row itself, is compiled to SQL anew each time.
    insert = upserting(session.get_bind().dialect.name, JobRow).values(rows if len(rows) > 1 else rows[0])
    new = insert.excluded
    changed = hastened(new.priority, new.rank, new.not_before)
    changed["again"] = or_(JobRow.again, ~WAITS) if again else JobRow.again
    there = insert.on_conflict_do_update(index_elements=["kind", "key"], set_=changed)
    return there.returning(JobRow.id, JobRow.kind, JobRow.key)


def hastened(priority: Any, rank: Any, not_before: Any) -> dict[str, Any]:
    """The columns of a job that is wanted sooner: none comes later for it, and what is under way stays as it is."""
    sooner = and_(WAITS, rank < JobRow.rank)
    # What has failed waits out its pause, whoever asks for it.
    earlier = and_(WAITS, JobRow.failures == 0, not_before < JobRow.not_before)
    return {
        "priority": case((sooner, priority), else_=JobRow.priority),
        "rank": case((sooner, rank), else_=JobRow.rank),
        "not_before": case((earlier, not_before), else_=JobRow.not_before),
    }


def _row(session: WriteSession, one: Wanted) -> dict[str, Any]:
    moments = {"rank": now(session, -one.priority), "queued_at": now(session), "not_before": now(session, one.delay_s)}
    return {name: getattr(one, name) for name in ASKED} | moments
