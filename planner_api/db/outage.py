"""What a database that is away looks like: known here once, and told to everybody else as ``DatabaseAwayError``."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from planner_api.errors import DatabaseAwayError

AWAY: tuple[type[Exception], ...] = (OperationalError, InterfaceError, PoolTimeout, OSError)
"""Errors after which the same call may succeed once the database is back (``TimeoutError`` is an ``OSError``)."""
FULL = "the disk of the planner's database, or its quota, is full: make room there, and ask again"
READ_ONLY = (
    "the planner's database is read-only: let its file be written, see that it is still there, or name in "
    "HOPE_DATABASE_URL a server that is no standby"
)
FAILS = (
    "the disk of the planner's database fails, or lets no file grow: see to its room, its quota and its limits, and "
    "ask again"
)
CURES = {
    **dict.fromkeys(("53100", "SQLITE_FULL", "ENOSPC", "EDQUOT"), FULL),
    **dict.fromkeys(("25006", "SQLITE_READONLY", "EROFS"), READ_ONLY),
    **dict.fromkeys(("58030", "SQLITE_IOERR", "EIO"), FAILS),
}
"""What helps where nothing is taken in: by PostgreSQL's SQLSTATE, and by how names of SQLite and the system begin."""


def _cure(error: BaseException) -> str | None:
    name = getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None)
    name = name or errno.errorcode.get(getattr(error, "errno", None) or 0, "")
    return next((cure for begin, cure in CURES.items() if name.startswith(begin)), None)


@contextmanager
def translated(*more: type[Exception]) -> Iterator[None]:
    """Turn what the block raises into ``DatabaseAwayError`` where it says that the database is away.

    Args:
        more: how a driver that is used past SQLAlchemy says it.
    """
    try:
        yield
    except Exception as error:
        own = (error.orig if isinstance(error, DBAPIError) else None) or error
        cure = _cure(own)
        if cure is None and not isinstance(error, (*AWAY, *more)):
            raise
        raise DatabaseAwayError(" ".join(str(own).split())[:300], cure) from error
