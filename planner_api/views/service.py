"""What the fleet view adds up."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Subquery, distinct, exists, func, select

from hope_schema import (
    FleetModel,
    FleetModelPage,
    FleetPlan,
    FleetPlanPage,
    FleetProfile,
    FleetProfilePage,
    FleetSummary,
)
from planner_api.db.engine import Database
from planner_api.db.paging import Page, message_of, messages_of, page_at
from planner_api.db.tables import DeviceRow, ModelRow, PlanJobRow, PlanRow, PlanVersionRow, ProfileRow, SocRow
from planner_api.plans.ahead import per_status
from planner_api.plans.history import geometric_mean
from planner_api.plans.repository import NAME, SERVED, STATUS, count_by_status, serves
from planner_api.profiles.repository import count_pairs, pairs_query
from planner_api.views import drift

_counted = SocRow.established_at.is_not(None)
_profiled = select(ProfileRow.soc_id).where(ProfileRow.soc_id == SocRow.id).exists()
_SOCS = select(func.count().filter(_counted), func.count().filter(~_counted, _profiled)).select_from(SocRow)
"""SoCs the fleet counts, and those that have a profile but too few agree on."""
_TOTALS = select(
    func.coalesce(func.sum(PlanRow.hits), 0).label("hits"),
    func.coalesce(func.sum(PlanRow.misses), 0).label("misses"),
    func.count().filter(PlanRow.provisional, PlanRow.version > 0).label("provisional"),
    func.sum(PlanVersionRow.deadlines).label("deadlines"),
    func.sum(PlanVersionRow.missed).label("missed"),
).outerjoin(PlanVersionRow, SERVED)
"""Of all plans; deadlines of the versions that devices get."""


async def summary(database: Database) -> FleetSummary:
    today = func.count().filter(DeviceRow.last_seen_at >= datetime.now(UTC) - timedelta(days=1))
    async with database.read() as session:
        totals = (await session.execute(_TOTALS)).one()
        socs, unconfirmed = (await session.execute(_SOCS)).one()
        devices, seen_today = (await session.execute(select(func.count(), today).select_from(DeviceRow))).one()
        return FleetSummary(
            socs=socs,
            socs_unconfirmed=unconfirmed,
            profiles=await session.scalar(select(func.count()).select_from(ProfileRow)) or 0,
            models=await session.scalar(select(func.count()).select_from(ModelRow)) or 0,
            devices=devices,
            devices_seen_today=seen_today,
            plans=per_status(await count_by_status(session)),
            provisional=totals.provisional,
            hits=int(totals.hits),
            misses=int(totals.misses),
            hit_rate=_share(totals.hits, totals.hits + totals.misses),
            median_drift=await drift.median(session),
            missed=_share(totals.missed, totals.deadlines),
        )


async def profiles(database: Database, *, offset: int, limit: int) -> FleetProfilePage:
    query = select(SocRow.name.label("soc"), SocRow.established_at, ProfileRow).join(ProfileRow)
    async with database.read() as session:
        rows = await page_at(session, query.order_by(SocRow.name, ProfileRow.frequency), offset, limit)
    page = messages_of(
        rows, lambda row: message_of(FleetProfile, row[2], soc=row.soc, established=row.established_at is not None)
    )
    return FleetProfilePage(profiles=page, next=rows.next)


def plan_sums() -> Subquery:
    """What the plans that serve each model add up to.

    ``covered``: of the pairs of SoC and frequency that the fleet counts, those for which a finished plan serves the
    model alone.
    """
    counted = pairs_query(ProfileRow.id).where(SocRow.name == PlanRow.soc, ProfileRow.frequency == PlanRow.frequency)
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


async def models(database: Database, *, offset: int, limit: int) -> FleetModelPage:
    sums = plan_sums()
    query = select(ModelRow.hash, ModelRow.name, ModelRow.ops, ModelRow.super_ops, ModelRow.created_at, sums)
    query = query.outerjoin(sums, sums.c.model_hash == ModelRow.hash)
    async with database.read() as session:
        rows = await page_at(session, query.order_by(ModelRow.hash), offset, limit)
        known = await count_pairs(session)
    page = messages_of(
        rows,
        lambda row: message_of(
            FleetModel,
            row,
            model_hash=row.hash,
            plans=row.plans or 0,
            coverage=(row.covered or 0) / known if known else 0.0,
            hits=int(row.hits or 0),
            misses=int(row.misses or 0),
            hit_rate=_share(row.hits, (row.hits or 0) + (row.misses or 0)),
            missed=_share(row.missed, row.deadlines),
        ),
    )
    return FleetModelPage(models=page, next=rows.next)


_PLAN_COLUMNS = (
    PlanRow.id, PlanRow.model_hash, PlanRow.soc, PlanRow.frequency, STATUS.label("status"),
    func.coalesce(PlanVersionRow.version, 0).label("version"), PlanRow.version.label("newest"),
    func.coalesce(PlanVersionRow.provisional, PlanRow.provisional).label("provisional"), PlanVersionRow.created_at,
    NAME.label("name"), PlanRow.hits, PlanRow.misses, PlanRow.error,
    PlanVersionRow.makespan_us, PlanVersionRow.gap, PlanVersionRow.found_by, PlanVersionRow.profile_version,
    PlanVersionRow.timed, PlanVersionRow.log_sum, PlanVersionRow.tails, PlanVersionRow.tail_log_sum,
    PlanVersionRow.deadlines, PlanVersionRow.missed,
)  # fmt: skip


async def plans(database: Database, *, after: str | None, limit: int, **where: str | None) -> FleetPlanPage:
    """Plans in the order of their ids, with the figures of the version that devices get.

    ``where`` holds columns of a plan with their values, none for any; a ``model_hash`` is that of any model that the
    plan serves.
    """
    now = datetime.now(UTC)
    query = select(*_PLAN_COLUMNS).outerjoin(PlanVersionRow, SERVED).order_by(PlanRow.id)
    if after is not None:
        query = query.where(PlanRow.id > after)
    for name, value in where.items():
        if value and name == "model_hash":
            query = query.where(serves(value))
        elif value:
            query = query.where((STATUS if name == "status" else getattr(PlanRow, name)) == value)
    async with database.read() as session:
        rows: Page[Any] = Page(await session.execute(query.limit(limit + 1)), limit, lambda some: some[-1].id)
    page = messages_of(
        rows,
        lambda row: message_of(
            FleetPlan,
            row,
            plan_id=row.id,
            age_s=None if row.created_at is None else max(0.0, (now - row.created_at).total_seconds()),
            hit_rate=_share(row.hits, row.hits + row.misses),
            drift=drift.of_version(geometric_mean(row.log_sum, row.timed), row.makespan_us),
            p99_us=geometric_mean(row.tail_log_sum, row.tails),
            missed=_share(row.missed, row.deadlines),
        ),
    )
    return FleetPlanPage(plans=page, next=rows.next)


def _share(part: int | None, whole: int | None) -> float | None:
    """A part of a sum; None where there is nothing to be a part of."""
    return float((part or 0) / whole) if whole else None
