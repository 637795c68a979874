"""Every query on plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any

from sqlalchemy import ColumnElement, case, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from hope_schema import PlanRequest
from planner_api.db.engine import WriteSession
from planner_api.db.paging import chunks
from planner_api.db.tables import JobRow, ModelRow, PlanJobRow, PlanRestsOnRow, PlanRow, PlanVersionRow
from planner_api.db.upsert import add_all, insert_or_ignore
from planner_api.plans.stored import StoredPlan

SERVED = (PlanVersionRow.plan_id == PlanRow.id) & (
    PlanVersionRow.version == func.coalesce(PlanRow.served_version, PlanRow.version)
)
"""Joins a plan with the version that devices get."""
_HISTORY = [column for name, column in PlanVersionRow.__table__.columns.items() if name not in ("etag", "body_zstd")]
LOOKED_AT = 16
"""Plans of a network on a device that are looked at for one to begin with, the latest."""
KEPT_VERSIONS = 20
"""Versions kept of a plan, the newest ones; one that is served or replaced by a release is kept beside them."""


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
    """Whether a plan serves a model, alone or beside others."""
    return exists().where(PlanJobRow.plan_id == PlanRow.id, PlanJobRow.model_hash == model_hash)


async def find(session: AsyncSession, plan_id: str) -> StoredPlan | None:
    """Return the version of a plan that is served, most often the newest; None when there is none yet."""
    query = select(PlanVersionRow).join(PlanRow, SERVED).where(PlanRow.id == plan_id)
    return _stored(await session.scalar(query))


async def find_near(session: AsyncSession, request: PlanRequest) -> StoredPlan | None:
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


async def find_version(session: AsyncSession, plan_id: str, version: int) -> StoredPlan | None:
    """Return one version of a plan; None when it is not kept (any more)."""
    return _stored(await session.get(PlanVersionRow, (plan_id, version)))


def _stored(row: PlanVersionRow | None) -> StoredPlan | None:
    return None if row is None else StoredPlan(row.plan_id, row.version, row.provisional, row.etag, row.body_zstd)


async def versions(session: AsyncSession, plan_id: str) -> Sequence[Any]:
    """Return the versions that are kept, newest first, without their bodies and with the key of the plan."""
    query = (
        select(*_HISTORY, PlanRow.model_hash, PlanRow.soc, PlanRow.frequency, PlanRow.served_version)
        .add_columns(PlanRow.version.label("newest"))
        .join(PlanRow, PlanRow.id == PlanVersionRow.plan_id)
        .where(PlanVersionRow.plan_id == plan_id)
        .order_by(PlanVersionRow.version.desc())
    )
    return (await session.execute(query)).all()


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

    ``checked`` says by SoC and frequency up to which version of the profile it was compared.
    """

    version: int
    error: str | None
    status: str
    checked: Mapping[tuple[str, str], int | None]


async def standing(session: AsyncSession, plan_id: str) -> Standing | None:
    """Return how a plan stands; None: nobody asked for it."""
    rests = PlanRestsOnRow
    query = select(PlanRow.version, PlanRow.error, STATUS, rests.soc, rests.frequency, rests.checked_version)
    query = query.outerjoin(rests, rests.plan_id == PlanRow.id).where(PlanRow.id == plan_id)
    rows = (await session.execute(query)).all()
    if not rows:
        return None
    version, error, status = rows[0][:3]
    return Standing(version, error, status, {(row.soc, row.frequency): row.checked_version for row in rows})


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


async def newest_version(session: AsyncSession, plan_id: str) -> int:
    return await session.scalar(select(PlanRow.version).where(PlanRow.id == plan_id)) or 0


async def rest_on(session: WriteSession, plan_id: str, pair: tuple[str, str], **versions: int) -> None:
    """Say on which ``profile_version`` of a profile a plan rests, and up to which ``checked_version`` it was compared.

    ``pair`` is the profile's SoC and frequency.
    """
    this = PlanRestsOnRow.plan_id == plan_id, PlanRestsOnRow.soc == pair[0], PlanRestsOnRow.frequency == pair[1]
    await session.execute(update(PlanRestsOnRow).where(*this).values(**versions))


async def request_of(session: AsyncSession, plan_id: str) -> PlanRequest | None:
    """Return the key of a plan as the request that asks for it."""
    columns = (
        PlanRow.jobs, PlanRow.soc, PlanRow.frequency, PlanRow.processors, PlanRow.hosts, PlanRow.links,
        PlanRow.method, PlanRow.objective,
    )  # fmt: skip
    row = (await session.execute(select(*columns).where(PlanRow.id == plan_id))).first()
    if row is None:
        return None
    return PlanRequest.model_validate(dict(row._mapping))


