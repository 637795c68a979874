"""Alembic's entry: runs on the connection it is handed, or on one of the engine's."""

from contextlib import nullcontext
from typing import Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection

import planner_api.db.types
from planner_api.db.tables import Base


def render(kind: str, item: object, _autogen: AutogenContext) -> str | Literal[False]:
    """Write our own column types as the revision template imports them."""
    if kind == "type" and type(item).__module__ == planner_api.db.types.__name__:
        return f"types.{item!r}"
    return False


def run(connection: Connection) -> None:
    """Run the migrations in one transaction (SQLite's DDL is transactional too, once BEGIN is ours)."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        transactional_ddl=True,
        compare_type=True,
        render_item=render,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes["connection"]
with nullcontext(given) if isinstance(given, Connection) else given.begin() as connection:
    run(connection)
