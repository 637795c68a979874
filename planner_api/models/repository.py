"""Every query on models."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.paging import chunks
from planner_api.db.tables import ModelRow, SignatureRow
from planner_api.db.upsert import ignoring

AT_ONCE = 1000
"""Signatures asked for, or stored, in one query: all those of the largest graph would hold the event loop."""


async def insert_features(session: WriteSession, features: Mapping[str, bytes]) -> None:
    """Store what is not known yet of ops by signature, in one order for all, so that no two wait for each other."""
    insert_into = ignoring(session.get_bind().dialect.name, SignatureRow, ["signature"])
    rows = [{"signature": signature, "features": body} for signature, body in sorted(features.items())]
    connection = await session.connection()
    for some in chunks(rows, AT_ONCE):
        await connection.execute(insert_into, some)


async def features(session: AsyncSession, signatures: Sequence[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for some in chunks(signatures, AT_ONCE):
        query = select(SignatureRow.signature, SignatureRow.features).where(SignatureRow.signature.in_(some))
        found |= {row.signature: row.features for row in await session.execute(query)}
    return found


async def body(session: AsyncSession, model_hash: str, column: Any) -> bytes | None:
    """A compressed column of a model; None where there is no such model."""
    found: bytes | None = await session.scalar(select(column).where(ModelRow.hash == model_hash))
    return found


async def super_ops(session: AsyncSession, model_hashes: Sequence[str]) -> dict[str, int]:
    query = select(ModelRow.hash, ModelRow.super_ops).where(ModelRow.hash.in_(model_hashes))
    return {row.hash: row.super_ops for row in await session.execute(query)}


async def exists(session: AsyncSession, model_hash: str) -> bool:
    return await session.scalar(select(ModelRow.hash).where(ModelRow.hash == model_hash)) is not None
