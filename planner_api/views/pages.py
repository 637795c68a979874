"""Every query behind one of the console's pages that is about no sum of the whole fleet."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.tables import (
    SERVED_VERSION,
    ContributionRow,
    DeviceRow,
    DriftRow,
    InboxRow,
    JobRow,
    ModelRow,
    ModelVersionRow,
    PlanJobRow,
    PlanRow,
    PlanVersionRow,
    ProfileRow,
    SocRow,
)
from planner_api.plans.repository import NAME, SERVED, STATUS, serves
from planner_api.views.service import plan_sums


async def contacts(session: AsyncSession, now: datetime) -> Any:
    """Devices by when they were last heard of; each but ``never`` and ``revoked`` includes the ones before."""
    seen, count = DeviceRow.last_seen_at, func.count()
    spans = {"hour": 1, "day": 24, "week": 168}
    query = select(
        count.label("devices"),
        *(count.filter(seen >= now - timedelta(hours=hours)).label(span) for span, hours in spans.items()),
        count.filter(seen.is_(None)).label("never"),
        count.filter(DeviceRow.revoked_at.is_not(None)).label("revoked"),
    ).select_from(DeviceRow)
    return (await session.execute(query)).one()


async def devices_by_soc(session: AsyncSession, limit: int) -> Sequence[tuple[str | None, int]]:
    number = func.count().label("devices")
    query = select(DeviceRow.soc, number).group_by(DeviceRow.soc).order_by(number.desc(), DeviceRow.soc).limit(limit)
    return [(soc, devices) for soc, devices in await session.execute(query)]


async def jobs(session: AsyncSession, *, running: bool, limit: int) -> Sequence[Any]:
    order = (JobRow.started_at, JobRow.id) if running else (JobRow.rank, JobRow.id)
    query = (
        select(
            *JobRow.__table__.columns, PlanRow.id.label("plan_id"), PlanRow.soc, PlanRow.frequency, NAME.label("name")
        )
        .outerjoin(PlanRow, PlanRow.id == JobRow.key)
        .where(JobRow.lease_owner.is_not(None) if running else JobRow.lease_owner.is_(None))
        .order_by(*order)
        .limit(limit)
    )
    return (await session.execute(query)).all()


async def failed_plans(session: AsyncSession, limit: int) -> Sequence[Any]:
    query = (
        select(PlanRow.id, PlanRow.soc, PlanRow.frequency, PlanRow.created_at, PlanRow.error, NAME.label("name"))
        .where(STATUS == "failed")
        .order_by(PlanRow.created_at.desc(), PlanRow.id)
        .limit(limit)
    )
    return (await session.execute(query)).all()


async def covered(session: AsyncSession, limit: int) -> Sequence[Any]:
    """The models asked for most, and for how many of the pairs that the fleet counts each has a finished plan."""
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
    query = select(*PlanRow.__table__.columns, STATUS.label("status"), NAME.label("name"))
    return (await session.execute(query.where(PlanRow.id == plan_id))).first()


async def networks(session: AsyncSession, plan_id: str) -> Sequence[Any]:
    query = select(ModelRow.hash, ModelRow.name).join(PlanJobRow, PlanJobRow.model_hash == ModelRow.hash)
    return (await session.execute(query.where(PlanJobRow.plan_id == plan_id).order_by(PlanJobRow.position))).all()


async def siblings(session: AsyncSession, hashes: Sequence[str], limit: int) -> Sequence[Any]:
    """The plans that serve a list of networks, in the version that devices get, the fastest first."""
    jobs = select(func.count()).where(PlanJobRow.plan_id == PlanRow.id).correlate(PlanRow).scalar_subquery()
    query = (
        select(PlanRow.id, PlanRow.soc, PlanRow.frequency, PlanVersionRow.version, PlanVersionRow.makespan_us)
        .join(PlanVersionRow, SERVED)
        .where(*(serves(each) for each in set(hashes)), jobs == len(hashes))
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
    query = (
        select(*DriftRow.__table__.columns, NAME.label("name"), PlanRow.hosts, SERVED_VERSION.label("version"))
        .join(PlanRow, PlanRow.id == DriftRow.plan_id)
        .where(DriftRow.device_id == device_id)
        .order_by(DriftRow.reported_at.desc(), DriftRow.plan_id)
        .limit(limit)
    )
    return (await session.execute(query)).all()


async def contributions(session: AsyncSession, device_id: str, limit: int) -> Sequence[Any]:
    rows = ContributionRow
    query = select(SocRow.name, ProfileRow.frequency, rows.uploads, rows.unused, rows.last_at)
    query = query.select_from(rows).join(ProfileRow).join(SocRow).where(rows.device_id == device_id)
    return (await session.execute(query.order_by(rows.last_at.desc()).limit(limit))).all()


async def covered_of(session: AsyncSession, model_hash: str) -> int:
    """For how many of the pairs that the fleet counts a model has a finished plan."""
    sums = plan_sums()
    return await session.scalar(select(sums.c.covered).where(sums.c.model_hash == model_hash)) or 0


async def titles(session: AsyncSession, hashes: Iterable[str]) -> dict[str, str]:
    """What models call themselves, by hash."""
    found = await session.execute(select(ModelRow.hash, ModelRow.name).where(ModelRow.hash.in_(set(hashes))))
    return {row.hash: row.name for row in found}


async def names_of(session: AsyncSession, model_hash: str, limit: int) -> Sequence[tuple[str, int]]:
    query = (
        select(ModelVersionRow.name, ModelVersionRow.version)
        .where(ModelVersionRow.model_hash == model_hash)
        .order_by(ModelVersionRow.created_at.desc(), ModelVersionRow.name)
        .limit(limit)
    )
    return [(name, version) for name, version in await session.execute(query)]
