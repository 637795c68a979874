"""What a database that goes away looks like through SQLAlchemy, so that callers can say so or wait for it."""

from __future__ import annotations

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

AWAY: tuple[type[Exception], ...] = (OperationalError, InterfaceError, PoolTimeout, OSError)
"""Errors after which the same call may succeed once the database is back (``TimeoutError`` is an ``OSError``)."""
