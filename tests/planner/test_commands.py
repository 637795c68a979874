"""``hope-planner`` on the command line: what it guards, what it lists, and what it refuses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from planner_api import cli
from planner_api.db.engine import Database
from planner_api.db.tables import DeviceRow
from planner_api.devices import repository as devices
from planner_api.devices.tokens import hash_token
from planner_api.settings import Settings
from tests.planner.samples import chain, plan_request, serving, tokens

GRAPH = chain()


def test_operators_and_claims_are_listed_before_a_crowd_of_devices(
    sqlite_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many devices there are, the tokens that matter most are shown, and what is left out is said."""
    monkeypatch.setattr("planner_api.devices.commands.LISTED", 3)
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
    assert [line.split()[1] for line in lines[:5]] == ["operator", "claim", "device", "device", "device"]
    assert [line.split()[-1] for line in lines[2:5]] == ["d3", "d2", "d1"]
    assert "there are more" in lines[5]
    assert len(lines) == 6


def test_serving_is_guarded_whatever_the_environment_says(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an address that others reach every call needs a token, also where HOPE_EMBEDDED is set."""
    served: list[Settings] = []
    monkeypatch.setenv("HOPE_EMBEDDED", "true")
    monkeypatch.setattr("planner_api.server.serve", lambda settings, *_: served.append(settings) or 0)
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


def test_a_fault_of_ours_is_not_called_bad_input(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody foresaw is not hidden behind exit status 2."""
    monkeypatch.setattr("planner_api.db.migrate.upgrade", lambda *_: int("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["migrate", "--database", sqlite_url])
