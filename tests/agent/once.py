"""What is the same for every test of the agent and takes time is made once: tables, and statements in SQL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import make_url

from planner_api import runtime
from tests.statements import compiled_once


@pytest.fixture(scope="session", autouse=True)
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A new database is a copy of one whose tables have come to be in the planner's own tests, and what one planner
    has compiled to SQL the next one has.
    """
    folder = tmp_path_factory.mktemp("once")
    template = folder / "planner.sqlite"
    upgrade = runtime.upgrade
    upgrade(f"sqlite:///{template}")

    def upgraded(url: str) -> bool:
        path = Path(str(make_url(url).database))
        with suppress(OSError):  # the database that cannot be made says so
            if not path.exists():
                shutil.copy(template, path)
        return upgrade(url)

    with pytest.MonkeyPatch.context() as patched, compiled_once():
        patched.setattr(runtime, "upgrade", upgraded)
        yield
