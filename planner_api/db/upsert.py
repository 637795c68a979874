"""``INSERT ... ON CONFLICT DO NOTHING`` on either database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.dialects import postgresql, sqlite

from planner_api.db.engine import WriteSession
from planner_api.db.tables import Base


def upserting(dialect: Dialect, table: type[Base]) -> postgresql.Insert | sqlite.Insert:
    """Return the INSERT of a dialect, which knows ``ON CONFLICT``."""
    return postgresql.insert(table) if dialect.name == "postgresql" else sqlite.insert(table)


async def insert_or_ignore(
    session: WriteSession, table: type[Base], values: Mapping[str, Any], key: Sequence[str]
) -> bool:
    """Insert one row unless ``key`` is taken; return whether it was inserted. Columns left out take their default."""
    columns = [getattr(table, name) for name in key]
    insert_into = upserting(session.get_bind().dialect, table).values(**values)
    statement = insert_into.on_conflict_do_nothing(index_elements=list(key)).returning(*columns)
    return (await session.execute(statement)).first() is not None
