"""Every query behind the fleet view and behind planning ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, Subquery, distinct, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.paging import Page, page_of_rows
from planner_api.db.tables import (
    DeviceRow,
    FanoutPlanRow,
    FanoutRow,
    ModelRow,
    PlanJobRow,
    PlanRow,
    PlanVersionRow,
    ProfileRow,
    SocRow,
)
from planner_api.plans.repository import SERVED, serves


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
    """``hits``, ``misses`` and ``provisional`` over all plans."""
    query = select(
        func.coalesce(func.sum(PlanRow.hits), 0).label("hits"),
        func.coalesce(func.sum(PlanRow.misses), 0).label("misses"),
        func.count().filter(PlanRow.provisional, PlanRow.version > 0).label("provisional"),
    )
    return (await session.execute(query)).one()


async def profiles(session: AsyncSession, *, offset: int, limit: int) -> Page[Any]:
    """Profiles with the name of their SoC."""
    query = (
        select(SocRow.name.label("soc"), SocRow.established_at, ProfileRow)
        .join(ProfileRow, ProfileRow.soc_id == SocRow.id)
        .order_by(SocRow.name, ProfileRow.frequency)
        .offset(offset)
    )
    return await page_of_rows(session, query, limit)


def _pairs(*columns: Any) -> Select[*tuple[Any, ...]]:
    """A query on the pairs of SoC and frequency that the fleet knows figures of, of the SoCs it counts."""
    known = ProfileRow.version > 0, SocRow.established_at.is_not(None)
    return select(*columns).select_from(ProfileRow).join(SocRow, SocRow.id == ProfileRow.soc_id).where(*known)


async def pairs(session: AsyncSession) -> list[tuple[str, str]]:
    """Every (SoC, frequency) that the fleet counts."""
    query = _pairs(SocRow.name, ProfileRow.frequency).order_by(SocRow.name, ProfileRow.frequency)
    return [(row[0], row[1]) for row in await session.execute(query)]


async def count_pairs(session: AsyncSession) -> int:
    """How many those are."""
    return (await session.scalar(_pairs(func.count()))) or 0


def plan_sums() -> Subquery:
    """What the plans that serve each model add up to; ``covered``: pairs of SoC and frequency with a finished one."""
    pair = PlanRow.soc + "\n" + PlanRow.frequency
    # A plan may run one model several times; it counts once.
    serving = select(PlanJobRow.plan_id, PlanJobRow.model_hash).distinct().subquery()
    sums = (
        select(
            serving.c.model_hash,
            func.count().label("plans"),
            func.count(distinct(pair)).filter(PlanRow.status == "done").label("covered"),
            func.count().filter(PlanRow.status == "failed").label("failed"),
            func.max(PlanVersionRow.gap).label("worst_gap"),
            func.sum(PlanRow.hits).label("hits"),
            func.sum(PlanRow.misses).label("misses"),
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
    PlanRow.id, PlanRow.model_hash, PlanRow.soc, PlanRow.frequency, PlanRow.status, PlanRow.version,
    PlanRow.provisional, PlanRow.solved_at, PlanRow.hits, PlanRow.misses, PlanRow.error,
    PlanVersionRow.makespan_us, PlanVersionRow.gap, PlanVersionRow.found_by, PlanVersionRow.profile_version,
    PlanVersionRow.timed, PlanVersionRow.log_sum,
)  # fmt: skip


async def plans(session: AsyncSession, *, where: Mapping[str, str], after: str = "", limit: int = 100) -> Page[Any]:
    """Plans in the order of their ids, with the figures of the version that devices get, but not its body.

    ``where`` holds columns of a plan with their values; a ``model_hash`` is that of any model that the plan serves.
    """
    query = select(*_PLAN_COLUMNS).outerjoin(PlanVersionRow, SERVED)
    query = query.where(PlanRow.id > after).order_by(PlanRow.id)
    for name, value in where.items():
        query = query.where(serves(value) if name == "model_hash" else getattr(PlanRow, name) == value)
    return await page_of_rows(session, query, limit)


async def add_fanout(
    session: WriteSession, fanout_id: str, model_hash: str, request: Mapping[str, Any], now: datetime
) -> None:
    """Store a planning ahead."""
    session.add(FanoutRow(id=fanout_id, model_hash=model_hash, request=dict(request), created_at=now))
    await session.flush()


async def add_fanout_plans(session: WriteSession, fanout_id: str, plan_ids: Sequence[str]) -> None:
    """Store which plans a planning ahead waits for."""
    session.add_all(FanoutPlanRow(fanout_id=fanout_id, plan_id=plan_id) for plan_id in plan_ids)
    await session.flush()


async def progress(session: AsyncSession, fanout_id: str) -> dict[str, int]:
    """Plans of a planning ahead per status."""
    query = (
        select(PlanRow.status, func.count())
        .join(FanoutPlanRow, FanoutPlanRow.plan_id == PlanRow.id)
        .where(FanoutPlanRow.fanout_id == fanout_id)
        .group_by(PlanRow.status)
    )
    return {row[0]: row[1] for row in await session.execute(query)}
