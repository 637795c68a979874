"""Every query on plans but those of the solve queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema import Job, PlanRequest
from planner_api.db.engine import WriteSession
from planner_api.db.tables import ModelRow, PlanJobRow, PlanRestsOnRow, PlanRow, PlanVersionRow, ProfileRow, SocRow
from planner_api.db.upsert import add_all, insert_or_ignore
from planner_api.plans.stored import StoredPlan

SERVED = (PlanVersionRow.plan_id == PlanRow.id) & (
    PlanVersionRow.version == func.coalesce(PlanRow.served_version, PlanRow.version)
)
"""Joins a plan with the version that devices get."""
_HISTORY = [column for name, column in PlanVersionRow.__table__.columns.items() if name not in ("etag", "body_zstd")]
KEPT_VERSIONS = 20
"""Versions kept of a plan, the newest ones; one that is served or replaced by a release is kept beside them."""


def serves(model_hash: str) -> ColumnElement[bool]:
    """Whether a plan serves a model, alone or beside others."""
    return exists().where(PlanJobRow.plan_id == PlanRow.id, PlanJobRow.model_hash == model_hash)


async def find(session: AsyncSession, plan_id: str) -> StoredPlan | None:
    """Return the version of a plan that is served, most often the newest; None when there is none yet."""
    query = select(PlanVersionRow).join(PlanRow, SERVED).where(PlanRow.id == plan_id)
    return _stored(await session.scalar(query))


async def find_version(session: AsyncSession, plan_id: str, version: int) -> StoredPlan | None:
    """Return one version of a plan; None when it is not kept (any more)."""
    return _stored(await session.get(PlanVersionRow, (plan_id, version)))


def _stored(row: PlanVersionRow | None) -> StoredPlan | None:
    return None if row is None else StoredPlan(row.plan_id, row.version, row.provisional, row.etag, row.body_zstd)


async def served_version(session: AsyncSession, plan_id: str) -> int | None:
    """Return the number of the version that is served; None for a plan without one."""
    query = select(func.coalesce(PlanRow.served_version, PlanRow.version)).where(PlanRow.id == plan_id)
    return await session.scalar(query) or None


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


async def standing(session: AsyncSession, plan_id: str) -> tuple[str | None, str | None]:
    """Return a plan's status and why it failed; nothing of one that nobody asked for."""
    row = (await session.execute(select(PlanRow.status, PlanRow.error).where(PlanRow.id == plan_id))).first()
    return (None, None) if row is None else (row.status, row.error)


async def basis(session: AsyncSession, plan_id: str) -> int | None:
    """Return the profile version that a plan rests on; None when it has no version."""
    return await session.scalar(select(PlanRestsOnRow.profile_version).where(PlanRestsOnRow.plan_id == plan_id))


async def rest_on(session: WriteSession, plan_id: str, **versions: int) -> None:
    """Say on which ``profile_version`` a plan rests, and up to which ``checked_version`` it was compared."""
    await session.execute(update(PlanRestsOnRow).where(PlanRestsOnRow.plan_id == plan_id).values(**versions))


async def request_of(session: AsyncSession, plan_id: str) -> PlanRequest | None:
    """Return the key of a plan as the request that asks for it."""
    columns = (
        PlanRow.jobs, PlanRow.soc, PlanRow.frequency, PlanRow.processors, PlanRow.method, PlanRow.objective,
    )  # fmt: skip
    row = (await session.execute(select(*columns).where(PlanRow.id == plan_id))).first()
    if row is None:
        return None
    values = dict(row._mapping)
    values["jobs"] = tuple(Job.model_validate(job) for job in row.jobs)
    values["processors"] = None if row.processors is None else tuple(row.processors)
    return PlanRequest(**values)


async def insert(
    session: WriteSession,
    plan_id: str,
    request: PlanRequest,
    now: datetime,
    *,
    profile_version: int | None = None,
    asked_by: str | None = None,
) -> bool:
    """Claim a plan's row; False when somebody was faster. Who inserts it also enqueues its solve.

    Of ``profile_version`` it need not be queued again, should it fail before it has a body.
    """
    values = {
        "id": plan_id,
        "model_hash": request.model_hash,
        "jobs": [job.model_dump(mode="json") for job in request.jobs],
        "soc": request.soc,
        "frequency": request.frequency,
        "processors": None if request.processors is None else list(request.processors),
        "method": request.method,
        "objective": request.objective,
        "created_at": now,
        "asked_by": asked_by,
    }
    if not await insert_or_ignore(session, PlanRow, values, ["id"]):
        return False
    session.add_all(
        PlanJobRow(plan_id=plan_id, position=position, model_hash=job.model_hash)
        for position, job in enumerate(request.jobs)
    )
    session.add(
        PlanRestsOnRow(plan_id=plan_id, soc=request.soc, frequency=request.frequency, checked_version=profile_version)
    )
    await session.flush()
    return True


async def count_queued(session: AsyncSession, asked_by: str) -> int:
    """Plans one caller asked for that wait to be solved, or are being solved."""
    waiting = PlanRow.status.in_(("queued", "solving")), PlanRow.queued_at.is_not(None), PlanRow.asked_by == asked_by
    return (await session.scalar(select(func.count()).where(*waiting))) or 0


async def next_version(session: WriteSession, plan_id: str) -> int | None:
    """Lock a plan's row until the transaction ends and return the version to store; None without a row."""
    version = await session.scalar(select(PlanRow.version).where(PlanRow.id == plan_id).with_for_update())
    return None if version is None else version + 1


async def store(session: WriteSession, plan_id: str, values: Mapping[str, Any]) -> None:
    """Write columns of a plan's row."""
    await session.execute(update(PlanRow).where(PlanRow.id == plan_id).values(**values))


async def hold_back(session: WriteSession, plan_id: str) -> None:
    """Let devices keep the version they get, if it is a finished one and the model's next ones wait for a release.

    Called before a better version is stored.
    """
    waits = exists().where(ModelRow.hash == PlanRow.model_hash, ModelRow.rollout != "at_once")
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


async def outdated(session: AsyncSession, after: str, limit: int) -> Sequence[tuple[str, int]]:
    """Return (plan id, profile's version) of solved plans whose profile has a version nobody compared them with.

    In the order of their ids, from the one that follows ``after``.
    """
    rests = PlanRestsOnRow
    query = (
        select(PlanRow.id, ProfileRow.version)
        .join(rests, rests.plan_id == PlanRow.id)
        .join(SocRow, SocRow.name == rests.soc)
        .join(ProfileRow, (ProfileRow.soc_id == SocRow.id) & (ProfileRow.frequency == rests.frequency))
        .where(
            PlanRow.id > after,
            PlanRow.status.in_(("done", "failed")),
            or_(rests.checked_version.is_(None), rests.checked_version < ProfileRow.version),
            or_(rests.profile_version.is_(None), rests.profile_version < ProfileRow.version),
        )
        .order_by(PlanRow.id)
        .limit(limit)
    )
    return [(plan_id, version) for plan_id, version in await session.execute(query)]


async def add_hits(session: WriteSession, hits: Mapping[str, int], misses: Mapping[str, int]) -> None:
    """Add to the counts of plans."""
    rows = [
        {"id": plan_id, "hits": hits.get(plan_id, 0), "misses": misses.get(plan_id, 0)} for plan_id in {*hits, *misses}
    ]
    connection = await session.connection()
    await connection.run_sync(add_all, PlanRow, rows, key=("id",))
