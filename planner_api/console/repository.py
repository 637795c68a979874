"""Every query on the console's sessions, and those behind its pages that no other view asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import delete, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.tables import (
    ConsoleSessionRow,
    ContributionRow,
    DeviceRow,
    DriftRow,
    InboxRow,
    ModelRow,
    ModelVersionRow,
    PlanRow,
    PlanVersionRow,
    ProfileRow,
    SocRow,
    TokenRow,
)
from planner_api.plans.repository import SERVED, serves
from planner_api.views.repository import plan_sums


@dataclass(frozen=True)
class FoundSession:
    """A session that has not ended, and neither has its token; without one a provider vouched for ``person``."""

    token_id: int | None
    person: str | None
    scope: Literal["admin", "viewer"]
    label: str
    expires_at: datetime


async def find(session: AsyncSession, session_hash: str) -> FoundSession | None:
    """The session with this hash, unless it or its token has ended."""
    now = datetime.now(UTC)
    query = (
        select(
            ConsoleSessionRow.token_id, ConsoleSessionRow.person, ConsoleSessionRow.scope, TokenRow.label,
            ConsoleSessionRow.expires_at,
        )
        .outerjoin(TokenRow, TokenRow.id == ConsoleSessionRow.token_id)
        .where(
            ConsoleSessionRow.session_hash == session_hash,
            ConsoleSessionRow.expires_at > now,
            TokenRow.revoked_at.is_(None),
            or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now),
        )
    )  # fmt: skip
    row: Any = (await session.execute(query)).first()
    return None if row is None else FoundSession(*row)


async def add(
    session: WriteSession,
    session_hash: str,
    *,
    token_id: int | None,
    person: str | None,
    scope: str,
    now: datetime,
    expires_at: datetime,
) -> None:
    """Store a session, and forget those that have ended."""
    await session.execute(delete(ConsoleSessionRow).where(ConsoleSessionRow.expires_at <= now))
    row = ConsoleSessionRow(
        session_hash=session_hash, token_id=token_id, person=person, scope=scope, created_at=now, expires_at=expires_at
    )
    session.add(row)
    await session.flush()


async def remove(session: WriteSession, session_hash: str) -> str | None:
    """Forget a session and return whose it was (nothing, where it was a token's); None when there was none."""
    doomed = delete(ConsoleSessionRow).where(ConsoleSessionRow.session_hash == session_hash)
    row = (await session.execute(doomed.returning(ConsoleSessionRow.person))).first()
    return None if row is None else row.person or ""


async def people(session: AsyncSession, limit: int) -> Sequence[ConsoleSessionRow]:
    """The sessions of people whom a provider vouches for, newest first; those of tokens end with their token."""
    query = (
        select(ConsoleSessionRow)
        .where(ConsoleSessionRow.person.is_not(None), ConsoleSessionRow.expires_at > datetime.now(UTC))
        .order_by(ConsoleSessionRow.created_at.desc())
        .limit(limit)
    )
    return (await session.scalars(query)).all()


@dataclass(frozen=True)
class Contacts:
    """Devices by when they were last heard of; each but ``never`` and ``revoked`` includes the ones before."""

    devices: int
    hour: int
    day: int
    week: int
    never: int
    revoked: int


async def contacts(session: AsyncSession, now: datetime) -> Contacts:
    """Count the devices."""
    seen = DeviceRow.last_seen_at
    query = select(
        func.count(),
        *(func.count().filter(seen >= now - timedelta(hours=hours)) for hours in (1, 24, 168)),
        func.count().filter(seen.is_(None)),
        func.count().filter(DeviceRow.revoked_at.is_not(None)),
    ).select_from(DeviceRow)
    row: Any = (await session.execute(query)).one()
    return Contacts(*row)


async def devices_by_soc(session: AsyncSession, limit: int) -> Sequence[tuple[str | None, int]]:
    """The SoCs with the most devices."""
    number = func.count().label("devices")
    query = select(DeviceRow.soc, number).group_by(DeviceRow.soc).order_by(number.desc(), DeviceRow.soc).limit(limit)
    return [(soc, devices) for soc, devices in await session.execute(query)]


async def plans_by_status(session: AsyncSession, status: str, limit: int) -> Sequence[Any]:
    """Plans of a status with their model's name: those that wait in the order of the queue, others newest first."""
    order = (
        (PlanRow.priority.desc(), PlanRow.queued_at) if status == "queued" else (PlanRow.queued_at.desc(), PlanRow.id)
    )
    query = (
        select(*_QUEUE_COLUMNS, ModelRow.name)
        .join(ModelRow, ModelRow.hash == PlanRow.model_hash)
        .where(PlanRow.status == status)
        .order_by(*order)
        .limit(limit)
    )
    return (await session.execute(query)).all()


_QUEUE_COLUMNS = (
    PlanRow.id, PlanRow.soc, PlanRow.frequency, PlanRow.priority, PlanRow.queued_at, PlanRow.lease_owner,
    PlanRow.attempt, PlanRow.error, PlanRow.asked_by,
)  # fmt: skip


async def covered(session: AsyncSession, limit: int) -> Sequence[Any]:
    """The models asked for most, and for how many pairs of SoC and frequency each has a finished plan."""
    sums = plan_sums()
    query = (
        select(ModelRow.hash, ModelRow.name, sums.c.covered, sums.c.failed, sums.c.worst_gap, sums.c.hits)
        .join(sums, sums.c.model_hash == ModelRow.hash)
        .order_by(sums.c.hits.desc(), ModelRow.hash)
        .limit(limit)
    )
    return (await session.execute(query)).all()


async def inbox(session: AsyncSession) -> tuple[int, datetime | None]:
    """How many uploads wait to be folded, and since when the oldest does."""
    query = select(func.count(), func.min(InboxRow.received_at)).where(InboxRow.folded_at.is_(None))
    waiting, oldest = (await session.execute(query)).one()
    return waiting, oldest


async def plan(session: AsyncSession, plan_id: str) -> Any:
    """What is known of a plan beside its body; None for an unknown one."""
    columns = (
        PlanRow.id, PlanRow.model_hash, PlanRow.soc, PlanRow.frequency, PlanRow.status, PlanRow.version,
        PlanRow.provisional, PlanRow.error, PlanRow.served_version, PlanRow.refused_version, PlanRow.release_id,
        ModelRow.name,
    )  # fmt: skip
    query = select(*columns).join(ModelRow, ModelRow.hash == PlanRow.model_hash).where(PlanRow.id == plan_id)
    return (await session.execute(query)).first()


async def siblings(session: AsyncSession, model_hash: str, limit: int) -> Sequence[Any]:
    """The finished plans of a model, the fastest first."""
    query = (
        select(PlanRow.id, PlanRow.soc, PlanRow.frequency, PlanRow.version, PlanVersionRow.makespan_us)
        .join(PlanVersionRow, SERVED)
        .where(serves(model_hash))
        .order_by(PlanVersionRow.makespan_us, PlanRow.id)
        .limit(limit)
    )
    return (await session.execute(query)).all()


async def measured(session: AsyncSession, plan_id: str, version: int, limit: int) -> Sequence[float]:
    """What the newest devices measured of a version of a plan, in microseconds."""
    query = (
        select(DriftRow.measured_us)
        .where(DriftRow.plan_id == plan_id, DriftRow.plan_version == version, DriftRow.runs > 0)
        .order_by(DriftRow.reported_at.desc(), DriftRow.device_id)
        .limit(limit)
    )
    return [us for us in await session.scalars(query) if us is not None]


async def reports(session: AsyncSession, device_id: str, limit: int) -> Sequence[Any]:
    """What a device measured of plans, newest first."""
    query = (
        select(
            DriftRow.plan_id, DriftRow.plan_version, DriftRow.predicted_us, DriftRow.measured_us, DriftRow.runs,
            DriftRow.reported_at, ModelRow.name, PlanRow.version,
        )
        .join(PlanRow, PlanRow.id == DriftRow.plan_id)
        .join(ModelRow, ModelRow.hash == PlanRow.model_hash)
        .where(DriftRow.device_id == device_id)
        .order_by(DriftRow.reported_at.desc(), DriftRow.plan_id)
        .limit(limit)
    )  # fmt: skip
    return (await session.execute(query)).all()


async def contributions(session: AsyncSession, device_id: str, limit: int) -> Sequence[Any]:
    """The profiles a device had a part in."""
    query = (
        select(
            SocRow.name, ProfileRow.frequency, ContributionRow.uploads, ContributionRow.unused, ContributionRow.last_at
        )
        .join(ProfileRow, ProfileRow.id == ContributionRow.profile_id)
        .join(SocRow, SocRow.id == ProfileRow.soc_id)
        .where(ContributionRow.device_id == device_id)
        .order_by(ContributionRow.last_at.desc())
        .limit(limit)
    )
    return (await session.execute(query)).all()


async def model(session: AsyncSession, model_hash: str) -> Any:
    """A model without its graph; None for an unknown one."""
    columns = ModelRow.hash, ModelRow.name, ModelRow.ops, ModelRow.super_ops, ModelRow.created_at
    return (await session.execute(select(*columns).where(ModelRow.hash == model_hash))).first()


async def titles(session: AsyncSession, hashes: Iterable[str]) -> dict[str, str]:
    """What models call themselves, by hash."""
    found = await session.execute(select(ModelRow.hash, ModelRow.name).where(ModelRow.hash.in_(set(hashes))))
    return {row.hash: row.name for row in found}


async def workers(session: AsyncSession) -> Sequence[Any]:
    """Who holds leases, how many, and until when the last of them runs."""
    query = (
        select(PlanRow.lease_owner, func.count().label("plans"), func.max(PlanRow.lease_until).label("until"))
        .where(PlanRow.status == "solving", PlanRow.lease_owner.is_not(None))
        .group_by(PlanRow.lease_owner)
        .order_by(PlanRow.lease_owner)
    )
    return (await session.execute(query)).all()


async def names_of(session: AsyncSession, model_hash: str, limit: int) -> Sequence[tuple[str, int]]:
    """What a model is called: (name, version), newest first."""
    query = (
        select(ModelVersionRow.name, ModelVersionRow.version)
        .where(ModelVersionRow.model_hash == model_hash)
        .order_by(ModelVersionRow.created_at.desc(), ModelVersionRow.name)
        .limit(limit)
    )
    return [(name, version) for name, version in await session.execute(query)]
