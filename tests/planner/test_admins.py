"""The admins' commands: each is a call that the contract has, and shows fields that its answer has."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from planner_api.cli import main as cli
from planner_api.cli.calls import CALLS, Call
from planner_api.cli.commands import HELP, run
from planner_api.cli.serve import build_config
from planner_api.cli.show import cell, fields, line, table
from tests.planner.samples import Api, chain, serving, tokens
from tests.planner.wire import listening

CONTRACT = json.loads((Path(__file__).parents[2] / "openapi" / "openapi.json").read_text())


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of the contract, with one reference followed."""
    if "$ref" in schema:
        return dict(CONTRACT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    return schema


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.group} {call.verb}")
def test_every_command_is_a_call_that_the_contract_has(call: Call) -> None:
    """Its path, options and arguments are parameters or fields there, and its columns are fields of the answer."""
    operation = CONTRACT["paths"][call.path][call.method.lower()]
    parameters = {found["name"] for found in operation.get("parameters", ())}
    asked = {option.name for option in call.query} | set(re.findall(r"\{(\w+)\}", call.path))
    assert asked | ({call.cursor, "limit"} if call.cursor else set()) <= parameters
    sent = {*call.arguments, *(option.name for option in call.body)}
    if sent:
        body = resolved(operation["requestBody"]["content"]["application/json"]["schema"])
        assert set(body.get("required", ())) <= sent <= set(body["properties"])
    (answer,) = [reply for status, reply in operation["responses"].items() if status.startswith("2")]
    if call.rows or call.columns or call.head:
        found = resolved(answer["content"]["application/json"]["schema"])
        assert not call.cursor or "next" in found["properties"]
        entry = resolved(found["properties"][call.rows]["items"]) if call.rows else found
        for column, inner in [(name, entry) for name in call.columns] + [(name, found) for name in call.head]:
            for name in column.split("."):
                assert name in inner["properties"], column
                inner = resolved(inner["properties"][name])


