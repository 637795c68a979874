"""Every query of the solve queue on the plan row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Dialect, Interval, and_, func, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.chunks import chunks
from planner_api.db.engine import WriteSession
from planner_api.db.tables import PlanRow
from planner_api.db.types import UtcDateTime

MAX_FAILURES = 3
"""Failures after which a solver's death (crash, time limit, memory) is final."""

MAX_ABANDONED = 10
"""Failures after which a vanished worker is final too: that counts as a failure but says less about the problem, though
a job that takes whole machines down must not circle for ever."""

MAX_ERROR = 2000
"""Characters of a stored error."""


@dataclass(frozen=True)
class Lease:
    """The right to solve one plan until it expires or is taken by a newer attempt."""

    plan_id: str
    attempt: int


def now_on(session: AsyncSession, delta_s: float = 0.0) -> ColumnElement[datetime]:
    """The database's own clock, shifted: workers on many machines must not compare leases by their own clocks.

    SQLite is one machine, so there the process's clock is the database's.
    """
    dialect: Dialect = session.get_bind().dialect
    if dialect.name == "sqlite":
        return literal(datetime.now(UTC) + timedelta(seconds=delta_s), UtcDateTime())
    return func.clock_timestamp(type_=UtcDateTime()) + literal(timedelta(seconds=delta_s), Interval())


async def mark_queued(session: WriteSession, plan_ids: Sequence[str], priority: int) -> list[str]:
    """Queue new, finished and failed plans; returns those that were not on their way already."""
    fresh = and_(PlanRow.status == "queued", PlanRow.queued_at.is_(None))
    queued: list[str] = []
    for some in chunks(plan_ids):
        rows = await session.scalars(
            update(PlanRow)
            .where(PlanRow.id.in_(some), or_(fresh, PlanRow.status.in_(("done", "failed"))))
            .values(status="queued", queued_at=now_on(session), priority=priority, failures=0, error=None)
            .returning(PlanRow.id)
        )
        queued.extend(rows)
    return queued


async def raise_priority(session: WriteSession, plan_id: str, priority: int) -> bool:
    """Let a queued plan of lower priority wait with this one; False when there is none to raise."""
    waits = PlanRow.status == "queued", PlanRow.queued_at.is_not(None), PlanRow.priority < priority
    raised = update(PlanRow).where(PlanRow.id == plan_id, *waits).values(priority=priority)
    return await session.touches(raised.returning(PlanRow.id))


async def take(session: WriteSession, owner: str, ttl_s: float) -> Lease | None:
    """Lease the first plan in the queue; None when there is nothing to lease."""
    ready = and_(PlanRow.status == "queued", PlanRow.queued_at.is_not(None))
    first = (
        select(PlanRow.id)
        .where(ready)
        .order_by(PlanRow.priority.desc(), PlanRow.queued_at)
        .limit(1)
        .with_for_update(skip_locked=True)  # of two workers on PostgreSQL each takes another one
        .correlate(None)
        .scalar_subquery()
    )
    result = await session.execute(
        update(PlanRow)
        .where(PlanRow.id == first, ready)
        .values(status="solving", attempt=PlanRow.attempt + 1, lease_owner=owner, lease_until=now_on(session, ttl_s))
        .returning(PlanRow.id, PlanRow.attempt)
    )
    row = result.first()
    return None if row is None else Lease(row.id, row.attempt)


def _held(lease: Lease) -> ColumnElement[bool]:
    return and_(PlanRow.id == lease.plan_id, PlanRow.attempt == lease.attempt, PlanRow.status == "solving")


async def renew(session: WriteSession, lease: Lease, ttl_s: float) -> bool:
    """Push the lease's end; False when it is lost."""
    return await _change(session, lease, lease_until=now_on(session, ttl_s))


async def finish(session: WriteSession, lease: Lease) -> bool:
    """End the lease with a stored plan; False when it is lost (then the caller must roll back)."""
    return await _change(session, lease, status="done", failures=0, error=None, solves=PlanRow.solves + 1, **_RELEASED)


async def hand_back(session: WriteSession, lease: Lease) -> bool:
    """Return an unfinished plan to the queue without blame, e.g. when a worker shuts down."""
    return await _change(session, lease, status="queued", **_RELEASED)


async def fail(session: WriteSession, lease: Lease, error: str, *, permanent: bool) -> bool | None:
    """End the lease without a plan.

    Returns:
        True when the plan is queued again, False when it has failed for good (``error`` is stored), None when the
        lease was lost.
    """
    result = await session.execute(select(PlanRow.failures).where(_held(lease)).with_for_update())
    row = result.first()
    if row is None:
        return None
    again = not permanent and row.failures + 1 < MAX_FAILURES
    await _change(
        session,
        lease,
        status="queued" if again else "failed",
        queued_at=now_on(session),
        failures=row.failures + 1,
        error=error[:MAX_ERROR],
        **_RELEASED,
    )
    return again


_RELEASED: dict[str, Any] = {"lease_owner": None, "lease_until": None}


async def _change(session: WriteSession, lease: Lease, **values: Any) -> bool:
    return await session.touches(update(PlanRow).where(_held(lease)).values(**values).returning(PlanRow.id))


async def owners(session: AsyncSession) -> Sequence[str]:
    """Who holds leases now."""
    query = select(PlanRow.lease_owner).where(PlanRow.status == "solving", PlanRow.lease_owner.is_not(None)).distinct()
    return [owner for owner in (await session.execute(query)).scalars() if owner is not None]


async def reap(session: WriteSession, gone: Sequence[str]) -> tuple[list[str], list[str]]:
    """Queue again what expired or belongs to an owner known to be ``gone``.

    A plan that has outlived too many workers is stored as failed instead.

    Returns:
        The ids of what is queued, and of what has failed.
    """
    lost = and_(
        PlanRow.status == "solving", or_(PlanRow.lease_until < now_on(session), PlanRow.lease_owner.in_(list(gone)))
    )
    shared = {"failures": PlanRow.failures + 1, "queued_at": now_on(session), **_RELEASED}
    failed = await session.scalars(
        update(PlanRow)
        .where(lost, PlanRow.failures + 1 >= MAX_ABANDONED)
        .values(status="failed", error=f"its worker vanished {MAX_ABANDONED} times while solving it", **shared)
        .returning(PlanRow.id)
    )
    failed_ids = list(failed)
    queued = await session.scalars(update(PlanRow).where(lost).values(status="queued", **shared).returning(PlanRow.id))
    return list(queued), failed_ids


async def any_ready(session: AsyncSession) -> bool:
    """Whether a plan waits for a worker."""
    query = select(PlanRow.id).where(PlanRow.status == "queued", PlanRow.queued_at.is_not(None)).limit(1)
    return (await session.execute(query)).first() is not None


async def count_by_status(session: AsyncSession) -> dict[str, int]:
    """Plans per status."""
    rows = await session.execute(select(PlanRow.status, func.count()).group_by(PlanRow.status))
    return {row[0]: row[1] for row in rows}
