"""Every query on models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.tables import ModelRow
from planner_api.db.upsert import insert_or_ignore


async def insert(session: WriteSession, values: Mapping[str, Any]) -> bool:
    """Store a model, by columns, unless its hash is taken; return whether it was stored."""
    return await insert_or_ignore(session, ModelRow, values, ["hash"])


async def find(session: AsyncSession, model_hash: str) -> ModelRow | None:
    """Return the model under a hash."""
    return await session.get(ModelRow, model_hash)


async def figures(session: AsyncSession, model_hash: str) -> bytes | None:
    """Return the compressed figures of a model."""
    return await session.scalar(select(ModelRow.figures_zstd).where(ModelRow.hash == model_hash))


async def graph(session: AsyncSession, model_hash: str) -> bytes | None:
    """Return the compressed graph of a model."""
    return await session.scalar(select(ModelRow.graph_zstd).where(ModelRow.hash == model_hash))


async def exists(session: AsyncSession, model_hash: str) -> bool:
    """Return whether the model is known."""
    return await session.scalar(select(ModelRow.hash).where(ModelRow.hash == model_hash)) is not None
