"""Every query on plans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from sqlalchemy import ColumnElement, case, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from hope_schema import PlanRequest
from hope_schema.releases import Rollout
from planner_api.db.engine import WriteSession
from planner_api.db.tables import (
    SERVED_VERSION,
    JobRow,
    ModelRow,
    PlanJobRow,
    PlanRestsOnRow,
    PlanRow,
    PlanVersionRow,
)
from planner_api.db.upsert import insert_or_ignore
from planner_api.jobs.wanted import now

SERVED = (PlanVersionRow.plan_id == PlanRow.id) & (PlanVersionRow.version == SERVED_VERSION)
"""Joins a plan with the version that devices get."""
REQUEST = tuple(getattr(PlanRow, name) for name in PlanRequest.model_fields)
"""What a plan was asked for with."""
PASSES_S = 600.0
"""After this a plan may be asked for again that could not be made for want of memory, say, or time."""
LOOKED_AT = 16
"""Plans of a network on a device that are looked at for one to begin with, the latest."""


_named = (
    select(ModelRow.name)
    .join(PlanJobRow, PlanJobRow.model_hash == ModelRow.hash)
    .where(PlanJobRow.plan_id == PlanRow.id)
    .order_by(PlanJobRow.position)
    .correlate(PlanRow)
    .subquery()
)
NAME = select(func.aggregate_strings(_named.c.name, " + ")).scalar_subquery()
"""What the networks of a plan call themselves, in the order of its jobs: ``classifier + detector``."""


def serves(model_hash: str) -> ColumnElement[bool]:
    return exists().where(PlanJobRow.plan_id == PlanRow.id, PlanJobRow.model_hash == model_hash)


def rolled_out(*ways: Rollout) -> ColumnElement[bool]:
    """A plan with a network whose plans' new versions reach devices in one of these ways."""
    network = PlanJobRow.plan_id == PlanRow.id, PlanJobRow.model_hash == ModelRow.hash
    return exists().where(*network, ModelRow.rollout.in_(ways)).correlate(PlanRow)


async def find(session: AsyncSession, plan_id: str) -> PlanVersionRow | None:
    """Return the version of a plan that is served, most often the newest; None when there is none yet."""
    return await session.scalar(select(PlanVersionRow).join(PlanRow, SERVED).where(PlanRow.id == plan_id))


async def find_near(session: AsyncSession, request: PlanRequest) -> PlanVersionRow | None:
    """Return a plan of the same networks on the same device and hosts, whose links were others; None without any."""
    hosts, jobs = ([one.model_dump(mode="json") for one in ones] for ones in (request.hosts, request.jobs))
    query = (
        select(PlanRow.id, PlanRow.hosts, PlanRow.jobs)
        .where(PlanRow.model_hash == request.jobs[0].model_hash, PlanRow.version > 0)
        .where(PlanRow.soc == request.soc, PlanRow.frequency == request.frequency)
        .order_by(PlanRow.solved_at.desc())
        .limit(LOOKED_AT)
    )
    rows = (await session.execute(query)).all()
    near = next((row.id for row in rows if hosts and row.hosts == hosts and row.jobs == jobs), None)
    return None if near is None else await find(session, near)


_job = aliased(JobRow)  # beside the one that a query with a status may look at itself
STATUS = case(
    (exists().where(_job.key == PlanRow.id, _job.lease_owner.is_not(None)), "solving"),
    (exists().where(_job.key == PlanRow.id), "queued"),
    (PlanRow.error.is_not(None), "failed"),
    else_="done",
)
"""``hope_schema.PlanStatus`` of a plan: it waits to be solved, is being solved, was solved or failed."""


