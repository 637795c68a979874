"""Every query on releases but what a batch of reports adds to them (``rollout/counting.py``)."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Update, and_, case, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.paging import Page
from planner_api.db.tables import (
    SERVED_VERSION,
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
from planner_api.plans.repository import rolled_out

ACTIVE = ("running", "waiting", "paused")


def held(*, again: bool) -> ColumnElement[bool]:
    """A plan with a finished version that devices do not get yet; with ``again`` also one that was taken back."""
    newer = and_(PlanRow.served_version < PlanRow.version, PlanRow.provisional.is_(False))
    return newer if again else and_(newer, PlanRow.version > func.coalesce(PlanRow.refused_version, 0))


def by_itself() -> ColumnElement[bool]:
    """A plan that the planner may release by itself: none of its networks is held for an admin."""
    return ~rolled_out("held")


async def lock(session: WriteSession, release_id: str) -> ReleaseRow | None:
    query = select(ReleaseRow).where(ReleaseRow.id == release_id).with_for_update()
    return (await session.scalars(query)).one_or_none()


async def releases(
    session: AsyncSession, *, states: Sequence[str] = (), before: ReleaseRow | None = None, limit: int
) -> Page[ReleaseRow]:
    query = select(ReleaseRow).order_by(ReleaseRow.created_at.desc(), ReleaseRow.id.desc())
    if states:
        query = query.where(ReleaseRow.state.in_(states))
    if before is not None:
        older = ReleaseRow.created_at < before.created_at
        query = query.where(or_(older, and_(ReleaseRow.created_at == before.created_at, ReleaseRow.id < before.id)))
    return Page(await session.scalars(query.limit(limit + 1)), limit, lambda some: some[-1].id)


async def under_way(session: AsyncSession) -> Sequence[str]:
    return (await session.scalars(select(ReleaseRow.id).where(ReleaseRow.state.in_(ACTIVE)))).all()


async def count_by_state(session: AsyncSession) -> dict[str, int]:
    query = select(ReleaseRow.state, func.count()).where(ReleaseRow.state.in_(ACTIVE)).group_by(ReleaseRow.state)
    return dict.fromkeys(ACTIVE, 0) | {row[0]: row[1] for row in await session.execute(query)}


async def parts(session: AsyncSession, release_ids: Sequence[str]) -> Sequence[ReleasePartRow]:
    query = select(ReleasePartRow).where(ReleasePartRow.release_id.in_(release_ids))
    return (await session.scalars(query.order_by(ReleasePartRow.part))).all()


async def let_go(session: WriteSession, row: ReleaseRow, *, keep: bool) -> None:
    """Let go of what a release under way took: it stays with the new version, or with the one before.

    A plan that has a newer one meanwhile, which waits for no release, goes on to that.
    """
    if row.alias is None:
        after = _of_part(ReleasePartRow.after, row.id)
        newer = and_(PlanRow.version > after, ~rolled_out("staged", "held"))
        stays = case((PlanRow.version == after, None), else_=after) if keep else PlanRow.served_version
        values: dict[Any, Any] = {PlanRow.release_id: None, PlanRow.served_version: case((newer, None), else_=stays)}
        values |= {} if keep else {PlanRow.refused_version: after}
        await session.execute(update(PlanRow).where(PlanRow.release_id == row.id).values(values))
    else:
        moved = {"version": row.after} if keep else {}
        await session.execute(_alias(row, row.id).values(release_id=None, **moved))
    for table in (ReleaseDeviceRow, ReleaseClaimRow):  # who reported about it; the counts stay
        await session.execute(delete(table).where(table.release_id == row.id))


async def take_back(session: WriteSession, row: ReleaseRow) -> bool:
    """Return to the version before an ended release what still follows it; False where nothing does any more.

    A plan does where that version is still kept.
    """
    if row.alias is not None:
        returned = _alias(row, None).where(ModelAliasRow.version == row.after).values(version=row.before)
        return await session.touches(returned.returning(ModelAliasRow.alias))
    before, after = _of_part(ReleasePartRow.before, row.id), _of_part(ReleasePartRow.after, row.id)
    kept = exists().where(PlanVersionRow.plan_id == PlanRow.id, PlanVersionRow.version == before)
    still = after == SERVED_VERSION
    theirs = select(ReleasePartRow.plan_id).where(ReleasePartRow.release_id == row.id)
    plans = update(PlanRow).where(PlanRow.id.in_(theirs), still, kept, PlanRow.release_id.is_(None))
    plans = plans.values({PlanRow.served_version: before, PlanRow.refused_version: after})
    return await session.touches(plans.returning(PlanRow.id))


def _of_part(column: Any, release_id: str) -> Any:
    found = select(column).where(ReleasePartRow.release_id == release_id, ReleasePartRow.plan_id == PlanRow.id)
    return found.correlate(PlanRow).scalar_subquery()


def _alias(row: ReleaseRow, release_id: str | None) -> Update:
    """The update of a release's alias, while that is in this release, or in none."""
    named = ModelAliasRow.name == row.name, ModelAliasRow.alias == row.alias
    return update(ModelAliasRow).where(*named, ModelAliasRow.release_id.is_not_distinct_from(release_id))


async def said(session: AsyncSession, release_id: str) -> tuple[Sequence[ReleasePartRow], Sequence[ReleaseClaimRow]]:
    """What devices say of a release: by part, and by those claims that hold fewer than half of them."""
    claims = select(ReleaseClaimRow).where(ReleaseClaimRow.release_id == release_id)
    return await parts(session, [release_id]), (await session.scalars(claims)).all()


async def ready_by_themselves(session: AsyncSession) -> Sequence[str]:
    """Models whose plans are released by the planner, have held versions that no release takes along, and neither a
    release of their own under way nor a plan that is still being solved.
    """
    ready = _with_plan(and_(held(again=False), by_itself(), PlanRow.release_id.is_(None)))
    solving = _with_plan(exists().where(JobRow.key == PlanRow.id))
    under_way = exists().where(
        ReleaseRow.model_hash == ModelRow.hash, ReleaseRow.alias.is_(None), ReleaseRow.state.in_(ACTIVE)
    )
    query = select(ModelRow.hash).where(ModelRow.rollout == "staged", ready, ~solving, ~under_way)
    return (await session.scalars(query)).all()


def _with_plan(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a plan that serves the model fulfils a condition."""
    return exists().where(PlanJobRow.model_hash == ModelRow.hash, PlanRow.id == PlanJobRow.plan_id, condition)
