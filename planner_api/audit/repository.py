"""Every query on the audit log. There is none that changes an entry."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db import paging
from planner_api.db.engine import WriteSession
from planner_api.db.paging import Page
from planner_api.db.tables import AuditRow


async def insert(session: WriteSession, row: AuditRow) -> None:
    """Add an entry."""
    session.add(row)
    await session.flush()


async def page(
    session: AsyncSession,
    *,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> Page[AuditRow]:
    """Entries, newest first."""
    query = select(AuditRow).order_by(AuditRow.id.desc())
    for column, wanted in ((AuditRow.actor, actor), (AuditRow.action, action), (AuditRow.subject, subject)):
        if wanted is not None:
            query = query.where(column == wanted)
    if before is not None:
        query = query.where(AuditRow.id < before)
    return await paging.page(session, query, limit)


async def prune(session: WriteSession, before: datetime, limit: int) -> int:
    """Forget entries from before a moment, the oldest first; return how many."""
    doomed = select(AuditRow.id).where(AuditRow.at < before).order_by(AuditRow.id).limit(limit)
    gone = await session.execute(
        delete(AuditRow).where(AuditRow.id.in_(doomed.scalar_subquery())).returning(AuditRow.id)
    )
    return len(gone.all())
