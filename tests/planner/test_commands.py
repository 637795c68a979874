"""``hope-planner`` on the command line: what it guards, what it lists, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hope_schema import Profile
from planner_api.cli import main as cli
from planner_api.db.engine import Database
from planner_api.db.tables import DeviceRow
from planner_api.devices import repository as devices
from planner_api.settings import Settings
from planner_api.web.tokens import hash_token
from tests.planner.samples import chain, plan_request, serving, tokens

GRAPH = chain()


def test_admins_and_claims_are_listed_before_a_crowd_of_devices(
    sqlite_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many devices there are, the tokens that matter most are shown, and what is left out is said."""
    monkeypatch.setattr("planner_api.cli.tokens.LISTED", 3)
    tokens(capsys, sqlite_url, "create", "--label", "me")
    tokens(capsys, sqlite_url, "create", "--claim", "--label", "batch")

    async def enrol_many() -> None:
        database = Database(sqlite_url)
        async with database.write() as session:
            session.add_all(DeviceRow(id=f"d{i}", enrolled_at=datetime.now(UTC)) for i in range(4))
            await session.flush()
            for i in range(4):
                await devices.add_token(session, hash_token(f"{i}"), "device", device_id=f"d{i}")
        await database.close()

    asyncio.run(enrol_many())
    lines = tokens(capsys, sqlite_url, "list").splitlines()[1:]
    assert [line.split()[1] for line in lines[:5]] == ["admin", "claim", "device", "device", "device"]
    assert [line.split()[-1] for line in lines[2:5]] == ["d3", "d2", "d1"]
    assert "there are more" in lines[5]
    assert len(lines) == 6


def test_whose_tokens_they_are_is_said_beside_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is named on stderr, without its password, so that ``$(... create)`` holds the token alone."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["migrate"]) == 0
    capsys.readouterr()
    assert cli.main(["tokens", "create"]) == 0
    token, said = capsys.readouterr()
    assert re.fullmatch(r"hope_a_\S+\n", token)
    assert said == "hope-planner: tokens of sqlite:///hope-planner.sqlite\n"
    away = "postgresql://hope:secret@127.0.0.1:1/hope"
    assert cli.main(["tokens", "list", "--database", away]) == 1
    said = capsys.readouterr().err
    assert said.startswith("hope-planner: tokens of postgresql://hope:***@127.0.0.1:1/hope\n")
    assert "secret" not in said


def test_serving_is_guarded_whatever_the_environment_says(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an address that others reach every call needs a token, also where HOPE_EMBEDDED is set."""
    served: list[Settings] = []
    monkeypatch.setenv("HOPE_EMBEDDED", "true")
    monkeypatch.setattr("planner_api.cli.serve.serve", lambda settings, *_: served.append(settings) or 0)
    assert cli.main(["serve", "--host", "0.0.0.0", "--database", sqlite_url]) == 0
    with serving(sqlite_url, **served[0].model_dump(include={"embedded", "tokens_required"})) as api:
        assert api.client.get("/fleet").status_code == 401
        assert api.post("/plans", plan_request(GRAPH)).status_code == 401


@pytest.mark.parametrize(
    "arguments",
    [
        ["tokens", "create", "--uses", "3"],
        ["tokens", "create", "--claim", "--uses", "0"],
        ["tokens", "create", "--expires", "soon"],
        ["tokens", "revoke"],
        ["tokens", "revoke", "3", "--device", "x"],
        ["migrate", "--revision", "nonsense"],
        ["serve", "--port", "-1"],
        ["worker", "--probe-port", "70000"],
        ["worker", "--slots", "0"],
    ],
)
def test_commands_refuse_nonsense_in_one_line(
    sqlite_url: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, one line on stderr, no traceback."""
    assert cli.main([*arguments, "--database", sqlite_url]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_reader_that_goes_away_is_no_error(sqlite_url: str) -> None:
    """As of ``| head``: what was left to print is lost without a word."""
    assert cli.main(["migrate", "--database", sqlite_url]) == 0
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "planner_api", "tokens", "create", "--database", sqlite_url]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writer)
    assert ended.returncode == 1
    assert ended.stderr == f"hope-planner: tokens of {sqlite_url}\n"