async def insert(
    session: WriteSession, plan_id: str, request: PlanRequest, now: datetime, *, profile_versions: Sequence[int] = ()
) -> bool:
    """Claim a plan's row; False when somebody was faster. Who inserts it also queues its first job.

    Of ``profile_versions``, one for each of the request's profiles, it need not be queued again, should it fail before
    it has a body.
    """
    values = {
        "id": plan_id,
        "model_hash": request.model_hash,
        "jobs": [job.model_dump(mode="json") for job in request.jobs],
        "soc": request.soc,
        "frequency": request.frequency,
        "processors": None if request.processors is None else list(request.processors),
        "hosts": [host.model_dump(mode="json") for host in request.hosts],
        "links": [link.model_dump(mode="json") for link in request.links],
        "method": request.method,
        "objective": request.objective,
        "created_at": now,
    }
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


async def next_version(session: WriteSession, plan_id: str) -> int | None:
    """Lock a plan's row until the transaction ends and return the version to store; None without a row."""
    version = await session.scalar(select(PlanRow.version).where(PlanRow.id == plan_id).with_for_update())
    return None if version is None else version + 1


async def store(session: WriteSession, plan_id: str, values: Mapping[str, Any]) -> None:
    await session.execute(update(PlanRow).where(PlanRow.id == plan_id).values(**values))


async def hold_back(session: WriteSession, plan_id: str) -> None:
    """Let devices keep the version they get, if it is a finished one and the next ones of a model wait for a release.

    Called before a better version is stored.
    """
    served = PlanJobRow.plan_id == PlanRow.id, PlanJobRow.model_hash == ModelRow.hash
    waits = exists().where(*served, ModelRow.rollout != "at_once")
    finished = PlanRow.version > 0, PlanRow.provisional.is_(False), PlanRow.served_version.is_(None)
    held = update(PlanRow).where(PlanRow.id == plan_id, *finished, waits)
    await session.execute(held.values(served_version=PlanRow.version))


async def keep_version(session: WriteSession, row: PlanVersionRow) -> None:
    """Keep a version, and forget the oldest beyond those that are kept."""
    session.add(row)
    await session.flush()
    served = select(PlanRow.served_version).where(PlanRow.id == row.plan_id).scalar_subquery()
    under_release = exists().where(PlanRow.id == row.plan_id, PlanRow.release_id.is_not(None))
    await session.execute(
        delete(PlanVersionRow).where(
            PlanVersionRow.plan_id == row.plan_id,
            PlanVersionRow.version <= row.version - KEPT_VERSIONS,
            PlanVersionRow.version != func.coalesce(served, 0),
            ~under_release,
        )
    )


async def outdated(session: AsyncSession, soc: str, frequency: str, version: int, limit: int) -> Sequence[Any]:
    """Return plans of a profile that nobody compared with this version of it, those on one older version together.

    Plans that are made for the first time just now are not among them: they compare themselves when they are stored.
    """
    rests = PlanRestsOnRow
    query = (
        select(PlanRow.id, PlanRow.jobs, PlanRow.soc, PlanRow.frequency, PlanRow.processors, PlanRow.hosts)
        .add_columns(rests.profile_version)
        .join(rests, rests.plan_id == PlanRow.id)
        .where(
            rests.soc == soc,
            rests.frequency == frequency,
            or_(PlanRow.version > 0, PlanRow.error.is_not(None)),
            or_(rests.checked_version.is_(None), rests.checked_version < version),
            or_(rests.profile_version.is_(None), rests.profile_version < version),
        )
        .order_by(rests.profile_version, PlanRow.id)
        .limit(limit)
    )
    return (await session.execute(query)).all()


async def compared(session: WriteSession, plan_ids: Sequence[str], soc: str, frequency: str, version: int) -> None:
    """Note that plans were compared with a version of a profile that they rest on."""
    rests = PlanRestsOnRow
    for some in chunks(plan_ids):
        these = rests.plan_id.in_(some), rests.soc == soc, rests.frequency == frequency
        await session.execute(update(rests).where(*these).values(checked_version=version))


async def add_hits(session: WriteSession, hits: Mapping[str, int], misses: Mapping[str, int]) -> None:
    rows = [
        {"id": plan_id, "hits": hits.get(plan_id, 0), "misses": misses.get(plan_id, 0)} for plan_id in {*hits, *misses}
    ]
    connection = await session.connection()
    await connection.run_sync(add_all, PlanRow, rows, key=("id",))
