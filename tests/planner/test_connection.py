"""The short cut of a connection changes nothing but the time: uvicorn's own way is the oracle."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner_api.http.asgi import Scope
from planner_api.server import build_config
from tests import CAMPAIGN
from tests.planner.samples import Api, chain, operator_token, plan_request, serving
from tests.planner.wire import listening, raw

GRAPH = chain()


class Stage(NamedTuple):
    """One application behind two servers, and the requests that fit it."""

    api: Api
    ours: int
    oracle: int
    requests: dict[str, bytes]


@pytest.fixture(scope="module")
def stage(sqlite_template: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A planner with one plan in memory, served by our connections and by uvicorn's own."""
    url = f"sqlite:///{tmp_path_factory.mktemp('connection')}/hope.sqlite"
    with serving(url) as api:
        api.learn(GRAPH)
    with serving(url, tokens_required=True, rate_per_token=0, rate_per_address=0, metrics=True) as api:
        mine = {"authorization": f"Bearer {operator_token(api)}", "accept_encoding": "zstd"}
        key = plan_request(GRAPH).model_dump_json().encode()
        answer = api.post("/plans", key, authorization=mine["authorization"])
        path, tag = f"/plans/{answer.json()['plan_id']}", answer.headers["etag"]
        json = {"content_type": "application/json"}
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(key), key)
        found = {
            "plan": raw("GET", path, **mine),
            "gzip": raw("GET", path, **{**mine, "accept_encoding": "gzip"}),
            "plain": raw("GET", path, authorization=mine["authorization"]),
            "unchanged": raw("GET", path, if_none_match=tag, **mine),
            "changed": raw("GET", path, if_none_match='"else"', **mine),
            "query": raw("GET", path + "?x=1", **mine),
            "escaped": raw("GET", path.replace("-", "%2D"), **mine),
            "named": raw("GET", path, x_request_id="mine-1", **mine),
            "badly named": raw("GET", path, x_request_id="a b", **mine),
            "stranger": raw("GET", path, authorization="Bearer wrong"),
            "anonymous": raw("GET", path),
            "elsewhere": raw("GET", "/plans/p-none", **mine),
            "head": raw("HEAD", path, **mine),
            "delete": raw("DELETE", path, **mine),
            "with a body": raw("GET", path, b"GET / HTTP/1.1\r\n\r\n", **mine),
            "by key": raw("POST", "/plans", key, **mine, **json),
            "by key in chunks": raw("POST", "/plans", chunked, transfer_encoding="chunked", **mine, **json),
            "by key after asking": raw("POST", "/plans", key, expect="100-continue", **mine, **json),
            "by no key": raw("POST", "/plans", b"{}", **mine, **json),
            "by nothing": raw("POST", "/plans", content_length="0", **mine, **json),
            "too long for a key": raw("POST", "/plans", b" " * 70_000, **mine, **json),
            "stranger by key": raw("POST", "/plans", key, **json),
            "alive": raw("GET", "/healthz"),
            "last": raw("GET", path, connection="close", **mine),
        }  # fmt: skip
        with listening(api, build_config(api.app, "127.0.0.1", 0)) as ours:
            plain = build_config(api.app, "127.0.0.1", 0)
            plain.http = "httptools"
            with listening(api, plain) as oracle:
                yield Stage(api, ours, oracle, found)


def converse(port: int, pieces: list[bytes]) -> bytes:
    """Send the pieces one by one and return everything that comes back until the server hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.001)
        found = bytearray()
        while chunk := connection.recv(65536):
            found += chunk
    return bytes(found)


def answers(found: bytes, methods: list[bytes]) -> list[tuple[bytes, dict[bytes, bytes], bytes]]:
    """Cut what came back into (status line, headers, body); what a clock or a counter chose is blotted out."""
    cut: list[tuple[bytes, dict[bytes, bytes], bytes]] = []
    for method in methods:
        head, _, found = found.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            cut.append((head, {}, b""))
            head, _, found = found.partition(b"\r\n\r\n")
        line, *rest = head.split(b"\r\n")
        headers = dict(each.split(b": ", 1) for each in rest)
        size = 0 if method == b"HEAD" or b" 304 " in line else int(headers.get(b"content-length", b"0"))
        body, found = found[:size], found[size:]
        own = headers.pop(b"x-request-id", b"")
        headers.pop(b"date", None)
        cut.append(
            (line, headers | {b"own": own if own == b"mine-1" else b""}, body.replace(own, b"") if own else body)
        )
    assert found == b""
    return cut


@settings(
    max_examples=300 if CAMPAIGN else 25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_answers_are_those_of_uvicorn(stage: Stage, data: st.DataObject) -> None:
    """Any requests, pipelined and cut anywhere, get the same answers in the same order as without the short cut."""
    names = data.draw(st.lists(st.sampled_from(sorted(set(stage.requests) - {"last"})), max_size=6), label="requests")
    sent = [stage.requests[name] for name in [*names, "last"]]
    whole = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4), label="cuts"))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True) if start < end]
    methods = [each.partition(b" ")[0] for each in sent]
    ours, expected = (converse(port, pieces) for port in (stage.ours, stage.oracle))
    assert answers(ours, methods) == answers(expected, methods)


def test_the_short_cut_is_taken_and_counted(stage: Stage) -> None:
    """A cached plan is answered without the application being called, and metrics and hits know of it."""
    planner = stage.api.app.planner
    planner.plan_cache.take_hits()
    called = []
    outermost = stage.api.app._outermost

    async def watched(scope: Scope, receive: Any, send: Any) -> None:
        called.append(scope["path"])
        await outermost(scope, receive, send)

    stage.api.app._outermost = watched
    try:
        names = ["plan", "unchanged", "by key", "plan"]
        converse(stage.ours, [*(stage.requests[name] for name in names), raw("GET", "/healthz", connection="close")])
    finally:
        stage.api.app._outermost = outermost
    assert called == ["/healthz"]
    assert sum(planner.plan_cache.take_hits().values()) == len(names)


def test_a_client_that_does_not_read_is_not_read_from(stage: Stage) -> None:
    """A client that asks for thousands of plans and reads none is soon no longer listened to."""
    many = stage.requests["plan"] * 200
    sent = 0
    with socket.create_connection(("127.0.0.1", stage.ours), timeout=0.5) as connection, suppress(TimeoutError):
        for _ in range(2_000):
            sent += connection.send(many)
    assert sent < 1_000 * len(many)


@pytest.mark.parametrize("begun", [b"", b"{"])
def test_a_body_that_never_ends_runs_into_its_time_limit(sqlite_url: str, begun: bytes) -> None:
    """A request that is held until its body is there is not held for ever, not even when nothing of it ever comes."""
    with (
        serving(sqlite_url, body_timeout_s=0.2) as api,
        listening(api, build_config(api.app, "127.0.0.1", 0)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        connection.sendall(raw("POST", "/plans", content_length="2") + begun)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"x-request-id: " in answer
