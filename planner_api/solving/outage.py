"""What a database that goes away looks like to a worker: through SQLAlchemy, psycopg or procrastinate."""

from __future__ import annotations

import psycopg
import psycopg_pool
from procrastinate.exceptions import ConnectorException

from planner_api.db.outage import AWAY

TRANSIENT: tuple[type[Exception], ...] = (
    *AWAY,
    ConnectorException,
    psycopg.OperationalError,
    psycopg_pool.PoolTimeout,
)
"""Errors after which the same call may succeed once the database is back."""
