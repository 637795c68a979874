"""What a database that is away looks like: known here once, and told to everybody else as ``DatabaseAwayError``."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from planner_api.errors import DatabaseAwayError

AWAY: tuple[type[Exception], ...] = (OperationalError, InterfaceError, PoolTimeout, OSError)
"""Errors after which the same call may succeed once the database is back (``TimeoutError`` is an ``OSError``)."""
READ_ONLY = "25006"
"""SQLSTATE of a write that PostgreSQL refuses because it is a standby, or was made read-only."""


@contextmanager
def translated(*more: type[Exception]) -> Iterator[None]:
    """Turn what the block raises into ``DatabaseAwayError`` where it says that the database is away.

    Args:
        more: how a driver that is used past SQLAlchemy says it.
    """
    try:
        yield
    except Exception as error:
        read_only = isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == READ_ONLY
        if read_only or isinstance(error, (*AWAY, *more)):
            reason = getattr(error, "orig", None) or error
            raise DatabaseAwayError(" ".join(str(reason).split())[:300]) from error
        raise
