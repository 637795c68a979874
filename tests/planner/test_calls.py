"""The commands that are calls: the contract has each, and each shows fields that its answer has."""

from __future__ import annotations

import json
import re
import shlex
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console, RenderableType

from hope_schema.wording import plural
from planner_api.cli import commands as cli
from planner_api.cli import importing
from planner_api.cli.asking import GROUPS
from planner_api.cli.calls import CALLS, Call
from planner_api.cli.client import CallError, ask
from planner_api.cli.serve import build_config
from planner_api.cli.show import cell, fields, line, table
from tests.planner.commanding import commanding, parsed
from tests.planner.samples import Api, admin_token, chain, issue, serving
from tests.planner.wire import listening

pytestmark = pytest.mark.above_databases

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
    asked = {option.name for option in call.query} | {*call.asked} | set(re.findall(r"\{(\w+)\}", call.path))
    assert asked | ({call.cursor, "limit"} if call.cursor else set()) <= parameters
    sent = {*call.arguments, *(option.name for option in call.body)}
    if sent:
        body = resolved(operation["requestBody"]["content"]["application/json"]["schema"])
        assert set(body.get("required", ())) <= sent <= set(body["properties"])
    (answer,) = [reply for status, reply in operation["responses"].items() if status.startswith("2")]
    if call.rows or call.columns or call.head or call.only or call.watched:
        found = resolved(answer["content"]["application/json"]["schema"])
        assert not call.cursor or "next" in found["properties"]
        entry = resolved(found["properties"][call.rows]["items"]) if call.rows else found
        for column, inner in [
            *((name, entry) for name in call.columns),
            *((name, found) for name in (*call.head, call.only, call.watched) if name),
        ]:
            for name in column.split("."):
                assert name in inner["properties"], column
                inner = resolved(inner["properties"][name])


def shown(what: RenderableType) -> str:
    """What is printed, as text."""
    out = StringIO()
    Console(file=out, width=10_000).print(what)
    return out.getvalue()


