"""Which of the two ways the news of a plan travels by on a database."""

from __future__ import annotations

from planner_api.db.engine import Database
from planner_api.solving.events import Events, SqliteEvents


def build_events(database: Database) -> Events:
    """The events of this database's dialect."""
    if database.dialect == "sqlite":
        return SqliteEvents(database)
    # NOTE: imported here, because a planner on SQLite needs no psycopg.
    from planner_api.solving.notify import PostgresEvents

    return PostgresEvents(database)