def test_a_fault_of_ours_is_not_called_bad_input(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody foresaw is not hidden behind exit status 2."""
    monkeypatch.setattr("planner_api.db.migrate.upgrade", lambda *_: int("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["migrate", "--database", sqlite_url])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("HOPE_SOLVE_BUGDET_S", "did you mean HOPE_SOLVE_BUDGET_S?"),
        ("HOPE_DATABASEURL", "did you mean HOPE_DATABASE_URL?"),
        ("hope_worker_slot", "did you mean HOPE_WORKER_SLOTS?"),
        ("HOPE_QQQ", "there is no setting HOPE_QQQ"),
    ],
)
def test_a_mistyped_setting_is_refused(
    sqlite_url: str, name: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A variable that begins as a setting and is none is not silently ignored: one line says so."""
    monkeypatch.setenv(name, "1")
    assert cli.main(["tokens", "list", "--database", sqlite_url]) == 2
    assert said in capsys.readouterr().err


def test_a_setting_that_is_wrong_is_called_as_it_was_set(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of the variable, and what it should be."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "long")
    assert cli.main(["tokens", "list", "--database", sqlite_url]) == 2
    assert "setting HOPE_SOLVE_BUDGET_S: Input should be a valid number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("database", "cure"),
    [
        ("sqlite:///new.sqlite", "`hope-planner migrate` first"),
        ("postgresql://127.0.0.1:1/hope", "is it running"),
    ],
)
def test_a_database_that_refuses_gets_the_cure_that_fits(
    database: str, cure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty one wants its tables, one that is not there its address."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tokens", "list", "--database", database]) == 1
    assert cure in capsys.readouterr().err


def test_variables_of_others_are_no_settings(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the agent reads, and the addresses that Kubernetes gives away, do no harm."""
    for name in ("HOPE_CACHE_DIR", "HOPE_TOKEN", "HOPE_PLANNER_SERVICE_HOST", "HOPE_PORT_8000_TCP_ADDR", "HOPE_PORT"):
        monkeypatch.setenv(name, "1")
    assert cli.main(["tokens", "list", "--database", sqlite_url]) == 0


def test_a_profile_moves_from_one_planner_to_another(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What export prints is what GET answers; imported elsewhere the figures are the same; twice counts once."""
    with serving(database_url) as api:
        upload = api.learn(GRAPH)
        served = api.client.get(f"/profiles/{upload.soc}/{upload.frequency}")
        unknown = api.client.get("/profiles/nobody/max")
        assert (unknown.status_code, unknown.json()["type"]) == (404, "urn:hope:profile-unknown")
    capsys.readouterr()
    assert cli.main(["profiles", "export", upload.soc, upload.frequency, "--database", database_url]) == 0
    printed = capsys.readouterr().out
    assert printed.encode().strip() == served.content
    exported = Profile.model_validate_json(printed)
    (tmp_path / "profile.json").write_text(printed)
    other = f"sqlite:///{tmp_path}/other.sqlite"
    assert cli.main(["migrate", "--database", other]) == 0
    bring = ["profiles", "import", str(tmp_path / "profile.json"), "--database", other]
    assert cli.main(bring) == 0
    assert "imported 14 figures" in capsys.readouterr().out
    assert cli.main(bring) == 0
    assert "known already" in capsys.readouterr().out
    with serving(other) as api:
        found = Profile.model_validate_json(api.client.get(f"/profiles/{upload.soc}/{upload.frequency}").content)
        assert found.model_dump(exclude={"version"}) == exported.model_dump(exclude={"version"})
        assert api.post("/models", GRAPH).status_code == 201
        assert api.plan(GRAPH).plan.makespan_us > 0


def test_what_is_no_profile_is_not_imported(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is none, a profile that is not there, a file that is not there: one line each."""
    (tmp_path / "bad.json").write_text('{"soc": 1}')
    (tmp_path / "text.json").write_text("text")
    for arguments, said in (
        (["import", str(tmp_path / "bad.json")], "bad.json is not a profile: "),
        (["import", str(tmp_path / "text.json")], "text.json is not a profile: Invalid JSON"),
        (["import", str(tmp_path / "none.json")], "none.json: No such file or directory"),
        (["export", "nobody", "max"], "nothing is known of SoC 'nobody'"),
    ):
        assert cli.main(["profiles", *arguments, "--database", sqlite_url]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert said in line