def test_an_admin_s_way_through_names(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A graph gets a name, an alias and a place in the list, over a real connection, and the log says who did it."""
    token = issue(database_url, "admin")
    with serving(database_url, tokens_required=True) as api:
        model_hash = api.post("/models", chain(), authorization=f"Bearer {token}").json()["model_hash"]
        with commanding(api, capsys, token) as say:
            assert "version" in say("models", "add", "classifier", model_hash)
            say("models", "alias", "classifier", "production", "1")
            assert say("models", "list").splitlines()[1].split() == ["classifier", "1", "production=1"]
            page = json.loads(say("models", "show", "classifier", "--json"))
            assert [version["model_hash"] for version in page["versions"]] == [model_hash]
            assert "production" in say("audit", "list")
            assert say("plans", "list").strip() == "no plans"
            assert "hit rate" in say("fleet", "show")
            assert "7" in say("models", "alias", "classifier", "x", "7", status=1)
        with commanding(api, capsys, "hope_a_none") as say:
            assert "admin-token" in say("fleet", "show", status=1)
        with commanding(api, capsys) as say:
            assert "HOPE_ADMIN_TOKEN" in say("fleet", "show", status=1)


def test_tokens_and_claims_are_made_listed_and_revoked(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """What is made is all that is printed, so that ``$(...)`` holds it; lists show it without its secret."""
    with commanding(api, capsys, admin_token(api)) as say:
        assert re.fullmatch(r"hope_v_\S+\n", viewer := say("tokens", "create", "--read-only", "--label", "me"))
        assert re.fullmatch(r"hope_c_\S+\n", say("claims", "create", "--uses", "1000", "--expires", "30d"))
        listed = say("tokens", "list")
        assert viewer.strip() not in listed
        assert listed.splitlines()[1].split()[:3] == ["2", "viewer", "valid"]
        assert say("claims", "list").splitlines()[1].split()[:3] == ["1", "valid", "1000"]
        assert say("tokens", "revoke", "2") == say("claims", "revoke", "1") == "done\n"
        assert "revoked" in say("tokens", "list").splitlines()[1]
        assert "`hope-planner tokens list`" in say("tokens", "revoke", "2", status=1)
        for words in ("--uses 0", "--expires soon", "--expires 0d"):
            assert say("claims", "create", *words.split(), status=2)


def test_a_planning_ahead_is_followed_to_its_end(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """Changes go to stderr where JSON is asked for, so that stdout holds one object."""
    model_hash = api.post("/models", chain()).json()["model_hash"]
    with commanding(api, capsys) as say:
        fanout = json.loads(say("models", "plan", model_hash, "--json"))
        assert say("models", "progress", fanout["fanout_id"]).startswith("total 0  queued 0")
        assert json.loads(say("models", "progress", fanout["fanout_id"], "--json"))["finished"] is True


def test_a_profile_moves_from_one_planner_to_another(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What export prints is what GET answers; imported elsewhere the figures are the same; twice counts once."""
    graph, file = chain(), tmp_path / "profile.json"
    upload = api.learn(graph)
    where = (upload.soc, upload.frequency)
    api.profile()
    with commanding(api, capsys) as say:
        printed = say("profiles", "export", *where)
    assert json.loads(printed) == api.client.get("/profiles/" + "/".join(where)).json()
    file.write_text(printed)
    other = f"sqlite:///{tmp_path}/other.sqlite"
    assert cli.main(["migrate", "--database", other]) == 0
    with serving(other) as there, commanding(there, capsys) as say:
        assert say("profiles", "import", str(file)).startswith("imported 14 figures: SoC")
        assert say("profiles", "import", str(file)).startswith("known already")
        assert json.loads(say("profiles", "import", str(file), "--json"))["duplicate"] is True
        assert there.profile().model_dump(exclude={"version"}) == api.profile().model_dump(exclude={"version"})
        (tmp_path / "bad.json").write_text('{"soc": 1}')
        (tmp_path / "text.json").write_text("text")
        for name, said in (
            ("bad.json", "bad.json is not a profile: "),
            ("text.json", "text.json is not a profile: Invalid JSON"),
            ("none.json", "none.json: No such file or directory"),
        ):
            assert said in say("profiles", "import", str(tmp_path / name), status=2)
        assert "nothing is known of SoC 'nobody'" in say("profiles", "export", "nobody", "max", status=1)


def test_without_a_planner_it_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody there, no address and a token that cannot be one end in one line each, without a traceback."""
    assert cli.main(["fleet", "show", "--planner", "http://127.0.0.1:1"]) == 1
    said = capsys.readouterr().err
    assert "start one with `hope-planner serve`" in said
    assert "HOPE_PLANNER_URL" in said
    assert cli.main(["fleet", "show", "--planner", "planner.example"]) == 2
    assert "is no address" in capsys.readouterr().err
    assert cli.main(["fleet", "show", "--token", "two words"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "call", [call for call in CALLS if call.method == "GET" or call.only], ids=lambda call: f"{call.group} {call.verb}"
)
def test_who_answers_otherwise_is_no_planner(call: Call) -> None:
    """Another server, or a planner of another version: nothing is shown as if it were there, or were not."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={}))
    given = dict.fromkeys(re.findall(r"\{(\w+)\}", call.path), "a")
    with (
        httpx.Client(base_url="http://planner.example", transport=transport) as client,
        pytest.raises(CallError, match="answered, but not as a planner of this version does"),
    ):
        ask(client, call, given)


def test_what_takes_no_profile_is_no_planner(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers an import with something else did not take it in, and that is said."""
    api.learn(chain())
    (file := tmp_path / "profile.json").write_text(api.profile().model_dump_json())
    monkeypatch.setattr(importing, "send", lambda *_: {"status": "ok"})
    assert cli.main(["profiles", "import", str(file)]) == 1
    assert "not as a planner of this version does" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "headers"), [(b"no gzip", {"content-encoding": "gzip"}), (b"[" * 100_000 + b"]" * 100_000, {})]
)
def test_an_answer_that_nobody_can_read_is_said(body: bytes, headers: dict[str, str]) -> None:
    """A damaged answer, or one that is nested for ever, is a refusal in one sentence."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=iter([body]), headers=headers, request=request)

    with (
        httpx.Client(base_url="http://planner.example", transport=httpx.MockTransport(answer)) as client,
        pytest.raises(CallError),
    ):
        ask(client, CALLS[0], {})


def test_a_word_that_cannot_be_is_answered_in_words(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """What was mistyped is repeated, with the command that lists what there is; nobody is shown a pattern."""
    model_hash = api.post("/models", chain()).json()["model_hash"]
    with listening(api, build_config(api.app, "127.0.0.1", 0)) as port:

        def refused(*words: str, at: str = f"http://127.0.0.1:{port}", status: int = 2) -> str:
            assert cli.main([*words, "--planner", at]) == status
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
            ("audit verify --head abc%", "audit verify"),
        ):
            assert re.search(rf"'abc%' is no [a-z' ]+: `hope-planner {listed}` shows them", refused(*words.split()))
        assert "'bad name' is no name" in refused("models", "add", "bad name", model_hash)
        assert "'..' is no device" in refused("devices", "revoke", "..")
        assert "'.' is no name" in refused("groups", "drop", ".")
        assert "no more than that" in refused("fleet", "show", at=f"http://127.0.0.1:{port}/api", status=1)
        assert "not as a planner does" in refused("fleet", "show", at=f"http://127.0.0.1:{port}/console", status=1)
        assert "without TLS" in refused("fleet", "show", at=f"https://127.0.0.1:{port}", status=1)
        for option in (["--labels", "beta"], ["--labels", "=beta"]):
            assert "is not key=value" in refused("groups", "set", "beta", *option)
        assert "is not numbers such as" in refused("releases", "begin", "classifier", "--stages", "few")


def test_bad_input_that_the_planner_finds_is_bad_input(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with 2 as what the command itself finds does, and says which option or argument may be what."""
    model_hash = api.post("/models", chain()).json()["model_hash"]
    begin = f"releases begin {model_hash}"
    with commanding(api, capsys) as say:
        for words, said in (
            (f"models rollout {model_hash} heldd", "ROLLOUT must be 'at_once', 'held' or 'staged'"),
            (f"{begin} --stages 1,2", "--stages must be less than or equal to 1"),
            (f"{begin} --stages 0.5,0.1", "--stages must rise and end with 1"),
            (f"{begin} --hold-s -1", "--hold-s must be greater than or equal to 0"),
            (f"{begin} --alias live", "--alias: an alias belongs to a name"),
            (f"tokens create --label {'x' * 200}", "--label must have at most 128 characters"),
            ("plans list --status broken", "--status must be 'queued', 'solving', 'done' or 'failed'"),
        ):
            assert say(*words.split(), status=2).startswith(f"hope-planner: {said}"), words
        assert "has no plan: make some first" in say(*begin.split(), status=1)


def test_an_empty_token_is_none(api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that a failed command left empty is asked for like one that is not there."""
    monkeypatch.setenv("HOPE_ADMIN_TOKEN", "")
    with listening(api, build_config(api.app, "127.0.0.1", 0)) as port:
        assert cli.main(["fleet", "show", "--planner", f"http://127.0.0.1:{port}"]) == 0
    assert "hit rate" in capsys.readouterr().out


def test_the_environment_names_planner_and_token(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``HOPE_PLANNER_URL`` and ``HOPE_ADMIN_TOKEN`` stand in for the options; ``HOPE_TOKEN``, a device's, does not."""
    token = issue(database_url, "viewer")
    with (
        serving(database_url, tokens_required=True) as api,
        listening(api, build_config(api.app, "127.0.0.1", 0)) as port,
    ):
        monkeypatch.setenv("HOPE_PLANNER_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("HOPE_TOKEN", token)
        assert cli.main(["fleet", "show"]) == 1
        monkeypatch.setenv("HOPE_ADMIN_TOKEN", token)
        assert cli.main(["fleet", "show"]) == 0


def test_a_terminal_is_never_obeyed() -> None:
    """Names of others that hold control characters are shown, not sent, and long ones do not break the table."""
    assert cell("\x1b[2Jgone") == '"\\u001b[2Jgone"'
    assert "[red]" in shown(table([{"name": "[red]", "plans": 3}], ("name", "plans")))
    lines = shown(
        table([{"name": "x" * 500, "plans": 3}, {"name": "y", "plans": None}], ("name", "plans"))
    ).splitlines()
    assert max(map(len, lines)) < 80
    assert [line.split()[-1] for line in lines] == ["plans", "3", "-"]


def test_a_state_is_said_in_the_same_words_everywhere() -> None:
    """A table, fields and the lines of `watch` call a release that was taken back the same."""
    release = {"state": "rolled_back"}
    for said in (shown(table([release], ["state"])), shown(fields(release)), line(release, ["state"])):
        assert "rolled back" in said
    assert cell("team/rolled_back-2") == "team/rolled_back-2", "a name stays as it is typed"


def test_stages_are_counted_from_one() -> None:
    """A release at its first stage of three is at 1 of 3, in a table, as fields and on a line."""
    release = {"stage": 0, "stages": [0.01, 0.1, 1.0], "share": 0.01}
    for said in (
        shown(table([release], ["stage", "share"])),
        shown(fields(release)),
        line(release, ["stage", "share"]),
    ):
        assert "1 of 3" in said


def test_a_hash_can_be_copied_from_a_table() -> None:
    """It stands there whole, in whatever column: other commands ask for it."""
    digest = "0123456789abcdef" * 4
    assert digest in shown(table([{"model_hash": digest, "plans": 1}], ("model_hash", "plans")))


def test_a_fraction_is_no_power_of_ten() -> None:
    """What the arithmetic leaves of a gap of nothing is nothing."""
    assert [cell(value) for value in (2.2e-16, -1e-9, 0.0312, 0.5889, 162.5)] == ["0", "0", "0.0312", "0.5889", "162.5"]


def test_a_moment_is_read_at_a_glance() -> None:
    """To the second, without the letters that machines put between."""
    assert cell("2026-11-25T17:36:51.228639Z") == "2026-11-25 17:36:51"


def test_one_is_no_plural() -> None:
    """Nobody has imported 1 figures."""
    assert [plural(number, "figure") for number in (0, 1, 2)] == ["0 figures", "1 figure", "2 figures"]


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_example_is_a_command(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line of a group's examples is taken by the command line, and is of that group."""
    assert cli.main([group, "--help"]) == 0
    lines = re.findall(r"^ +hope-planner (\S.*?)(?:   .*| > .*)?$", capsys.readouterr().out, re.MULTILINE)
    assert len(lines) >= 2
    for words in map(shlex.split, lines):
        assert words[0] == group
        parsed(words)


@pytest.mark.parametrize("group", sorted({call.group for call in CALLS}))
def test_every_noun_takes_a_verb_for_looking(group: str) -> None:
    """Whoever knows one command can guess the next: each noun has a `list` or a `show` that asks a running planner."""
    verbs = {call.verb for call in CALLS if call.group == group}
    found = parsed([group, "list" if "list" in verbs else "show", "--planner", "http://127.0.0.1:1", "--json"])
    assert (found.params["planner"], found.params["as_json"]) == ("http://127.0.0.1:1", True)
