"""What the fleet view adds up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

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
from planner_api.db.messages import message_of, messages_of
from planner_api.db.tables import ModelRow, ProfileRow
from planner_api.plans import repository as plan_rows
from planner_api.plans.ahead import per_status
from planner_api.plans.history import measured_us, p99_us
from planner_api.profiles import repository as profile_rows
from planner_api.views import drift, repository


async def summary(database: Database) -> FleetSummary:
    """The fleet in numbers."""
    async with database.read() as session:
        totals = await repository.plan_totals(session)
        median_drift = await drift.median(session)
        by_status = await plan_rows.count_by_status(session)
        devices, seen_today = await repository.count_devices(session, datetime.now(UTC) - timedelta(days=1))
        socs, unconfirmed = await repository.count_socs(session)
        return FleetSummary(
            socs=socs,
            socs_unconfirmed=unconfirmed,
            profiles=await repository.count(session, ProfileRow),
            models=await repository.count(session, ModelRow),
            devices=devices,
            devices_seen_today=seen_today,
            plans=per_status(by_status),
            provisional=totals.provisional,
            hits=int(totals.hits),
            misses=int(totals.misses),
            hit_rate=_share(totals.hits, totals.hits + totals.misses),
            median_drift=median_drift,
            missed=_share(totals.missed, totals.deadlines),
        )


async def profiles(database: Database, *, offset: int, limit: int) -> FleetProfilePage:
    """What is known of each SoC at each frequency."""
    async with database.read() as session:
        rows = await repository.profiles(session, offset=offset, limit=limit)
    page = messages_of(
        rows, lambda row: message_of(FleetProfile, row[2], soc=row.soc, established=row.established_at is not None)
    )
    return FleetProfilePage(profiles=page, next=rows.next_offset(offset))


async def models(database: Database, *, offset: int, limit: int) -> FleetModelPage:
    """Each model with the coverage, gaps and hit rate of its plans."""
    async with database.read() as session:
        rows = await repository.models(session, offset=offset, limit=limit)
        known = await profile_rows.count_pairs(session)
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
    return FleetModelPage(models=page, next=rows.next_offset(offset))


async def plans(database: Database, *, where: dict[str, str], after: str, limit: int) -> FleetPlanPage:
    """Plans with status, gap, age, hit rate and drift."""
    now = datetime.now(UTC)
    async with database.read() as session:
        rows = await repository.plans(session, where=where, after=after, limit=limit)
    page = messages_of(
        rows,
        lambda row: message_of(
            FleetPlan,
            row,
            plan_id=row.id,
            age_s=None if row.created_at is None else max(0.0, (now - row.created_at).total_seconds()),
            hit_rate=_share(row.hits, row.hits + row.misses),
            drift=drift.of_version(measured_us(row), row.makespan_us),
            p99_us=p99_us(row),
            missed=_share(row.missed, row.deadlines),
        ),
    )
    return FleetPlanPage(plans=page, next=rows.next(lambda row: row.id))


def _share(part: int | None, whole: int | None) -> float | None:
    """A part of a sum; None where there is nothing to be a part of."""
    return float((part or 0) / whole) if whole else None