@dataclass(frozen=True)
class Standing:
    """How a plan stands: its newest version (0: none), why it failed, and whether anybody is to make it.

    ``retry_in_s`` are the seconds until what it failed of may have passed; None: that holds until a profile changes.
    ``checked`` says by SoC and frequency up to which version of the profile it was compared.
    """

    version: int
    error: str | None
    retry_in_s: float | None
    status: str
    checked: Mapping[tuple[str, str], int | None]

    @property
    def lasts(self) -> bool:
        """Whether it failed, of what only another version of a profile changes, or of what has not passed yet."""
        # A longer time was written before a clock was set back.
        return self.status == "failed" and (self.retry_in_s is None or 0.0 < self.retry_in_s <= PASSES_S)


async def standing(session: AsyncSession, plan_id: str) -> Standing | None:
    rests = PlanRestsOnRow
    query = select(PlanRow.version, PlanRow.error, STATUS, PlanRow.retry_at, now(session).label("moment"))
    query = query.add_columns(rests.soc, rests.frequency, rests.checked_version)
    query = query.outerjoin(rests, rests.plan_id == PlanRow.id).where(PlanRow.id == plan_id)
    rows = (await session.execute(query)).all()
    if not rows:
        return None
    version, error, status, retry_at, moment = rows[0][:5]
    retry_in_s = None if retry_at is None else (retry_at - moment).total_seconds()
    return Standing(version, error, retry_in_s, status, {(row.soc, row.frequency): row.checked_version for row in rows})


async def count_by_status(session: AsyncSession) -> dict[str, int]:
    """Plans per status; one that waits and is being solved, as the other kind of job, is being solved."""
    running = func.max(case((JobRow.lease_owner.is_not(None), 1), else_=0))
    jobs = select(running.label("running")).join(PlanRow, PlanRow.id == JobRow.key).group_by(JobRow.key).subquery()
    query = select(func.count(), func.coalesce(func.sum(jobs.c.running), 0)).select_from(jobs)
    on_their_way, solving = (await session.execute(query)).one()
    idle = ~exists().where(JobRow.key == PlanRow.id)
    failed = await session.scalar(select(func.count()).where(PlanRow.error.is_not(None), idle)) or 0
    total = await session.scalar(select(func.count()).select_from(PlanRow)) or 0
    counts = {"queued": on_their_way - solving, "solving": solving, "failed": failed}
    return {**counts, "done": total - sum(counts.values())}


async def rest_on(session: WriteSession, plan_id: str, pair: tuple[str, str], **versions: int) -> None:
    """Say on which ``profile_version`` of a profile a plan rests, and up to which ``checked_version`` it was compared.

    ``pair`` is the profile's SoC and frequency.
    """
    this = PlanRestsOnRow.plan_id == plan_id, PlanRestsOnRow.soc == pair[0], PlanRestsOnRow.frequency == pair[1]
    await session.execute(update(PlanRestsOnRow).where(*this).values(**versions))


async def request_of(session: AsyncSession, plan_id: str) -> PlanRequest | None:
    row = (await session.execute(select(*REQUEST).where(PlanRow.id == plan_id))).first()
    return None if row is None else PlanRequest.model_validate(dict(row._mapping))


async def insert(
    session: WriteSession, plan_id: str, request: PlanRequest, *, profile_versions: Sequence[int] = ()
) -> bool:
    """Claim a plan's row; False when somebody was faster. Who inserts it also queues its first job.

    Of ``profile_versions``, one for each of the request's profiles, it need not be queued again, should it fail before
    it has a body.
    """
    values = {"id": plan_id, "model_hash": request.model_hash, **request.model_dump(mode="json")}
    if not await insert_or_ignore(session, PlanRow, values, ["id"]):
        return False
    session.add_all(
        PlanJobRow(plan_id=plan_id, position=position, model_hash=job.model_hash)
        for position, job in enumerate(request.jobs)
    )
    session.add_all(
        PlanRestsOnRow(plan_id=plan_id, soc=soc, frequency=frequency, checked_version=version)
        for (soc, frequency), version in zip_longest(request.profiles, profile_versions)
    )
    await session.flush()
    return True


async def store(session: WriteSession, plan_id: str, values: Mapping[str, Any]) -> None:
    await session.execute(update(PlanRow).where(PlanRow.id == plan_id).values(**values))
