"""The rules of planning ahead, and what the fleet view adds up."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import get_args

from hope_schema import (
    Fanout,
    FanoutRequest,
    FleetModel,
    FleetModelPage,
    FleetPlan,
    FleetPlanPage,
    FleetProfile,
    FleetProfilePage,
    FleetSummary,
    Job,
    PlanRequest,
)
from hope_schema.fleet import PlanStatus
from planner_api.db.engine import Database
from planner_api.db.messages import message_of
from planner_api.db.tables import FanoutRow, ModelRow, ProfileRow
from planner_api.devices.audit.service import Actor, record
from planner_api.errors import NotFoundError, model_unknown
from planner_api.jobs.queue import SolveQueue
from planner_api.jobs.repository import count_by_status
from planner_api.models import repository as model_rows
from planner_api.plans import repository as plan_rows
from planner_api.plans.key import normalised, plan_id
from planner_api.profiles import repository as profile_rows
from planner_api.profiles.known import Known
from planner_api.views import drift, repository

MAX_NAMED = 64
"""Processors a request may name."""
FANOUT_PRIORITY = 0
"""A device that waits for its plan comes first (``plans.making.DEVICE_WAITS``)."""


async def plan_ahead(
    database: Database, queue: SolveQueue, model_hash: str, request: FanoutRequest, actor: Actor
) -> Fanout:
    """Queue the planning of one model for every SoC and frequency known, all or nothing.

    Each is planned under the key that a device asks with: all processors that its profile lists. A plan that exists
    already, whatever became of it, is not solved again.

    Raises:
        NotFoundError: an unknown model.
    """
    fanout_id, now = f"f-{secrets.token_hex(12)}", datetime.now(UTC)
    async with database.read() as session:
        if not await model_rows.exists(session, model_hash):
            raise model_unknown(model_hash)
        known = await repository.pairs(session)
    wanted = {}
    for soc, frequency in known:
        async with database.read() as session:
            found = await profile_rows.current(session, soc, frequency)
        if found is None:
            continue
        profile = await asyncio.to_thread(Known.read, found[1])
        key = normalised(
            PlanRequest(
                jobs=(Job(model_hash=model_hash),),
                soc=soc,
                frequency=frequency,
                processors=tuple(profile.kinds) if 0 < len(profile.kinds) <= MAX_NAMED else None,
                method=request.method,
            )
        )
        wanted[plan_id(key)] = (key, profile.version)
    async with database.write() as session:
        await repository.add_fanout(session, fanout_id, model_hash, request.model_dump(mode="json"), now)
        # In the order of their ids, so that two at once cannot wait for each other.
        ids = sorted(wanted)
        fresh = []
        for wanted_id in ids:
            key, version = wanted[wanted_id]
            if await plan_rows.insert(session, wanted_id, key, now, profile_version=version):
                fresh.append(wanted_id)
        await repository.add_fanout_plans(session, fanout_id, ids)
        await queue.enqueue_all(session, fresh, priority=FANOUT_PRIORITY)
        await record(session, actor, "plans.ahead", model_hash, fanout=fanout_id, plans=len(ids), queued=len(fresh))
    return await progress(database, fanout_id)


async def progress(database: Database, fanout_id: str) -> Fanout:
    """How far a planning ahead is. Raises NotFoundError for an unknown one."""
    async with database.read() as session:
        row = await session.get(FanoutRow, fanout_id)
        if row is None:
            raise NotFoundError("fanout-unknown", f"no {fanout_id}: `hope-planner models plan HASH` plans ahead")
        counts = await repository.progress(session, fanout_id)
    by = _per_status(counts)
    return Fanout(
        fanout_id=row.id,
        model_hash=row.model_hash,
        created_at=row.created_at,
        total=sum(counts.values()),
        finished=by["queued"] + by["solving"] == 0,
        **by,
    )


async def summary(database: Database) -> FleetSummary:
    """The fleet in numbers."""
    async with database.read() as session:
        totals = await repository.plan_totals(session)
        median_drift = await drift.median(session)
        by_status = await count_by_status(session)
        devices, seen_today = await repository.count_devices(session, datetime.now(UTC) - timedelta(days=1))
        socs, unconfirmed = await repository.count_socs(session)
        return FleetSummary(
            socs=socs,
            socs_unconfirmed=unconfirmed,
            profiles=await repository.count(session, ProfileRow),
            models=await repository.count(session, ModelRow),
            devices=devices,
            devices_seen_today=seen_today,
            plans=_per_status(by_status),
            provisional=totals.provisional,
            hits=int(totals.hits),
            misses=int(totals.misses),
            hit_rate=_rate(totals.hits, totals.misses),
            median_drift=median_drift,
        )


async def profiles(database: Database, *, offset: int, limit: int) -> FleetProfilePage:
    """What is known of each SoC at each frequency."""
    async with database.read() as session:
        rows = await repository.profiles(session, offset=offset, limit=limit)
    page = tuple(
        message_of(FleetProfile, row, soc=soc, established=established_at is not None)
        for soc, established_at, row in rows
    )
    return FleetProfilePage(profiles=page, next=rows.next_offset(offset))


async def models(database: Database, *, offset: int, limit: int) -> FleetModelPage:
    """Each model with the coverage, gaps and hit rate of its plans."""
    async with database.read() as session:
        rows = await repository.models(session, offset=offset, limit=limit)
        known = await repository.count_pairs(session)
    page = tuple(
        message_of(
            FleetModel,
            row,
            model_hash=row.hash,
            plans=row.plans or 0,
            coverage=min(1.0, (row.covered or 0) / known) if known else 0.0,
            hits=int(row.hits or 0),
            misses=int(row.misses or 0),
            hit_rate=_rate(row.hits or 0, row.misses or 0),
        )
        for row in rows
    )
    return FleetModelPage(models=page, next=rows.next_offset(offset))


async def plans(database: Database, *, where: dict[str, str], after: str, limit: int) -> FleetPlanPage:
    """Plans with status, gap, age, hit rate and drift."""
    now = datetime.now(UTC)
    async with database.read() as session:
        rows = await repository.plans(session, where=where, after=after, limit=limit)
    page = tuple(
        message_of(
            FleetPlan,
            row,
            plan_id=row.id,
            age_s=None if row.solved_at is None else max(0.0, (now - row.solved_at).total_seconds()),
            hit_rate=_rate(row.hits, row.misses),
            drift=drift.of_version(drift.measured_us(row), row.makespan_us),
        )
        for row in rows
    )
    return FleetPlanPage(plans=page, next=rows.next(lambda row: row.id))


def _per_status(counts: Mapping[str, int]) -> dict[PlanStatus, int]:
    return {status: counts.get(status, 0) for status in get_args(PlanStatus)}


def _rate(hits: int, misses: int) -> float | None:
    return hits / (hits + misses) if hits + misses else None
