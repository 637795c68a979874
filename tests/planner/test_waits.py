"""``Prefer: wait=N``: one look-out and one read for everybody who waits, however long and whatever happens."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy.exc import OperationalError

from hope_schema import PlanReply
from hope_schema.proof import hash_token
from planner_api.cli.serve import Server, build_config
from planner_api.db.tables import PlanVersionRow
from planner_api.devices import repository as devices
from planner_api.errors import DatabaseAwayError
from planner_api.jobs.news import publish
from planner_api.plans import repository
from tests.planner.jobs_help import improve
from tests.planner.samples import Api, admin_token, chain, eventually, plan_request, serving
from tests.planner.wire import listening, raw, received

pytestmark = pytest.mark.above_databases

GRAPH = chain()
KEY = plan_request(GRAPH).model_dump_json().encode()
NEW_KEY = KEY + b" "
"""The same key in bytes that nobody sent before."""


class Waiting:
    """A planner with one provisional plan in memory, and requests that wait for a better one."""

    def __init__(self, api: Api, pool: ThreadPoolExecutor) -> None:
        self.api = api
        self.planner = api.app.planner
        self.token = admin_token(api)
        self._pool = pool
        mine = {"authorization": f"Bearer {self.token}"}
        api.client.headers.update(mine)
        api.learn(GRAPH)
        self.plan_id = api.post("/plans", KEY).json()["plan_id"]

    def ask(self, body: bytes = KEY, wait: str = "wait=20", **headers: str) -> Future[Any]:
        """Send a request that waits, and return when it does."""
        before = on_lookout(self.planner)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self._pool.submit(self.api.post, "/plans", body, prefer=wait, **named)
        assert eventually(lambda: on_lookout(self.planner) > before or answer.done())
        return answer


def on_lookout(planner: Any) -> int:
    """How many requests wait for another version of a plan."""
    return sum(call.waiting for call in planner.plans._lookouts._calls.values())


@pytest.fixture
def waiting(database_url: str) -> Iterator[Waiting]:
    """The planner on either database."""
    with (
        serving(database_url, tokens_required=True, max_wait_s=25.5, grace_s=2.0) as api,
        ThreadPoolExecutor(16) as pool,
    ):
        yield Waiting(api, pool)


def test_everybody_gets_the_better_plan_as_they_asked_for_it(waiting: Waiting) -> None:
    """It comes in the coding each accepts, with the wait that was granted, and every answer counts once."""
    requests: tuple[tuple[bytes, dict[str, str], str | None, str], ...] = (
        (KEY, {"accept_encoding": "zstd", "x_request_id": "mine-1"}, "zstd", "wait=20"),
        (NEW_KEY, {"accept_encoding": "gzip", "wait": "respond-async, wait=60"}, None, "wait=25.5"),
        (KEY, {"accept_encoding": "identity", "if_none_match": "*"}, None, "wait=20"),
        (KEY, {"accept_encoding": "identity", "wait": f"wait={10**6}"}, None, "wait=25.5"),
    )
    answers = [waiting.ask(body, **asked) for body, asked, _, _ in requests]
    assert improve(waiting.api, waiting.plan_id) == 2
    for future, (_, _, coding, granted) in zip(answers, requests, strict=True):
        answer = future.result(20)
        assert (answer.status_code, answer.headers.get("content-encoding")) == (200, coding)
        assert answer.headers["preference-applied"] == granted
        assert answer.headers["hope-plan-cache"] == "hit"
        assert PlanReply.model_validate_json(answer.content).version == 2
    assert answers[0].result().headers["x-request-id"] == "mine-1"
    assert waiting.api.counted() == (len(requests), 1)
    metrics = waiting.api.client.get("/metrics").text
    assert 'hope_http_request_seconds_count{method="POST",route="/plans",status="200"} 5.0' in metrics


@pytest.mark.parametrize("body", [KEY, NEW_KEY])
def test_who_waited_in_vain_gets_the_provisional_plan(database_url: str, body: bytes) -> None:
    """No wait is longer than granted; one that ends takes nothing from those that go on."""
    with serving(database_url) as api, ThreadPoolExecutor(2) as pool:
        waiting = Waiting(api, pool)
        patient = waiting.ask()
        answer = waiting.ask(body, wait="wait=1").result(20)
        assert (answer.json()["version"], answer.headers["preference-applied"]) == (1, "wait=1")
        assert not patient.done()
        improve(api, waiting.plan_id)
        assert patient.result(20).json()["version"] == 2


def test_everybody_who_waits_costs_one_read(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait, the better plan is read from the database once."""
    answers = [waiting.ask(KEY if n % 4 else NEW_KEY) for n in range(12)]
    reads = []
    find = waiting.planner.plans._find

    async def counted(plan_id: str, version: int | None, generation: int) -> PlanVersionRow | None:
        reads.append(plan_id)
        return await find(plan_id, version, generation)

    monkeypatch.setattr(waiting.planner.plans, "_find", counted)  # the worker reads the version before by itself
    improve(waiting.api, waiting.plan_id)
    assert {answer.result(20).json()["version"] for answer in answers} == {2}
    assert reads == [waiting.plan_id]


def test_a_plan_that_left_memory_is_waited_for_all_the_same(waiting: Waiting) -> None:
    """Who waits for a plan that must be read first gets the better one too, or at once what is better already."""
    waiting.planner.plan_cache.forget(None)
    answer = waiting.ask()
    improve(waiting.api, waiting.plan_id)
    assert answer.result(20).json()["version"] == 2
    waiting.planner.plan_cache.forget(None)
    assert waiting.ask().result(20).json()["version"] == 2, "there is nothing to wait for"


