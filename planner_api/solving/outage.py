"""What a database that goes away looks like from here, so that callers can wait for it instead of failing."""

from __future__ import annotations

import psycopg
import psycopg_pool
from procrastinate.exceptions import ConnectorException
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

TRANSIENT: tuple[type[Exception], ...] = (
    OperationalError,
    InterfaceError,
    PoolTimeout,
    ConnectorException,
    psycopg.OperationalError,
    psycopg_pool.PoolTimeout,
    OSError,
)
"""Errors after which the same call may succeed once the database is back."""
