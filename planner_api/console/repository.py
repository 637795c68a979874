"""Every query on the console's sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import delete, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.tables import ConsoleSessionRow, TokenRow


@dataclass(frozen=True)
class FoundSession:
    """A session that has not ended, and neither has its token; without one a provider vouched for ``person``."""

    token_id: int | None
    person: str | None
    scope: Literal["admin", "viewer"]
    label: str
    expires_at: datetime


async def find(session: AsyncSession, session_hash: str) -> FoundSession | None:
    """The session with this hash, unless it or its token has ended."""
    now = datetime.now(UTC)
    query = (
        select(
            ConsoleSessionRow.token_id, ConsoleSessionRow.person, ConsoleSessionRow.scope, TokenRow.label,
            ConsoleSessionRow.expires_at,
        )
        .outerjoin(TokenRow, TokenRow.id == ConsoleSessionRow.token_id)
        .where(
            ConsoleSessionRow.session_hash == session_hash,
            ConsoleSessionRow.expires_at > now,
            TokenRow.revoked_at.is_(None),
            or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now),
        )
    )  # fmt: skip
    row: Any = (await session.execute(query)).first()
    return None if row is None else FoundSession(*row)


async def add(
    session: WriteSession,
    session_hash: str,
    *,
    token_id: int | None,
    person: str | None,
    scope: str,
    now: datetime,
    expires_at: datetime,
) -> None:
    """Store a session, and forget those that have ended."""
    await session.execute(delete(ConsoleSessionRow).where(ConsoleSessionRow.expires_at <= now))
    row = ConsoleSessionRow(
        session_hash=session_hash, token_id=token_id, person=person, scope=scope, created_at=now, expires_at=expires_at
    )
    session.add(row)
    await session.flush()


async def remove(session: WriteSession, session_hash: str) -> str | None:
    """Forget a session and return whose it was (nothing, where it was a token's); None when there was none."""
    doomed = delete(ConsoleSessionRow).where(ConsoleSessionRow.session_hash == session_hash)
    row = (await session.execute(doomed.returning(ConsoleSessionRow.person))).first()
    return None if row is None else row.person or ""


async def people(session: AsyncSession, limit: int) -> Sequence[ConsoleSessionRow]:
    """The sessions of people whom a provider vouches for, newest first; those of tokens end with their token."""
    query = (
        select(ConsoleSessionRow)
        .where(ConsoleSessionRow.person.is_not(None), ConsoleSessionRow.expires_at > datetime.now(UTC))
        .order_by(ConsoleSessionRow.created_at.desc())
        .limit(limit)
    )
    return (await session.scalars(query)).all()