def test_only_who_is_known_may_wait(waiting: Waiting) -> None:
    """An unknown token is refused at once, a revoked one from then on; what it waited for before is still answered."""
    answer = waiting.ask()
    for wrong in ("Bearer wrong", "Basic eDp5"):
        assert waiting.ask(authorization=wrong).result(20).status_code == 401

    async def revoke() -> None:
        async with waiting.planner.database.write() as session:
            found = (await devices.find_tokens(session, [hash_token(waiting.token)]))[hash_token(waiting.token)]
            for revoked in await devices.revoke(session, token_id=found.id):
                await publish(session, devices.REVOKED, revoked)

    waiting.api.await_(revoke)
    assert eventually(lambda: waiting.planner.tokens.known(hash_token(waiting.token)) is None)
    assert waiting.ask().result(20).status_code == 401
    improve(waiting.api, waiting.plan_id)
    assert (answer.result(20).status_code, answer.result().json()["version"]) == (200, 2)


@pytest.mark.parametrize("body", [KEY, NEW_KEY])
def test_a_client_that_hangs_up_leaves_nothing_behind(waiting: Waiting, body: bytes) -> None:
    """Nobody goes on waiting for a connection that is gone, and nobody else minds."""
    with listening(waiting.api, build_config(waiting.api.app, "127.0.0.1", 0)) as port:
        stays = waiting.ask()
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(raw("POST", "/plans", body, authorization=f"Bearer {waiting.token}", prefer="wait=20"))
            assert eventually(lambda: on_lookout(waiting.planner) == 2)
        assert eventually(lambda: on_lookout(waiting.planner) == 1)
        improve(waiting.api, waiting.plan_id)
        assert stays.result(20).json()["version"] == 2
    assert waiting.planner.plans._lookouts._calls == {}
    assert eventually(lambda: ("plan", waiting.plan_id) not in waiting.planner.news._watchers)


def test_the_last_to_hang_up_ends_the_look_out(waiting: Waiting) -> None:
    """With nobody left who waits, nothing looks out for the plan any more; who comes then starts anew."""
    with (
        listening(waiting.api, build_config(waiting.api.app, "127.0.0.1", 0)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        connection.sendall(raw("POST", "/plans", KEY, authorization=f"Bearer {waiting.token}", prefer="wait=20"))
        assert eventually(lambda: on_lookout(waiting.planner) == 1)
        connection.close()
        assert eventually(lambda: ("plan", waiting.plan_id) not in waiting.planner.news._watchers)
        assert waiting.planner.plans._lookouts._calls == {}
        answer = waiting.ask()
        improve(waiting.api, waiting.plan_id)
        assert answer.result(20).json()["version"] == 2


def test_a_process_that_stops_answers_at_once(waiting: Waiting) -> None:
    """Before a shutdown everybody who waits gets the plan there is, and whoever still comes does not wait."""
    answers = [waiting.ask(), waiting.ask(NEW_KEY)]

    async def stop() -> None:
        waiting.planner.news.end_waits()

    waiting.api.await_(stop)
    answers += [waiting.ask(), waiting.ask(NEW_KEY)]
    assert [answer.result(20).json()["version"] for answer in answers] == [1] * 4
    assert {answer.result().headers["preference-applied"] for answer in answers} == {"wait=20"}


def test_a_server_that_is_told_to_stop_answers_first(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop lets nobody who waits go without an answer, and waits for nobody's time to be up."""
    monkeypatch.setattr("planner_api.cli.serve.gc", Mock())  # it would freeze what the other tests use
    with socket.socket() as connection:
        connection.settimeout(60)
        config = build_config(waiting.api.app, "127.0.0.1", 0)
        with listening(waiting.api, config, lambda config: Server(config, waiting.planner)) as port:
            connection.connect(("127.0.0.1", port))
            connection.sendall(raw("POST", "/plans", KEY, authorization=f"Bearer {waiting.token}", prefer="wait=20"))
            assert eventually(lambda: on_lookout(waiting.planner) == 1)
        status, headers, body = received(connection)
    assert status == 200
    assert headers["preference-applied"] == "wait=20"
    assert json.loads(body)["version"] == 1


def test_a_database_that_is_away_is_said_to_be_away(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the better plan cannot be read, everybody who waits is told so."""
    answers = [waiting.ask(), waiting.ask(NEW_KEY)]

    async def away(*_: Any) -> None:
        raise DatabaseAwayError("away")

    with monkeypatch.context() as outage:
        outage.setattr(waiting.planner.plans, "_find", away)
        improve(waiting.api, waiting.plan_id)
        for answer in answers:
            assert answer.result(20).status_code == 503
            assert answer.result().headers["retry-after"]
    assert waiting.ask().result(20).json()["version"] == 2


def test_who_waits_is_counted_once(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits takes one request of its token's limit."""
    burst = 4 + 2  # what it takes to learn the key, and two requests more
    with (
        serving(sqlite_url, tokens_required=True, rate_per_token=0.001, burst_per_token=burst) as api,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = Waiting(api, pool)
        waiting.planner.plan_cache.forget(None)

        async def away(*_: Any) -> None:
            raise OperationalError("SELECT", {}, Exception("away"))

        monkeypatch.setattr(repository, "find", away)
        assert [waiting.ask().result(20).status_code for _ in range(3)] == [503, 503, 429]


@pytest.mark.parametrize("wait", ["wait=0", "respond-async", "wait=soon"])
def test_preferences_that_wait_for_nothing(waiting: Waiting, wait: str) -> None:
    """A preference without a time to wait is answered at once, and none is applied."""
    answer = waiting.ask(wait=wait).result(20)
    assert (answer.status_code, answer.json()["version"]) == (200, 1)
    assert "preference-applied" not in answer.headers
