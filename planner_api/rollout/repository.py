"""Every query on releases but what a batch of reports adds to them (``rollout/counting.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.paging import Page, page
from planner_api.db.tables import (
    JobRow,
    ModelAliasRow,
    ModelRow,
    PlanJobRow,
    PlanRow,
    PlanVersionRow,
    ReleaseClaimRow,
    ReleaseDeviceRow,
    ReleasePartRow,
    ReleaseRow,
)

ACTIVE = ("running", "waiting", "paused")


def held(*, again: bool) -> ColumnElement[bool]:
    """A plan with a finished version that devices do not get yet; with ``again`` also one that was taken back."""
    newer = and_(PlanRow.served_version < PlanRow.version, PlanRow.provisional.is_(False))
    return newer if again else and_(newer, PlanRow.version > func.coalesce(PlanRow.refused_version, 0))


async def rollout(session: AsyncSession, model_hash: str) -> str | None:
    """How new versions of a model's plans reach devices; None for an unknown model."""
    return await session.scalar(select(ModelRow.rollout).where(ModelRow.hash == model_hash))


async def lock(session: WriteSession, release_id: str) -> ReleaseRow | None:
    """A release, locked until the transaction ends."""
    query = select(ReleaseRow).where(ReleaseRow.id == release_id).with_for_update()
    return (await session.scalars(query)).one_or_none()


async def releases(
    session: AsyncSession, *, states: Sequence[str] = (), before: ReleaseRow | None = None, limit: int = 1000
) -> Page[ReleaseRow]:
    query = select(ReleaseRow).order_by(ReleaseRow.created_at.desc(), ReleaseRow.id.desc())
    if states:
        query = query.where(ReleaseRow.state.in_(states))
    if before is not None:
        older = ReleaseRow.created_at < before.created_at
        query = query.where(or_(older, and_(ReleaseRow.created_at == before.created_at, ReleaseRow.id < before.id)))
    return await page(session, query, limit)


async def count_by_state(session: AsyncSession) -> dict[str, int]:
    """How many releases are under way, per state."""
    query = select(ReleaseRow.state, func.count()).where(ReleaseRow.state.in_(ACTIVE)).group_by(ReleaseRow.state)
    return dict.fromkeys(ACTIVE, 0) | {row[0]: row[1] for row in await session.execute(query)}


async def parts(
    session: AsyncSession, release_ids: Sequence[str], *, after: str = "", limit: int | None = None
) -> Sequence[ReleasePartRow]:
    query = select(ReleasePartRow).where(ReleasePartRow.release_id.in_(release_ids), ReleasePartRow.part > after)
    return (await session.scalars(query.order_by(ReleasePartRow.part).limit(limit))).all()


async def end_plans(session: WriteSession, release_id: str, *, keep: bool) -> None:
    """Let go of the plans of a release under way: they stay with the new version, or with the one before."""
    after = _of_part(ReleasePartRow.after, release_id)
    values: dict[Any, Any] = {PlanRow.release_id: None}
    if keep:
        values[PlanRow.served_version] = case((PlanRow.version == after, None), else_=after)
    else:
        values[PlanRow.refused_version] = after
    await session.execute(update(PlanRow).where(PlanRow.release_id == release_id).values(values))


async def take_back_plans(session: WriteSession, release_id: str) -> int:
    """Return plans to the version before an ended release, where its version is still served and that one kept."""
    before, after = _of_part(ReleasePartRow.before, release_id), _of_part(ReleasePartRow.after, release_id)
    kept = exists().where(PlanVersionRow.plan_id == PlanRow.id, PlanVersionRow.version == before)
    still = func.coalesce(PlanRow.served_version, PlanRow.version) == after
    returned = (
        update(PlanRow)
        .where(PlanRow.id.in_(select(ReleasePartRow.plan_id).where(ReleasePartRow.release_id == release_id)))
        .where(still, kept, PlanRow.release_id.is_(None))
        .values({PlanRow.served_version: before, PlanRow.refused_version: after})
        .returning(PlanRow.id)
    )
    return len((await session.execute(returned)).all())


def _of_part(column: Any, release_id: str) -> Any:
    found = select(column).where(ReleasePartRow.release_id == release_id, ReleasePartRow.plan_id == PlanRow.id)
    return found.correlate(PlanRow).scalar_subquery()


async def end_alias(session: WriteSession, row: ReleaseRow, *, version: int | None) -> None:
    """Let go of the alias of a release, and point it to a version where one is given."""
    values: dict[str, Any] = {"release_id": None}
    if version is not None:
        values["version"] = version
    named = ModelAliasRow.name == row.name, ModelAliasRow.alias == row.alias, ModelAliasRow.release_id == row.id
    await session.execute(update(ModelAliasRow).where(*named).values(**values))


async def take_back_alias(session: WriteSession, row: ReleaseRow) -> int:
    """Point the alias of an ended release to the version before, where it still stands for the release's."""
    named = ModelAliasRow.name == row.name, ModelAliasRow.alias == row.alias, ModelAliasRow.release_id.is_(None)
    returned = update(ModelAliasRow).where(*named, ModelAliasRow.version == row.after).values(version=row.before)
    return len((await session.execute(returned.returning(ModelAliasRow.alias))).all())


async def forget_devices(session: WriteSession, release_id: str) -> None:
    """Forget who reported about a release; the counts stay."""
    await session.execute(delete(ReleaseDeviceRow).where(ReleaseDeviceRow.release_id == release_id))
    await session.execute(delete(ReleaseClaimRow).where(ReleaseClaimRow.release_id == release_id))


async def claims(session: AsyncSession, release_id: str) -> Sequence[ReleaseClaimRow]:
    """What the devices of claims that hold fewer than half of them say of a release under way."""
    return (await session.scalars(select(ReleaseClaimRow).where(ReleaseClaimRow.release_id == release_id))).all()


async def ready_by_themselves(session: AsyncSession) -> Sequence[str]:
    """Models whose plans are released by the planner, have held versions, and none that is still being solved."""
    busy = or_(PlanRow.release_id.is_not(None), exists().where(JobRow.key == PlanRow.id))
    query = select(ModelRow.hash).where(ModelRow.rollout == "staged", _with_plan(held(again=False)), ~_with_plan(busy))
    return (await session.scalars(query)).all()


def _with_plan(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a plan that serves the model fulfils a condition."""
    return exists().where(PlanJobRow.model_hash == ModelRow.hash, PlanRow.id == PlanJobRow.plan_id, condition)
