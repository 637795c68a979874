"""What is the same for every test of the agent and takes time is made once: tables, and statements in SQL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, make_url
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from planner_api import runtime
from planner_api.db import engine


class SameDialect(SQLiteDialect_aiosqlite):
    """SQLite's dialect, which a cache of compiled statements takes for the same one in every engine."""

    supports_statement_cache = True

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


@pytest.fixture(scope="session", autouse=True)
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A new database is a copy of one whose tables have come to be in the planner's own tests, and what one planner
    has compiled to SQL the next one has.
    """
    folder = tmp_path_factory.mktemp("once")
    template = folder / "planner.sqlite"
    upgrade = runtime.upgrade
    upgrade(f"sqlite:///{template}")
    registry.register("sqlite.same", __name__, SameDialect.__name__)
    compiled: dict[Any, Any] = {}

    def upgraded(url: str) -> bool:
        path = Path(str(make_url(url).database))
        with suppress(OSError):  # the database that cannot be made says so
            if not path.exists():
                shutil.copy(template, path)
        return upgrade(url)

    def with_statements(url: URL, **options: Any) -> AsyncEngine:
        if url.get_backend_name() == "sqlite":
            url = url.set(drivername="sqlite+same")
            options["execution_options"] = {"compiled_cache": compiled}
        return create_async_engine(url, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runtime, "upgrade", upgraded)
        patched.setattr(engine, "create_async_engine", with_statements)
        yield
