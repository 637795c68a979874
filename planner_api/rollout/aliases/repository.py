"""Every query that moves an alias."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.tables import ModelAliasRow
from planner_api.db.upsert import put


async def alias(session: AsyncSession, name: str, alias: str) -> int | None:
    """The version that an alias stands for."""
    query = select(ModelAliasRow.version).where(ModelAliasRow.name == name, ModelAliasRow.alias == alias)
    return await session.scalar(query)


async def lock_alias(session: WriteSession, name: str, alias: str) -> ModelAliasRow | None:
    """An alias, locked until the transaction ends."""
    query = select(ModelAliasRow).where(ModelAliasRow.name == name, ModelAliasRow.alias == alias)
    return (await session.scalars(query.with_for_update())).one_or_none()


async def point(session: WriteSession, name: str, alias: str, version: int) -> None:
    """Let an alias stand for a version."""
    await put(session, ModelAliasRow, {"name": name, "alias": alias, "version": version}, key=("name", "alias"))


async def drop_alias(session: WriteSession, name: str, alias: str) -> bool:
    """Drop an alias; False when there was none."""
    named = ModelAliasRow.name == name, ModelAliasRow.alias == alias
    return await session.touches(delete(ModelAliasRow).where(*named).returning(ModelAliasRow.alias))
