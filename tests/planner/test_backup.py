"""A backup holds everything, goes into either kind of database, and a damaged one changes nothing."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from planner_api.cli import commands as cli
from planner_api.db.backup import read, write
from planner_api.db.engine import Database, sync_engine
from planner_api.db.migrate import upgrade
from planner_api.db.tables import Base, JobRow
from planner_api.errors import UsageError
from planner_api.jobs.wanted import Wanted, put
from tests.planner.samples import chain, issue, plan_request, serving


def content(url: str) -> dict[str, list[Any]]:
    """Every row of every table, in the order of its key."""
    engine = sync_engine(url, writes=False)
    with engine.connect() as connection:
        found = {
            table.name: [
                dict(row) for row in connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
            ]
            for table in Base.metadata.sorted_tables
        }
    engine.dispose()
    return found


@pytest.fixture
def lived_in(database_url: str) -> str:
    """A planner with a model, a profile, a plan, tokens and what follows from them."""
    issue(database_url, "admin", label="me")
    with serving(database_url) as api:
        api.learn(chain())
        assert api.post("/plans", plan_request(chain())).status_code in (200, 202)
    return database_url


def test_everything_comes_back_on_either_database(lived_in: str, tmp_path: Path, postgres_url: str) -> None:
    """Row by row the restored database is the one that was written, and the planner goes on from there."""
    rows = write(lived_in, tmp_path / "copy.gz")
    assert rows == sum(map(len, content(lived_in).values())) > 5
    elsewhere = f"sqlite:///{tmp_path}/restored.sqlite"
    assert read(elsewhere, tmp_path / "copy.gz") == rows
    assert content(elsewhere) == content(lived_in)
    if postgres_url != lived_in:
        assert read(postgres_url, tmp_path / "copy.gz") == rows
        assert content(postgres_url) == content(lived_in)
        elsewhere = postgres_url
    with serving(elsewhere) as api:
        assert api.post("/plans", plan_request(chain())).status_code in (200, 202)
        api.learn(chain(), device_id="another")


def test_jobs_come_back_in_whatever_order_they_wait(database_url: str, tmp_path: Path) -> None:
    """One that waits for another, which was put after it, or has been leased since, is restored like any other."""

    async def fill() -> None:
        database = Database(database_url)
        async with database.write() as session:
            ids = await put(session, Wanted("first", "a"), Wanted("fold", "b"))
            waits = update(JobRow).where(JobRow.key == "a").values(after=ids["fold", "b"])
            await session.execute(waits)
        await database.close()

    asyncio.run(fill())
    assert write(database_url, tmp_path / "copy.gz") >= 2
    read(elsewhere := f"sqlite:///{tmp_path}/restored.sqlite", tmp_path / "copy.gz")
    assert content(elsewhere)["jobs"] == [{**row, "after": None} for row in content(database_url)["jobs"]]


@pytest.mark.parametrize("damage", ["cut", "changed", "text", "nothing", "more"])
def test_a_damaged_file_restores_nothing(damage: str, tmp_path: Path, sqlite_url: str) -> None:
    """Whatever is wrong with the file: one sentence, and the database stays as empty as it was."""
    with serving(sqlite_url) as api:
        api.learn(chain())
    write(sqlite_url, file := tmp_path / "copy.gz")
    whole = gzip.decompress(file.read_bytes())
    lines = whole.splitlines(keepends=True)
    match damage:
        case "cut":
            file.write_bytes(gzip.compress(b"".join(lines[:-1])))
        case "changed":
            file.write_bytes(file.read_bytes()[:-40] + b"\0" * 40)
        case "text":
            file.write_text("hello")
        case "nothing":
            file.unlink()
        case "more":
            file.write_bytes(gzip.compress(whole + lines[-2]))
    url = f"sqlite:///{tmp_path}/restored.sqlite"
    upgrade(url)
    with pytest.raises(UsageError, match=r"copy\.gz"):
        read(url, file)
    assert not any(content(url).values())


def test_the_commands_refuse_what_would_overwrite(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An existing file and a database with rows are left as they are, said in one line each."""
    issue(sqlite_url, "admin")
    file = str(tmp_path / "copy.gz")
    assert cli.main(["backup", file, "--database", sqlite_url]) == 0
    assert f"rows of {sqlite_url} written to {file}" in capsys.readouterr().out
    assert cli.main(["backup", file, "--database", sqlite_url]) == 2
    assert "exists already" in capsys.readouterr().err
    assert cli.main(["restore", file, "--database", sqlite_url]) == 2
    assert "not empty" in capsys.readouterr().err
