"""Bad days at the console: each is shown clearly, loses nothing, and what was done stands in the log."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from hope_schema import NewModelVersion, RolloutPolicy
from planner_api.cli import commands as cli
from planner_api.console.address import HOME
from planner_api.console.session import COOKIE
from planner_api.db.backup import write
from tests.planner.console.visits import HERE, audited, send, sign_in
from tests.planner.jobs_help import improve
from tests.planner.samples import Api, chain, make_token, plan_request, serving

GRAPH, OTHER = chain(3, "first"), chain(4, "second")
LARGE = "<b>\u202e" + "x" * 10_000

pytestmark = pytest.mark.planner(tokens_required=True, rate_per_address=0)


def fill(url: str) -> None:
    """A model whose newest plan waits to be released, and another."""
    with serving(url) as running:
        for graph in (GRAPH, OTHER):
            assert running.post("/models", graph).status_code == 201
        running.learn(GRAPH)
        plan_id = running.post("/plans", plan_request(GRAPH)).json()["plan_id"]
        running.put(f"/models/{GRAPH.model_hash}/rollout", RolloutPolicy(rollout="held"))
        improve(running, plan_id)
        improve(running, plan_id)


@pytest.fixture
def database_url(copied: Callable[..., str]) -> str:
    """A database with what `fill` does."""
    return copied(fill)


@pytest.fixture
def api(api: Api) -> Api:
    """A planner on it that wants tokens, and an admin signed in."""
    sign_in(api, make_token(api, "admin"))
    return api


def test_a_name_of_ten_kilobytes_goes_nowhere(api: Api) -> None:
    """In a form, an address or a message it is refused with a page of modest size, and nothing is done."""
    before = Counter(audited(api))
    fields = ({"name": LARGE, "share": "100"}, {"model": LARGE, "hold_h": "1"}, {"kind": "viewer", "label": LARGE})
    for path, form in zip(("/groups", "/releases", "/tokens"), fields, strict=True):
        answer = send(api, path, **form)
        assert (answer.status_code, len(answer.text) < 10_000) == (413, True), path
    for path in ("/devices", "/plans?soc=", "/devices?search=", "/audit?subject=", "/groups?change=", "/names/"):
        answer = api.client.get(f"{HOME}{path}{'' if '=' in path or path[-1] == '/' else '/'}{'x' * 10_000}")
        assert (answer.status_code, len(answer.text) < 10_000) == (422, True), path
    bearer = {"authorization": f"Bearer {make_token(api, 'admin')}"}
    version = NewModelVersion(model_hash=GRAPH.model_hash)
    assert api.post(f"/names/{'x' * 10_000}/versions", version, **bearer).status_code == 422
    assert Counter(audited(api)) == before


def test_what_cannot_be_released_or_taken_back_is_said(api: Api) -> None:
    """A model without plans, a release that was taken back, one that never was: a sentence, and no entry in the log."""
    answer = send(api, "/releases", model=OTHER.model_hash, hold_h="1")
    assert (answer.status_code, "no plan" in answer.text) == (409, True)
    assert send(api, f"/releases/r-{'0' * 24}/rollback").status_code == 404
    began = send(api, "/releases", model=GRAPH.model_hash, hold_h="1")
    path = began.headers["location"].removeprefix(HOME)
    assert send(api, f"{path}/rollback").status_code == 303
    for action in ("rollback", "approve", "pause", "resume"):
        answer = send(api, f"{path}/{action}")
        assert (answer.status_code, "rolled back" in answer.text) == (409, True), action
    again = send(api, "/releases", model=GRAPH.model_hash, hold_h="1")
    assert again.status_code == 409, "what was taken back does not go out again by itself"
    assert "Taken back" in api.client.get(began.headers["location"]).text
    assert {name: count for name, count in Counter(audited(api)).items() if name.startswith("release.")} == {
        "release.begin": 1,
        "release.rollback": 1,
    }
    asked = send(api, "/releases", model=GRAPH.model_hash, hold_h="1", again="on")
    assert asked.status_code == 303, "it does where somebody ticks that"


def test_two_admins_at_once_do_a_thing_once(api: Api) -> None:
    """Of eight forms that arrive together one is done; the others are told so, and the log has one entry for each."""
    cookie = api.client.cookies[COOKIE]
    make_token(api, "viewer")  # the second of this planner

    async def together(path: str, fields: dict[str, str]) -> list[int]:
        transport, cookies = httpx.ASGITransport(api.app), {COOKIE: cookie}
        async with httpx.AsyncClient(transport=transport, base_url=HERE, cookies=cookies) as client:
            posts = [client.post(HOME + path, data=fields, headers={"origin": HERE}) for _ in range(8)]
            return sorted(answer.status_code for answer in await asyncio.gather(*posts))

    def at_once(path: str, **fields: str) -> list[int]:
        found: list[int] = api.await_(together, path, fields)
        return found

    assert at_once("/releases", model=GRAPH.model_hash, hold_h="1") == [303] + [409] * 7
    found = re.search(r"/releases/r-[0-9a-f]{24}", api.client.get(f"{HOME}/releases").text)
    assert found is not None
    assert at_once(f"{found[0]}/pause") == [303] + [409] * 7
    assert at_once(f"{found[0]}/rollback") == [303] + [409] * 7
    assert at_once("/tokens/2") == [303] + [404] * 7
    counts = Counter(audited(api))
    for action in ("release.begin", "release.pause", "release.rollback", "token.revoke"):
        assert counts[action] == 1, action


def test_a_database_of_yesterday_asks_everybody_again(api: Api, database_url: str, tmp_path: Path) -> None:
    """Sessions and tokens made since are nobody's, releases since are unknown, the log says what happened."""
    old = make_token(api, "viewer")
    write(database_url, tmp_path / "yesterday.gz")
    began = send(api, "/releases", model=GRAPH.model_hash, hold_h="1").headers["location"]
    new = make_token(api, "admin")
    cookies = dict(api.client.cookies)
    restored = f"sqlite:///{tmp_path}/restored.sqlite"
    assert cli.main(["restore", str(tmp_path / "yesterday.gz"), "--database", restored]) == 0
    with serving(restored, tokens_required=True, rate_per_address=0) as later:
        later.client.follow_redirects = False
        later.client.cookies.update(cookies)
        assert "ended=1" in later.client.get(began).headers["location"]
        later.client.cookies.clear()
        assert "unknown, expired or revoked" in sign_in(later, new).text
        assert sign_in(later, old).status_code == 303
        answer = later.client.get(began)
        assert (answer.status_code, 'role="alert"' in answer.text) == (404, True)
        assert "planner.restore" in later.client.get(f"{HOME}/audit").text
        assert Counter(audited(later))["release.begin"] == 0
