"""A database that takes nothing in says why, and what helps."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.exc import InternalError, OperationalError
from structlog.testing import capture_logs

from planner_api.db.outage import FAILS, FULL, READ_ONLY, translated
from planner_api.errors import DatabaseAwayError
from tests.disks import fill, small_disk
from tests.planner.postgres import Postgres
from tests.planner.samples import chain, eventually, serving


@pytest.fixture
def crowded(database_kind: str, request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """The URL of a migrated database on a small disk of its own, and that disk."""
    # NOTE: not under pytest's own directory, which the server's user may not enter.
    with tempfile.TemporaryDirectory(prefix="hope-disk-") as folder, ExitStack() as ending:
        Path(folder).chmod(0o755)
        disk = Path(folder) / "disk"
        ending.enter_context(small_disk(disk, "64m"))
        if database_kind == "sqlite":
            shutil.copy(request.getfixturevalue("sqlite_template"), disk / "hope.sqlite")
            yield f"sqlite:///{disk / 'hope.sqlite'}", disk
            return
        postgres: Postgres = request.getfixturevalue("postgres")
        template = sql.Identifier(request.getfixturevalue("postgres_template"))
        connection = ending.enter_context(psycopg.connect(postgres.url("postgres"), autocommit=True))
        (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
        (disk / "space").mkdir()
        os.chown(disk / "space", Path(data).stat().st_uid, -1)
        connection.execute(sql.SQL("CREATE TABLESPACE small LOCATION {}").format(str(disk / "space")))
        ending.callback(connection.execute, "DROP TABLESPACE small")
        made = "CREATE DATABASE hope_small TEMPLATE {} TABLESPACE small STRATEGY FILE_COPY"
        connection.execute(sql.SQL(made).format(template))
        ending.callback(postgres.drop, "hope_small")
        yield postgres.url("hope_small"), disk


def test_a_full_disk_is_called_so(crowded: tuple[str, Path]) -> None:
    """Answer and log name the cause and the cure; with room again all goes on, without a restart."""
    url, disk = crowded
    with serving(url) as api:
        assert api.post("/models", chain(1)).status_code < 300
        fill(disk / "full")
        with capture_logs() as said:
            answers = (api.post("/models", chain(ops)) for ops in range(2, 400))
            refused = next(answer for answer in answers if answer.status_code >= 300)
        assert (refused.status_code, refused.json()["detail"]) == (503, FULL)
        assert [FULL in line["error"] for line in said if line["event"] == "database_unavailable"] == [True]
        (disk / "full").unlink()
        assert eventually(lambda: api.post("/models", chain(400)).status_code < 300)


def refused_by_sqlite(path: Path) -> sqlite3.Error:
    """What SQLite says of a write to a file that may only be read."""
    sqlite3.connect(path).close()
    path.touch()
    with (
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as opened,
        pytest.raises(sqlite3.Error) as error,
    ):
        opened.execute("CREATE TABLE one (two)")
    return error.value


def test_each_cause_has_its_cure(tmp_path: Path) -> None:
    """What SQLite, PostgreSQL and the system say of it is told apart; what says nothing of it is passed on."""
    read_only = refused_by_sqlite(tmp_path / "read.sqlite")
    for error, cure in (
        (OperationalError("", {}, read_only), READ_ONLY),
        (InternalError("", {}, psycopg.errors.ReadOnlySqlTransaction()), READ_ONLY),
        (OperationalError("", {}, psycopg.errors.DiskFull()), FULL),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), FULL),
        (OperationalError("", {}, psycopg.errors.IoError()), FAILS),
        (OSError(errno.EIO, "Input/output error"), FAILS),
        (OperationalError("", {}, psycopg.OperationalError("gone")), "the database is away for the moment; try again"),
    ):
        with pytest.raises(DatabaseAwayError) as told, translated():
            raise error
        assert told.value.detail == cure
    with pytest.raises(InternalError), translated():
        raise InternalError("", {}, psycopg.InternalError("a fault"))
