"""``hope-planner`` on the command line: what works on the database, what it guards, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hope_schema.version import VERSION
from planner_api.cli import commands as cli
from planner_api.db.outage import FULL
from planner_api.devices import service
from planner_api.errors import DatabaseAwayError
from planner_api.settings import Settings
from tests.planner.samples import chain, plan_request, serving


def test_the_first_token_is_made_on_the_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is named on stderr, without its password, so that ``$(... admin-token)`` holds the token alone."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["migrate"]) == 0
    capsys.readouterr()
    assert cli.main(["admin-token", "--label", "me"]) == 0
    token, said = capsys.readouterr()
    assert re.fullmatch(r"hope_a_\S+\n", token)
    assert said == "hope-planner: a token of sqlite:///hope-planner.sqlite\n"
    with serving(f"sqlite:///{tmp_path}/hope-planner.sqlite", tokens_required=True) as api:
        listed = api.client.get("/tokens", headers={"authorization": f"Bearer {token.strip()}"})
        assert [found["label"] for found in listed.json()["tokens"]] == ["me"]
    away = "postgresql://hope:secret@127.0.0.1:1/hope"
    assert cli.main(["admin-token", "--database", away]) == 1
    said = capsys.readouterr().err
    assert "postgresql://hope:***@127.0.0.1:1/hope" in said
    assert "secret" not in said


@pytest.mark.parametrize("command", ["migrate", "worker", "admin-token", "backup copy.gz", "restore copy.gz"])
def test_what_needs_the_database_says_so_where_a_planner_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, and no file, empty or not, that nobody asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPE_PLANNER_URL", "https://planner.example")
    assert cli.main(command.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search("works on the planner's database.*--database or HOPE_DATABASE_URL", said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["admin-token", "backup copy.gz", "restore copy.gz"])
def test_a_database_that_is_not_there_is_not_made(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped name is said, and leaves no file behind."""
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command.split(), "--database", "sqlite:///mistyped.sqlite"]) in (1, 2)
    said = capsys.readouterr().err
    assert "there is no database sqlite:///mistyped.sqlite" in said or "there is no file copy.gz" in said
    assert not list(tmp_path.iterdir())


def test_serving_is_guarded_whatever_the_environment_says(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an address that others reach every call needs a token, also where HOPE_EMBEDDED is set."""
    served: list[Settings] = []
    monkeypatch.setenv("HOPE_EMBEDDED", "true")
    monkeypatch.setattr("planner_api.cli.serve.serve", lambda settings, *_: served.append(settings) or 0)
    assert cli.main(["serve", "--host", "0.0.0.0", "--database", sqlite_url]) == 0
    with serving(sqlite_url, **served[0].model_dump(include={"embedded", "tokens_required"})) as api:
        assert api.client.get("/fleet").status_code == 401
        assert api.post("/plans", plan_request(chain())).status_code == 401


@pytest.mark.parametrize(
    "arguments",
    [
        ["admin-token", "--label", "x" * 129],
        ["migrate", "--revision", "head"],
        ["migrate", "--database", "mysql://db"],
        ["serve", "--port", "-1"],
        ["worker", "--probe-port", "70000"],
        ["worker", "--slots", "0"],
        ["workers"],
        ["tokens", "revoke", "one"],
    ],
)
def test_commands_refuse_nonsense(sqlite_url: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and what is wrong on stderr, no traceback."""
    on_database = arguments[0] not in ("workers", "tokens") and "--database" not in arguments
    assert cli.main([*arguments, *(["--database", sqlite_url] if on_database else [])]) == 2
    said, wrong = capsys.readouterr()
    assert not said
    assert "Traceback" not in wrong
    assert len(wrong.strip().splitlines()) in (1, 4)


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    """``--version`` names this release, as ``hope-agent --version`` does."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hope-planner {VERSION}\n"


def test_a_reader_that_goes_away_is_no_error(sqlite_url: str) -> None:
    """As of ``| head``: what was left to print is lost without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "planner_api", "admin-token", "--database", sqlite_url]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=180)
    os.close(writer)
    assert ended.returncode == 1
    assert ended.stderr == f"hope-planner: a token of {sqlite_url}\n"


def test_without_standard_output_nothing_breaks() -> None:
    """As a service manager may start it."""
    words = [sys.executable, "-m", "planner_api", "--help"]
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words], stderr=subprocess.PIPE, check=False, timeout=180
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_fault_of_ours_is_not_called_bad_input(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody foresaw is not hidden behind exit status 2."""
    monkeypatch.setattr("planner_api.cli.database.upgrade", lambda *_: int("a bug"))
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
    assert cli.main(["migrate", "--database", sqlite_url]) == 2
    assert said in capsys.readouterr().err


def test_a_setting_that_is_wrong_is_called_as_it_was_set(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of the variable, and what it should be."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "long")
    assert cli.main(["migrate", "--database", sqlite_url]) == 2
    assert "setting HOPE_SOLVE_BUDGET_S: Input should be a valid number" in capsys.readouterr().err


def test_a_database_that_refuses_gets_the_cure_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty one wants its tables, what is none its file's name, one that is not there its address."""
    (tmp_path / "new.sqlite").touch()
    (tmp_path / "none.sqlite").write_text("no database at all, but a text of some length\n" * 9)
    for database, cure in (
        (f"sqlite:///{tmp_path}/new.sqlite", "`hope-planner migrate` first"),
        (f"sqlite:///{tmp_path}/none.sqlite", "is that its file, may it be written"),
        ("postgresql://127.0.0.1:1/hope", "is it running"),
    ):
        assert cli.main(["admin-token", "--database", database]) == 1
        assert cure in capsys.readouterr().err


def test_a_cause_with_a_cure_of_its_own_gets_no_other(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a full disk the command says what helps, and does not guess beside it."""

    async def issue(*_: object, **__: object) -> None:
        raise DatabaseAwayError("database or disk is full", FULL)

    monkeypatch.setattr(service, "issue", issue)
    assert cli.main(["admin-token", "--database", sqlite_url]) == 1
    said = capsys.readouterr().err
    assert f"refuses: database or disk is full ({FULL})\n" in said


def test_variables_of_others_are_no_settings(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What agent and command line read, and the addresses that Kubernetes gives away, do no harm."""
    for name in (
        "HOPE_CACHE_DIR", "HOPE_TOKEN", "HOPE_ADMIN_TOKEN", "HOPE_PLANNER_URL", "HOPE_PLANNER_SERVICE_HOST",
        "HOPE_PORT_8000_TCP_ADDR", "HOPE_PORT",
    ):  # fmt: skip
        monkeypatch.setenv(name, "1")
    assert cli.main(["migrate", "--database", sqlite_url]) == 0
