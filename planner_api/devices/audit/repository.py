"""Every query on the audit log. There is none that changes an entry, and the database would refuse it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db import paging
from planner_api.db.engine import WriteSession
from planner_api.db.paging import Page
from planner_api.db.tables import AuditHeadRow, AuditRetentionRow, AuditRow
from planner_api.db.upsert import insert_or_ignore, put


async def page(session: AsyncSession, *, before: int | None, limit: int, **where: str | None) -> Page[AuditRow]:
    """Entries whose columns are as ``where`` says, newest first."""
    query = select(AuditRow).order_by(AuditRow.id.desc())
    for name, wanted in where.items():
        if wanted is not None:
            query = query.where(getattr(AuditRow, name) == wanted)
    if before is not None:
        query = query.where(AuditRow.id < before)
    return await paging.page(session, query, limit)


async def lock_head(session: WriteSession) -> str:
    """Return the hash of the newest entry, empty where there is none, and let nobody else write one meanwhile."""
    await insert_or_ignore(session, AuditHeadRow, {"id": 1, "hash": ""}, ["id"])
    query = select(AuditHeadRow.hash).where(AuditHeadRow.id == 1).with_for_update()
    return (await session.execute(query)).scalar_one()


async def set_head(session: WriteSession, digest: str) -> None:
    """Say which entry is the newest."""
    await session.execute(update(AuditHeadRow).where(AuditHeadRow.id == 1).values(hash=digest))


async def head(session: AsyncSession) -> str:
    """The hash of the newest entry; empty where there is none."""
    return await session.scalar(select(AuditHeadRow.hash).where(AuditHeadRow.id == 1)) or ""


async def in_order(session: AsyncSession, after: int, limit: int) -> Sequence[AuditRow]:
    """Entries behind an id, oldest first."""
    return (await session.scalars(select(AuditRow).where(AuditRow.id > after).order_by(AuditRow.id).limit(limit))).all()


async def keep_for(session: WriteSession, days: int) -> int | None:
    """Have the database keep entries for so many days; return for how many it did before, None if nobody had said."""
    before = await session.scalar(select(AuditRetentionRow.days))
    if before != days:
        await put(session, AuditRetentionRow, {"id": 1, "days": days}, key=("id",))
    return before


async def prune(session: WriteSession, before: datetime, limit: int) -> int:
    """Forget entries from before a moment, the oldest first, but never the newest; return how many."""
    newest = select(func.max(AuditRow.id)).scalar_subquery()
    doomed = select(AuditRow.id).where(AuditRow.at < before, AuditRow.id < newest).order_by(AuditRow.id).limit(limit)
    gone = await session.execute(
        delete(AuditRow).where(AuditRow.id.in_(doomed.scalar_subquery())).returning(AuditRow.id)
    )
    return len(gone.all())