def test_an_admin_s_way_through_names(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A graph gets a name, an alias and a place in the list, over a real connection, and the log says who did it."""
    graph = chain()
    with serving(database_url, tokens_required=True) as api:
        token = tokens(capsys, database_url, "create").strip().splitlines()[-1]
        refused = api.post("/models", graph, authorization=f"Bearer {token}")
        assert refused.status_code in (200, 201)
        model_hash = refused.json()["model_hash"]
        with listening(api, build_config(api.app, "127.0.0.1", 0)) as port:

            def say(*words: str, status: int = 0) -> str:
                where = ["--planner", f"http://127.0.0.1:{port}", "--token", token]
                assert cli.main([*words, *where]) == status
                said = capsys.readouterr()
                return said.err if status else said.out

            assert "version" in say("models", "add", "classifier", model_hash)
            say("models", "alias", "classifier", "production", "1")
            assert say("models", "list").splitlines()[1].split() == ["classifier", "1", "production=1"]
            page = json.loads(say("models", "show", "classifier", "--json"))
            assert [version["model_hash"] for version in page["versions"]] == [model_hash]
            assert "production" in say("audit", "list")
            assert say("plans", "list").strip() == "no plans"
            assert "hit rate" in say("fleet", "show")
            assert "7" in say("models", "alias", "classifier", "x", "7", status=1)
            wrong = cli.main(["fleet", "show", "--planner", f"http://127.0.0.1:{port}", "--token", "hope_a_none"])
            assert (wrong, "tokens create" in capsys.readouterr().err) == (1, True)


def test_without_a_planner_it_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody there, no address and a token that cannot be one end in one line each, without a traceback."""
    assert cli.main(["fleet", "show", "--planner", "http://127.0.0.1:1"]) == 1
    assert "start one with `hope-planner serve`" in capsys.readouterr().err
    assert cli.main(["fleet", "show", "--planner", "planner.example"]) == 2
    assert "is no address" in capsys.readouterr().err
    assert cli.main(["fleet", "show", "--token", "two words"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_word_that_cannot_be_is_answered_in_words(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """What was mistyped is repeated, with the command that lists what there is; nobody is shown a pattern."""
    model_hash = api.post("/models", chain()).json()["model_hash"]
    with listening(api, build_config(api.app, "127.0.0.1", 0)) as port:

        def refused(*words: str, at: str = f"http://127.0.0.1:{port}") -> str:
            assert cli.main([*words, "--planner", at]) == 1
            said = capsys.readouterr().err
            assert "pattern" not in said
            return said

        for words, listed in (
            ("models add classifier abc%", "fleet models"),
            ("models rollout abc% held", "fleet models"),
            ("releases watch abc%", "releases list"),
            ("releases rollback abc%", "releases list"),
            ("devices show abc%", "devices list"),
            ("plans versions abc%", "plans list"),
        ):
            assert re.search(rf"'abc%' is no [a-z' ]+: `hope-planner {listed}` lists them", refused(*words.split()))
        assert "'bad name' is no name" in refused("models", "add", "bad name", model_hash)
        assert "no more than that" in refused("fleet", "show", at=f"http://127.0.0.1:{port}/api")
        assert "without TLS" in refused("fleet", "show", at=f"https://127.0.0.1:{port}")
        for option in (["--labels", "beta"], ["--labels", "=beta"]):
            with pytest.raises(SystemExit):
                cli.main(["groups", "set", "beta", *option])
            assert "is not key=value" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            cli.main(["releases", "begin", "classifier", "--stages", "few"])
        assert "is not numbers such as" in capsys.readouterr().err


def test_an_empty_token_is_none(api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that a failed command left empty is asked for like one that is not there."""
    monkeypatch.setenv("HOPE_TOKEN", "")
    with listening(api, build_config(api.app, "127.0.0.1", 0)) as port:
        assert cli.main(["fleet", "show", "--planner", f"http://127.0.0.1:{port}"]) == 0
    assert "hit rate" in capsys.readouterr().out


def test_a_terminal_is_never_obeyed() -> None:
    """Names of others that hold control characters are shown, not sent, and long ones do not break the table."""
    assert cell("\x1b[2Jgone") == '"\\u001b[2Jgone"'
    shown = table([{"name": "x" * 500, "plans": 3}, {"name": "y", "plans": None}], ("name", "plans"))
    assert max(map(len, shown.splitlines())) < 80
    assert [line.split()[-1] for line in shown.splitlines()] == ["plans", "3", "-"]


def test_stages_are_counted_from_one() -> None:
    """A release at its first stage of three is at 1 of 3, in a table, as fields and on a line."""
    release = {"stage": 0, "stages": [0.01, 0.1, 1.0], "share": 0.01}
    for shown in (table([release], ["stage", "share"]), fields(release), line(release, ["stage", "share"])):
        assert "1 of 3" in shown


def test_a_hash_can_be_copied_from_a_table() -> None:
    """It stands there whole, in whatever column: other commands ask for it."""
    digest = "0123456789abcdef" * 4
    assert digest in table([{"model_hash": digest, "plans": 1}], ("model_hash", "plans"))


def test_a_fraction_is_no_power_of_ten() -> None:
    """What the arithmetic leaves of a gap of nothing is nothing."""
    assert [cell(value) for value in (2.2e-16, -1e-9, 0.0312, 0.5889, 162.5)] == ["0", "0", "0.0312", "0.5889", "162.5"]


@pytest.mark.parametrize("group", sorted(HELP))
def test_every_example_is_a_command(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line of a group's examples is taken by the command line, and is of that group."""
    with pytest.raises(SystemExit):
        cli.main([group, "--help"])
    lines = re.findall(r"^  .*?hope-planner (\S.*?)(?:   .*)?$", capsys.readouterr().out, re.MULTILINE)
    assert len(lines) >= 2
    for words in map(shlex.split, lines):
        assert cli._parser().parse_args(words).call.group == group


@pytest.mark.parametrize("group", sorted({call.group for call in CALLS}))
def test_every_noun_takes_a_verb_for_looking(group: str) -> None:
    """Whoever knows one command can guess the next: each noun has a `list` or a `show` that asks a running planner."""
    verbs = {call.verb for call in CALLS if call.group == group}
    verb = "list" if "list" in verbs else "show"
    options = cli._parser().parse_args([group, verb, "--planner", "http://127.0.0.1:1", "--json"])
    assert (options.call.group, options.call.verb, options.json) == (group, verb, True)
    assert options.run is run
