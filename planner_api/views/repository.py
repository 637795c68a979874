"""Every query behind the fleet view."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Subquery, distinct, exists, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.paging import Page, page_of_rows
from planner_api.db.tables import DeviceRow, ModelRow, PlanJobRow, PlanRow, PlanVersionRow, ProfileRow, SocRow
from planner_api.plans.repository import NAME, SERVED, STATUS, serves
from planner_api.profiles import repository as profile_rows


async def count(session: AsyncSession, table: type[ProfileRow | ModelRow]) -> int:
    """Rows of a table."""
    return (await session.scalar(select(func.count()).select_from(table))) or 0


async def count_socs(session: AsyncSession) -> tuple[int, int]:
    """SoCs the fleet counts, and those that have a profile but too few agree on."""
    counted = SocRow.established_at.is_not(None)
    profiled = select(ProfileRow.soc_id).where(ProfileRow.soc_id == SocRow.id).exists()
    query = select(func.count().filter(counted), func.count().filter(~counted, profiled)).select_from(SocRow)
    established, unconfirmed = (await session.execute(query)).one()
    return established, unconfirmed


async def count_devices(session: AsyncSession, since: datetime) -> tuple[int, int]:
    """Devices, and those of them seen since then."""
    query = select(func.count(), func.count().filter(DeviceRow.last_seen_at >= since)).select_from(DeviceRow)
    devices, seen = (await session.execute(query)).one()
    return devices, seen


async def plan_totals(session: AsyncSession) -> Any:
    """``hits``, ``misses`` and ``provisional`` over all plans; ``deadlines`` and ``missed`` of those served."""
    query = select(
        func.coalesce(func.sum(PlanRow.hits), 0).label("hits"),
        func.coalesce(func.sum(PlanRow.misses), 0).label("misses"),
        func.count().filter(PlanRow.provisional, PlanRow.version > 0).label("provisional"),
        func.sum(PlanVersionRow.deadlines).label("deadlines"),
        func.sum(PlanVersionRow.missed).label("missed"),
    ).outerjoin(PlanVersionRow, SERVED)
    return (await session.execute(query)).one()


async def profiles(session: AsyncSession, *, offset: int, limit: int) -> Page[Any]:
    """Profiles with the name of their SoC."""
    query = (
        select(SocRow.name.label("soc"), SocRow.established_at, ProfileRow)
        .join(ProfileRow)
        .order_by(SocRow.name, ProfileRow.frequency)
        .offset(offset)
    )
    return await page_of_rows(session, query, limit)


def plan_sums() -> Subquery:
    """What the plans that serve each model add up to.

    ``covered``: of the pairs of SoC and frequency that the fleet counts, those for which a finished plan serves the
    model alone.
    """
    counted = profile_rows.pairs_query(ProfileRow.id).where(
        SocRow.name == PlanRow.soc, ProfileRow.frequency == PlanRow.frequency
    )
    joint = exists().where(PlanJobRow.plan_id == PlanRow.id, PlanJobRow.position > 0)
    finished = PlanVersionRow.provisional.is_(False), counted.correlate(PlanRow).exists(), ~joint
    pair = PlanRow.soc + "\n" + PlanRow.frequency
    # A plan may run one model several times; it counts once.
    serving = select(PlanJobRow.plan_id, PlanJobRow.model_hash).distinct().subquery()
    sums = (
        select(
            serving.c.model_hash,
            func.count().label("plans"),
            func.count(distinct(pair)).filter(*finished).label("covered"),
            func.count().filter(STATUS == "failed").label("failed"),
            func.max(PlanVersionRow.gap).label("worst_gap"),
            func.sum(PlanRow.hits).label("hits"),
            func.sum(PlanRow.misses).label("misses"),
            func.sum(PlanVersionRow.deadlines).label("deadlines"),
            func.sum(PlanVersionRow.missed).label("missed"),
        )
        .join(PlanRow, PlanRow.id == serving.c.plan_id)
        .outerjoin(PlanVersionRow, SERVED)
    )
    return sums.group_by(serving.c.model_hash).subquery()


async def models(session: AsyncSession, *, offset: int, limit: int) -> Page[Any]:
    """Models with what their plans add up to."""
    sums = plan_sums()
    query = (
        select(ModelRow.hash, ModelRow.name, ModelRow.ops, ModelRow.super_ops, ModelRow.created_at, sums)
        .outerjoin(sums, sums.c.model_hash == ModelRow.hash)
        .order_by(ModelRow.hash)
        .offset(offset)
    )
    return await page_of_rows(session, query, limit)


_PLAN_COLUMNS = (
    PlanRow.id, PlanRow.model_hash, PlanRow.soc, PlanRow.frequency, STATUS.label("status"),
    func.coalesce(PlanVersionRow.version, 0).label("version"), PlanRow.version.label("newest"),
    func.coalesce(PlanVersionRow.provisional, PlanRow.provisional).label("provisional"), PlanVersionRow.created_at,
    NAME.label("name"), PlanRow.hits, PlanRow.misses, PlanRow.error,
    PlanVersionRow.makespan_us, PlanVersionRow.gap, PlanVersionRow.found_by, PlanVersionRow.profile_version,
    PlanVersionRow.timed, PlanVersionRow.log_sum, PlanVersionRow.tails, PlanVersionRow.tail_log_sum,
    PlanVersionRow.deadlines, PlanVersionRow.missed,
)  # fmt: skip


async def plans(session: AsyncSession, *, where: Mapping[str, str], after: str = "", limit: int = 100) -> Page[Any]:
    """Plans in the order of their ids, with the figures of the version that devices get, but not its body.

    ``where`` holds columns of a plan with their values; a ``model_hash`` is that of any model that the plan serves.
    """
    query = select(*_PLAN_COLUMNS).outerjoin(PlanVersionRow, SERVED)
    query = query.where(PlanRow.id > after).order_by(PlanRow.id)
    for name, value in where.items():
        if name == "model_hash":
            query = query.where(serves(value))
        else:
            query = query.where((STATUS if name == "status" else getattr(PlanRow, name)) == value)
    return await page_of_rows(session, query, limit)
