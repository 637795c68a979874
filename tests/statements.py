"""What one database of a test has compiled to SQL the next one has: each engine would compile all of it anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import URL, Dialect
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialectAsync_psycopg
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import LRUCache

from planner_api.db import engine

KEPT = 4000
"""Statements; those of which the fewest were used go first."""


class Same(Dialect):
    """One that a cache of compiled statements takes for the same in every engine."""

    supports_statement_cache = True

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @classmethod
    def get_async_dialect_cls(cls, url: URL) -> type[Dialect]:
        """Itself, where PostgreSQL's would name another one."""
        return cls


class SameSqlite(Same, SQLiteDialect_aiosqlite):
    """SQLite's."""

    supports_statement_cache = True


class SamePostgresql(Same, PGDialectAsync_psycopg):
    """PostgreSQL's."""

    supports_statement_cache = True


@contextmanager
def compiled_once() -> Iterator[None]:
    """Every engine that is made meanwhile knows what the others have compiled."""
    compiled: LRUCache[Any, Any] = LRUCache(KEPT)
    for backend, kind in (("sqlite", SameSqlite), ("postgresql", SamePostgresql)):
        registry.register(f"{backend}.same", __name__, kind.__name__)

    def made(url: URL, **options: Any) -> AsyncEngine:
        same = url.set(drivername=f"{url.get_backend_name()}+same")
        return create_async_engine(same, execution_options={"compiled_cache": compiled}, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "create_async_engine", made)
        yield
