"""Every query on the audit log. There is none that changes an entry, and the database would refuse it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db import paging
from planner_api.db.engine import WriteSession
from planner_api.db.paging import Page
from planner_api.db.tables import AuditRetentionRow, AuditRow
from planner_api.db.upsert import put


async def page(session: AsyncSession, *, before: int | None, limit: int, **where: str | None) -> Page[AuditRow]:
    """Entries whose columns are as ``where`` says, newest first."""
    query = select(AuditRow).order_by(AuditRow.id.desc())
    for name, wanted in where.items():
        if wanted is not None:
            query = query.where(getattr(AuditRow, name) == wanted)
    if before is not None:
        query = query.where(AuditRow.id < before)
    return await paging.page(session, query, limit)


async def keep_for(session: WriteSession, days: int) -> int | None:
    """Have the database keep entries for so many days; return for how many it did before, None if nobody had said."""
    before = await session.scalar(select(AuditRetentionRow.days))
    if before != days:
        await put(session, AuditRetentionRow, {"id": 1, "days": days}, key=("id",))
    return before


async def prune(session: WriteSession, before: datetime, limit: int) -> int:
    """Forget entries from before a moment, the oldest first; return how many."""
    doomed = select(AuditRow.id).where(AuditRow.at < before).order_by(AuditRow.id).limit(limit)
    gone = await session.execute(
        delete(AuditRow).where(AuditRow.id.in_(doomed.scalar_subquery())).returning(AuditRow.id)
    )
    return len(gone.all())
