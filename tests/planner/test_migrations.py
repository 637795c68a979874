"""The migration tree on both databases: up, checked against the tables, down, and up again."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory
from pytest_alembic.tests import (
    test_model_definitions_match_ddl,
    test_single_head_revision,
    test_up_down_consistency,
    test_upgrade,
)
from sqlalchemy import JSON, Boolean, DateTime, Engine, Integer, MetaData, inspect, text

from hope_schema import PlanReply, Profile
from planner_api.cli.main import main
from planner_api.compression import unzstd, zstd
from planner_api.db.engine import sync_engine
from planner_api.db.migrate import HEAD, current_revision, upgrade
from planner_api.db.migrate import alembic_config as configuration
from planner_api.db.tables import Base
from planner_api.profiles.folding import estimate
from planner_api.profiles.statistics import FAMILIES, VOTES, Statistics, device_hash
from tests import CAMPAIGN
from tests.planner.postgres import Postgres
from tests.planner.samples import FREQUENCY, SOC, chain, serving

__all__ = [
    "test_model_definitions_match_ddl",
    "test_single_head_revision",
    "test_up_down_consistency",
    "test_upgrade",
]
_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables, once of each kind."""
    if request.param == "sqlite":
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


SINCE_0001 = Path(__file__).parent / "data" / "revision_0001.json"
"""Every row of a small planner at revision 0001: a model, a profile, a solved plan (version 2), a release, a token."""
TOKEN = {"authorization": "Bearer hope_o_" + "0" * 43}


def test_what_was_stored_at_the_first_revision_is_served(empty_url: str) -> None:
    """After all migrations the profile is complete, the plan is served or made anew, and the token opens the door."""
    upgrade(empty_url, "0001")
    _fill(empty_url)
    assert upgrade(empty_url) is (HEAD != "0001")
    graph = chain()
    with serving(empty_url, tokens_required=True) as api:
        api.client.headers.update(TOKEN)
        listed = api.client.get("/fleet/profiles").json()["profiles"]
        assert [(each["soc"], each["frequency"], each["latencies"]) for each in listed] == [(SOC, FREQUENCY, 8)]
        found = Profile.model_validate_json(api.client.get(f"/profiles/{SOC}/{FREQUENCY}").content).latencies
        assert list(found.us) == [10.0 if kind.endswith("big") else 25.0 for kind in found.kind]
        assert api.missing(graph).latencies == ()
        solved = [each["plan_id"] for each in api.client.get("/fleet/plans").json()["plans"] if each["version"] == 2]
        for plan_id in solved:
            assert PlanReply.model_validate_json(api.client.get(f"/plans/{plan_id}").content).version >= 2
        assert api.plan(graph).plan.makespan_us > 0
        assert api.client.get("/devices/device-1").json()["soc"] == SOC


def _fill(url: str) -> None:
    """Put the stored rows into a database at revision 0001, as its own tables want them."""
    engine, tables = sync_engine(url), MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        for name, rows in json.loads(SINCE_0001.read_text()).items():
            table = tables.tables[name]
            for row in rows:
                values = {key: _value(table.c[key].type, value, url) for key, value in row.items()}
                connection.execute(table.insert().values(values))
            if rows and "id" in table.c and isinstance(table.c["id"].type, Integer) and url.startswith("postgres"):
                query = f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), (SELECT max(id) FROM {name}))"
                connection.execute(text(query))
    engine.dispose()


def _value(kind: object, value: object, url: str) -> object:
    """A value of the dump as a column of the reflected table takes it."""
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    if isinstance(value, str) and isinstance(kind, DateTime):
        moment = datetime.fromisoformat(value)
        return moment if url.startswith("sqlite") else moment.replace(tzinfo=UTC)
    if isinstance(value, str) and isinstance(kind, JSON):
        return json.loads(value)
    return bool(value) if isinstance(kind, Boolean) and value is not None else value


