"""The migration tree on both databases: up, checked against the tables, down, and up again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from pytest_alembic.tests import (
    test_model_definitions_match_ddl,
    test_single_head_revision,
    test_up_down_consistency,
    test_upgrade,
)
from sqlalchemy import Engine, inspect, text

from planner_api.cli.commands import main
from planner_api.db.engine import sync_engine
from planner_api.db.migrate import HEAD, current_revision, upgrade
from planner_api.db.migrate import alembic_config as configuration
from planner_api.db.tables import Base
from tests import CAMPAIGN
from tests.planner.postgres import Postgres

__all__ = [
    "test_model_definitions_match_ddl",
    "test_single_head_revision",
    "test_up_down_consistency",
    "test_upgrade",
]
_numbers = itertools.count()


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables, once of each kind."""
    if database_kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.sqlite'}"
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    name = f"empty_{next(_numbers)}"
    yield postgres.create(name)
    postgres.drop(name)


@pytest.fixture
def alembic_config() -> object:
    """The packaged tree, for pytest-alembic's own tests."""
    return configuration()


@pytest.fixture
def alembic_engine(empty_url: str) -> Iterator[Engine]:
    """The engine that pytest-alembic's own tests migrate."""
    engine = sync_engine(empty_url)
    yield engine
    engine.dispose()


def test_upgrade_check_downgrade_upgrade(empty_url: str) -> None:
    """A database goes up, agrees with the tables, goes down to nothing, and comes up again."""
    assert upgrade(empty_url) is True
    assert upgrade(empty_url) is False
    engine = sync_engine(empty_url)
    config = configuration(engine)
    command.check(config)
    command.downgrade(config, "base")
    left = set(inspect(engine).get_table_names()) - {"alembic_version"}
    assert left == set(), "a downgrade must leave nothing behind"
    assert upgrade(empty_url) is True
    assert set(Base.metadata.tables) <= set(inspect(engine).get_table_names())
    engine.dispose()


def test_head_is_the_tree_s_head() -> None:
    """The constant that spares importing Alembic names the newest revision of the tree."""
    assert ScriptDirectory.from_config(configuration()).get_current_head() == HEAD


def test_many_processes_may_migrate_at_once(empty_url: str) -> None:
    """Replicas that start together on an empty database all end at the newest schema, and one of them did the work."""
    with ThreadPoolExecutor(4) as pool:
        did = list(pool.map(lambda _: upgrade(empty_url), range(4)))
    assert sum(did) == 1
    assert current_revision(empty_url) == HEAD


def test_many_connections_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    """Threads that open the same new SQLite file at one moment all get a connection in write-ahead mode."""

    def journal(url: str) -> str:
        engine = sync_engine(url)
        with engine.connect() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
        engine.dispose()
        return str(mode)

    with ThreadPoolExecutor(8) as pool:
        for file in range(200 if CAMPAIGN else 50):
            url = f"sqlite:///{tmp_path}/{file}.sqlite"
            assert set(pool.map(journal, [url] * 8)) == {"wal"}


def test_migrate_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``hope-planner migrate`` works from another directory and refuses a database it does not know in one line."""
    monkeypatch.chdir(tmp_path)
    assert main(["migrate", "--database", f"sqlite:///{tmp_path}/cli.sqlite"]) == 0
    assert capsys.readouterr().out == f"migrated to revision {HEAD}: sqlite:///{tmp_path}/cli.sqlite\n"
    assert main(["migrate", "--database", "mysql://host/db"]) == 2
    refused = capsys.readouterr().err
    assert refused.count("\n") == 1
    assert "unsupported database 'mysql'" in refused


def test_serve_refuses_a_database_that_was_not_migrated(postgres: Postgres, capsys: pytest.CaptureFixture[str]) -> None:
    """A PostgreSQL database without the schema, or one that is not there, is refused in one line before serving."""
    url = postgres.create("unmigrated")
    for database, words in (
        (url, "run: hope-planner migrate"),
        (url.replace("unmigrated", "nowhere"), "does not exist"),
    ):
        assert main(["serve", "--port", "0", "--database", database]) == 1
        refused = capsys.readouterr().err
        assert refused.count("\n") == 1
        assert words in refused
    postgres.drop("unmigrated")


@pytest.mark.parametrize("revision", ["0011", "1.0001", "2.0003"])
def test_a_database_of_an_earlier_planner_is_refused(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], revision: str
) -> None:
    """Each command says of a database of an earlier planner in one sentence to begin anew, and leaves it."""
    engine = sync_engine(empty_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": revision})
    for command_line in (["migrate"], ["serve", "--port", "0"], ["admin-token"], ["backup", "none.gz"]):
        assert main([*command_line, "--database", empty_url]) == 1, command_line
        refused = capsys.readouterr().err
        assert "begin anew with an empty database" in refused.splitlines()[-1], command_line
    assert inspect(engine).get_table_names() == ["alembic_version"]
    engine.dispose()
