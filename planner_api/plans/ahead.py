"""Planning ahead: one model for every SoC and frequency that the fleet counts, and how far that is."""

import asyncio
import secrets
from collections.abc import Mapping
from typing import get_args

from sqlalchemy import func, select

from hope_schema import Fanout, FanoutRequest, Job, PlanRequest
from hope_schema.fleet import PlanStatus
from planner_api.db.engine import Database, found
from planner_api.db.tables import FanoutPlanRow, FanoutRow, PlanRow
from planner_api.devices.audit import record
from planner_api.errors import unknown
from planner_api.jobs.wanted import Wanted, put
from planner_api.models import repository as model_rows
from planner_api.plans import repository as plan_rows
from planner_api.plans.key import keyed
from planner_api.plans.repository import STATUS
from planner_api.plans.solve import BETTER
from planner_api.profiles import repository as profile_rows
from planner_api.profiles.known import Known
from planner_api.web.principal import Actor

MAX_NAMED = 64
"""Processors a request may name."""


async def plan_ahead(database: Database, model_hash: str, request: FanoutRequest, actor: Actor) -> Fanout:
    """Queue the planning of one model for every SoC and frequency known, all or nothing.

    Each is planned under the key that a device asks with: all processors that its profile lists. A plan that exists
    already, whatever became of it, is not solved again.

    Raises:
        NotFoundError: an unknown model.
    """
    fanout_id = f"f-{secrets.token_hex(12)}"
    async with database.read() as session:
        if not await model_rows.exists(session, model_hash):
            raise unknown("model", model_hash)
        known = await profile_rows.pairs(session)
    wanted = {}
    for soc, frequency in known:
        async with database.read() as session:
            current = await profile_rows.current(session, soc, frequency)
        if current is None:
            continue
        profile = await asyncio.to_thread(Known.read, current[1])
        key, wanted_id = keyed(
            PlanRequest(
                jobs=(Job(model_hash=model_hash),),
                soc=soc,
                frequency=frequency,
                processors=tuple(profile.processors) if 0 < len(profile.processors) <= MAX_NAMED else None,
                method=request.method,
            )
        )
        wanted[wanted_id] = (key, profile.version)
    async with database.write() as session:
        session.add(FanoutRow(id=fanout_id, model_hash=model_hash, request=request.model_dump(mode="json")))
        await session.flush()
        ids, fresh = sorted(wanted), []  # in their order, so that two at once cannot wait for each other
        for wanted_id in ids:
            key, version = wanted[wanted_id]
            if await plan_rows.insert(session, wanted_id, key, profile_versions=[version]):
                fresh.append(wanted_id)
        session.add_all(FanoutPlanRow(fanout_id=fanout_id, plan_id=wanted_id) for wanted_id in ids)
        await session.flush()
        await put(session, *(Wanted(BETTER, wanted_id) for wanted_id in fresh))
        await record(session, actor, "plans.ahead", model_hash, fanout=fanout_id, plans=len(ids), queued=len(fresh))
    return await progress(database, fanout_id)


async def progress(database: Database, fanout_id: str) -> Fanout:
    """How far a planning ahead is. Raises NotFoundError for an unknown one."""
    async with database.read() as session:
        row = await found(session, FanoutRow, fanout_id, "fanout")
        query = select(STATUS.label("status"), func.count()).join(FanoutPlanRow, FanoutPlanRow.plan_id == PlanRow.id)
        query = query.where(FanoutPlanRow.fanout_id == fanout_id).group_by("status")
        counts: dict[str, int] = {row[0]: row[1] for row in await session.execute(query)}
    by = per_status(counts)
    return Fanout(
        fanout_id=row.id,
        model_hash=row.model_hash,
        created_at=row.created_at,
        total=sum(counts.values()),
        finished=by["queued"] + by["solving"] == 0,
        **by,
    )


def per_status(counts: Mapping[str, int]) -> dict[PlanStatus, int]:
    """Counts of plans with a zero for every status that none is in."""
    return {status: counts.get(status, 0) for status in get_args(PlanStatus)}
