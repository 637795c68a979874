"""Bringing a database to the newest schema, from a checkout or from an installed wheel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from planner_api.db.engine import shown, sync_engine

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "3.0001"
"""Newest revision; kept here so that an up-to-date database is recognised without importing Alembic."""
EPOCH = "."
"""Ends a revision's epoch (``3.0042``; the first, 0, had none). Within an epoch revisions only add what older programs
can ignore: their replicas serve on while newer ones start. What takes away or tightens begins the next epoch, and so
does a plan's schema that older agents refuse."""
MIGRATIONS = Path(__file__).with_name("migrations")
"""The revisions, which lie beside this file in a checkout and in a wheel."""
MIGRATION_LOCK = 0x484F5045
"""PostgreSQL advisory lock that lets one of several starting replicas migrate while the others wait."""


class SchemaError(RuntimeError):
    """The database is not at the schema this planner needs; the message says what to do."""


def alembic_config(connection: Connection | Engine | None = None) -> Config:
    """Return the Alembic configuration of the packaged migration tree, for commands on a connection, or an engine."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def current_revision(url: str) -> str | None:
    """Return the revision the database stands at; None for an empty one.

    Raises:
        SchemaError: an earlier planner wrote it, and nothing leads from there to this one.
    """
    with sync_engine(url).connect() as connection:
        return _revision(connection)


def serves(revision: str | None) -> bool:
    """Whether this program can work on a database at a revision: its own, or a later one of the same epoch."""
    if revision is None:
        return False
    return _epoch(revision) == _epoch(HEAD) and revision >= HEAD


def _epoch(revision: str) -> int:
    return int(revision.rpartition(EPOCH)[0] or 0)


def upgrade(url: str) -> bool:
    """Upgrade the database; return whether there was anything to do. Safe to call from many processes at once.

    Raises:
        SchemaError: an earlier planner wrote it, and nothing leads from there to this one.
    """
    engine = sync_engine(url)
    with engine.connect() as connection:
        if serves(_revision(connection)):
            return False
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        if serves(_revision(connection)):
            return False
        from alembic import command

        command.upgrade(alembic_config(connection), "head")
        return True


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if found is not None and _epoch(found) < _epoch(HEAD):
        raise SchemaError(
            f"an earlier planner wrote the database {shown(connection.engine.url)} (revision {found}), and nothing "
            "leads from there to this one: begin anew with an empty database"
        )
    return found
