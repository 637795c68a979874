"""Every query on the names of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.paging import Page, page
from planner_api.db.tables import ModelAliasRow, ModelVersionRow, NamedModelRow
from planner_api.db.upsert import insert_or_ignore


async def next_version(session: WriteSession, name: str, now: datetime) -> int:
    """Lock a name (made if it is new) until the transaction ends, and return the number of its next version."""
    await insert_or_ignore(session, NamedModelRow, {"name": name, "created_at": now}, ["name"])
    raised = update(NamedModelRow).where(NamedModelRow.name == name).values(newest=NamedModelRow.newest + 1)
    return (await session.execute(raised.returning(NamedModelRow.newest))).scalar_one()


async def add_version(session: WriteSession, values: Mapping[str, Any]) -> None:
    """Store a version."""
    session.add(ModelVersionRow(**values))
    await session.flush()


async def names(session: AsyncSession, *, after: str, limit: int) -> Page[NamedModelRow]:
    """Names in their order."""
    query = select(NamedModelRow).where(NamedModelRow.name > after).order_by(NamedModelRow.name)
    return await page(session, query, limit)


async def versions(session: AsyncSession, name: str, *, before: int | None, limit: int) -> Page[ModelVersionRow]:
    """Versions of a name, newest first."""
    query = select(ModelVersionRow).where(ModelVersionRow.name == name)
    if before is not None:
        query = query.where(ModelVersionRow.version < before)
    return await page(session, query.order_by(ModelVersionRow.version.desc()), limit)


async def aliases(session: AsyncSession, names: Sequence[str]) -> Sequence[ModelAliasRow]:
    """The aliases of names."""
    query = select(ModelAliasRow).where(ModelAliasRow.name.in_(names)).order_by(ModelAliasRow.alias)
    return (await session.scalars(query)).all()


async def label(session: WriteSession, name: str, version: int, labels: Mapping[str, str]) -> bool:
    """Replace a version's labels; False when there is no such version."""
    named = ModelVersionRow.name == name, ModelVersionRow.version == version
    changed = update(ModelVersionRow).where(*named).values(labels=dict(labels))
    return await session.touches(changed.returning(ModelVersionRow.version))