def test_figures_by_agreement_keeps_what_was_said(empty_url: str) -> None:
    """0003 keeps every vote under its device's wider hash, drops absurd figures, and lets known SoCs go on counting."""

    def narrow(name: str) -> int:
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little") or 1

    upgrade(empty_url, "0002")
    keys = [["sig", "ort-1/1xbig"], ["absurd", "ort-1/1xbig"]]
    arrays: dict[str, Any] = {}
    for family in FAMILIES:
        count = len(keys) if family == "latencies" else 0
        device, us = np.zeros((count, VOTES), dtype=np.uint32), np.full((count, VOTES), np.nan)
        if count:
            device[:, -2:] = [narrow("one"), narrow("gone")]
            us[0, -2:], us[1, -2:] = (10.0, 12.0), (1e12, 5.0)
        arrays |= {
            f"{family}.device": device, f"{family}.us": us,
            f"{family}.spread": np.zeros((count, VOTES), dtype=np.float32), f"{family}.settled": np.zeros((count, 3)),
            f"{family}.count": np.ones(count, dtype=np.int64), f"{family}.published": np.full(count, np.nan),
        }  # fmt: skip
    head = {
        "processors": {"{}": [narrow("one")]},
        "channels": {},
        **{family: [] for family in FAMILIES},
        "latencies": keys,
    }
    arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)
    columns = {"signature": ["sig", "absurd"], "kind": ["k", "k"], "us": [10.0, 1e12], "spread_us": [0.0, 0.0]}
    body = {
        "latencies": {**columns, "count": [1, 1]}, "overheads": {"launch_us": {"k": 1e12}, "handover_us": 0.5},
        "transfers": {"tensor": [], "source": [], "target": [], "us": [], "spread_us": [], "count": []},
    }  # fmt: skip
    engine, now = sync_engine(empty_url), datetime.now(UTC)
    with engine.begin() as connection:

        def add(table: str, **values: object) -> None:
            rows = sa.Table(table, sa.MetaData(), autoload_with=connection)
            connection.execute(sa.insert(rows).values(**values))

        add("socs", id=1, name="soc", created_at=now)
        add(
            "profiles", id=1, soc_id=1, frequency="max", version=1, statistics=zstd(out.getvalue()), latencies=2,
            transfers=0, devices=2, uploads=2, rejected=0, created_at=now, updated_at=now,
        )  # fmt: skip
        add("profile_versions", profile_id=1, version=1, body_zstd=zstd(json.dumps(body).encode()), created_at=now)
        add(
            "inbox", id=1, device_id="one", upload_id="u", soc="soc", frequency="max", rows=1, encoding="zstd",
            received_at=now, folded_at=now,
        )  # fmt: skip
    assert upgrade(empty_url) is True
    with engine.connect() as connection:
        dumped = connection.execute(sa.text("SELECT statistics FROM profiles")).scalar_one()
        stored = connection.execute(sa.text("SELECT body_zstd FROM profile_versions")).scalar_one()
        said = connection.execute(sa.text("SELECT device_id, uploads FROM contributions")).all()
        counted = connection.execute(sa.text("SELECT established_at IS NOT NULL FROM socs")).scalar_one()
    statistics = Statistics.load(bytes(dumped))
    votes = statistics.latencies
    assert estimate(votes)[0].tolist() == [11.0, 5.0], "an absurd vote is gone, the others stand"
    assert set(votes.device[0, :2].tolist()) == {device_hash("one"), narrow("gone")}
    assert not votes.device[0, 2:].any()
    assert statistics.processors == {"{}": [device_hash("one")]}
    found = json.loads(unzstd(bytes(stored)))
    assert (found["latencies"]["us"], found["overheads"]) == ([10.0], {"launch_us": {}, "handover_us": 0.5})
    assert [tuple(row) for row in said] == [("one", 1)]
    assert counted
    engine.dispose()
