"""Connections: bounded before any token, and otherwise as uvicorn's own, which is the oracle."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from planner_api.app import openapi_document
from planner_api.cli.serve import build_config
from planner_api.web.protocol import MAX_HEAD_BYTES, PIECE_BYTES, BoundedProtocol
from tests import CAMPAIGN
from tests.planner.samples import Api, admin_token, chain, plan_request, serving
from tests.planner.wire import listening, raw

pytestmark = pytest.mark.above_databases

GRAPH = chain()


class Stage(NamedTuple):
    """One application behind two servers, and the requests that fit it."""

    api: Api
    ours: int
    oracle: int
    requests: dict[str, bytes]


@pytest.fixture(scope="module")
def stage(shared_url: str) -> Iterator[Stage]:
    """A planner with one plan in memory, served by our connections and by uvicorn's own."""
    with serving(shared_url) as api:
        api.learn(GRAPH)
    with serving(shared_url, tokens_required=True, rate_per_token=0, rate_per_address=0, metrics=True) as api:
        mine = {"authorization": f"Bearer {admin_token(api)}", "accept_encoding": "zstd"}
        key = plan_request(GRAPH).model_dump_json().encode()
        answer = api.post("/plans", key, authorization=mine["authorization"])
        path, tag = f"/plans/{answer.json()['plan_id']}", answer.headers["etag"]
        typed = {"content_type": "application/json"}
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
            "by key": raw("POST", "/plans", key, **mine, **typed),
            "by key in chunks": raw("POST", "/plans", chunked, transfer_encoding="chunked", **mine, **typed),
            "by key after asking": raw("POST", "/plans", key, expect="100-continue", **mine, **typed),
            "by no key": raw("POST", "/plans", b"{}", **mine, **typed),
            "by nothing": raw("POST", "/plans", content_length="0", **mine, **typed),
            "too long for a key": raw("POST", "/plans", b" " * 70_000, **mine, **typed),
            "stranger by key": raw("POST", "/plans", key, **typed),
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
        with suppress(ConnectionResetError):  # a server that hung up before the last piece came
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
    """Any requests, pipelined and cut anywhere, get the same answers in the order as over uvicorn's own connection."""
    names = data.draw(st.lists(st.sampled_from(sorted(set(stage.requests) - {"last"})), max_size=6), label="requests")
    sent = [stage.requests[name] for name in [*names, "last"]]
    whole = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4), label="cuts"))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True) if start < end]
    methods = [each.partition(b" ")[0] for each in sent]
    ours, expected = (converse(port, pieces) for port in (stage.ours, stage.oracle))
    assert answers(ours, methods) == answers(expected, methods)


async def in_pieces(scope: Any, _receive: Any, send: Any) -> None:
    """Answer in two pieces, with a length or without one, or with a header that is two."""
    headers = [] if scope["path"] == "/unknown" else [(b"content-length", b"6")]
    if scope["path"] == "/injected":
        headers.append((b"x-said", b"mine\r\nset-cookie: theirs"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"abc", "more_body": True})
    await send({"type": "http.response.body", "body": b"def"})


@pytest.mark.parametrize("path", ["/known", "/unknown", "/injected"])
def test_answers_in_pieces_are_those_of_uvicorn(stage: Stage, path: str) -> None:
    """An answer may come in pieces, with its length unknown; one with a header that is two is not sent."""
    found = []
    for kind in (BoundedProtocol, HttpToolsProtocol):
        config = uvicorn.Config(in_pieces, port=0, http=kind, ws="none", date_header=False, log_level="critical")
        with listening(stage.api, config) as port:
            found.append(converse(port, [raw("GET", path), raw("GET", path, connection="close")]))
    ours, theirs = found
    if path == "/injected":
        assert (ours, theirs) == (b"", b"")
    else:
        assert ours == theirs
        assert b"def" in ours


def test_a_client_that_does_not_read_is_not_read_from(stage: Stage) -> None:
    """A client that asks for thousands of plans and reads none is soon no longer listened to."""
    many = stage.requests["plan"] * 200
    sent = 0
    with socket.create_connection(("127.0.0.1", stage.ours), timeout=0.5) as connection, suppress(TimeoutError):
        for _ in range(2_000):
            sent += connection.send(many)
    assert sent < 1_000 * len(many)


@pytest.mark.parametrize("begun", [b"", b"{"])
def test_a_body_that_never_ends_runs_into_its_time_limit(database_url: str, begun: bytes) -> None:
    """A request is not waited for for ever, not even when nothing of its body ever comes."""
    with (
        serving(database_url, body_timeout_s=0.2) as api,
        listening(api, build_config(api.app, "127.0.0.1", 0)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        connection.sendall(raw("POST", "/plans", content_length="2") + begun)
        assert refusal(connection) == (408, "urn:hope:body-timeout")


def refusal(connection: socket.socket) -> tuple[int, str]:
    """Read until the server hangs up; return the status and the type of the problem it told at last."""
    found = bytearray()
    with suppress(ConnectionError):
        while chunk := connection.recv(65536):
            found += chunk
    head, _, body = bytes(found[found.rindex(b"HTTP/1.1 ") :]).partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    return int(head.split()[1]), json.loads(body)["type"]


GET = b"GET /plans/p HTTP/1.1\r\nhost: localhost\r\n"
POST = b"POST /plans HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
ENDLESS = {
    "one line": (b"GET /", b"x" * 4096),
    "one header": (GET + b"x-long: ", b"x" * 4096),
    "many headers": (GET, b"".join(b"x-%d: y\r\n" % n for n in range(400))),
    "short headers": (GET, b"a:\r\n" * 1024),
    "empty lines": (b"", b"\r\n" * 2048),
    "a trailer": (POST + b"x-long: ", b"x" * 4096),
    "many trailers": (POST, b"a: b\r\n" * 700),
    "a chunk's extension": (POST[:-3] + b"2;", b"x" * 4096),
}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("pause_s", [0.0, 0.001])
def test_a_head_that_never_ends_is_refused(stage: Stage, name: str, pause_s: float) -> None:
    """Whatever grows without end before a token was looked at, in one go or bit by bit, ends within its limit."""
    begin, more = ENDLESS[name]
    sent = 0
    with socket.create_connection(("127.0.0.1", stage.ours), timeout=20) as connection:
        with suppress(ConnectionError):
            connection.sendall(begin)
            for _ in range(4096):
                sent += connection.send(more)
                time.sleep(pause_s)
        if pause_s:  # otherwise the rest of what was sent may cost us the answer
            assert refusal(connection) == (431, "urn:hope:head-too-large")
    assert sent < 8 * 2**20  # what the kernel's buffers take; the server itself stops at 32 KiB


@settings(max_examples=100 if CAMPAIGN else 20, deadline=None)
@given(st.integers(0, 110), st.integers(0, 900))
def test_heads_within_the_limits_are_read(stage: Stage, fields: int, size: int) -> None:
    """A head is refused exactly when it has more than a hundred fields or, whole, more than the limit and a piece."""
    more = "".join(f"x-{n}: {'y' * size}\r\n" for n in range(fields)).encode()
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + more + b"\r\n"
    with socket.create_connection(("127.0.0.1", stage.ours), timeout=20) as connection:
        connection.sendall(head)
        status = int(connection.recv(65536).split()[1])
    if fields > 98:
        assert status == 431
    elif len(head) <= MAX_HEAD_BYTES:
        assert status == 200
    elif len(head) > MAX_HEAD_BYTES + PIECE_BYTES:
        assert status == 431


def test_slow_heads_are_not_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that begin a request and never end it are told so and closed; silent ones are closed."""
    monkeypatch.setattr("planner_api.web.protocol.HEAD_S", 0.3)
    begun = [socket.create_connection(("127.0.0.1", stage.ours), timeout=20) for _ in range(40)]
    for number, connection in enumerate(begun):
        connection.sendall(GET[: number % 4 * 8])
    for _ in range(8):  # a byte now and then buys no time
        time.sleep(0.05)
        with suppress(OSError):
            begun[3].sendall(b"x")
    for number, connection in enumerate(begun):
        if number % 4:
            assert refusal(connection) == (408, "urn:hope:head-timeout")
        else:
            assert connection.recv(1) == b""
        connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"content-encoding: nonsense", 415),
        (b"content-type: text/plain", 415),
        (b"content-type: application/json\r\ncontent-type: text/plain", 400),
        (b"content-encoding: identity\r\ncontent-encoding: zstd", 400),
        (b"authorization: Bearer wrong", 401),
    ],
)
def test_doubtful_headers_are_answered_alike_everywhere(stage: Stage, headers: bytes, status: int) -> None:
    """Whether the plan is in memory, new, or the path another one: unreadable or repeated headers get one answer."""
    key = stage.requests["by key"]
    body = key.partition(b"\r\n\r\n")[2]
    authorization = next(line for line in key.split(b"\r\n") if line.startswith(b"authorization"))
    for path, sent in ((b"/plans", body), (b"/plans", body + b" "), (b"/models", body), (b"/profiles", body)):
        head = [b"POST " + path + b" HTTP/1.1", b"host: localhost", authorization, headers, b"connection: close"]
        head.append(b"content-length: %d" % len(sent))
        found = converse(stage.ours, [b"\r\n".join(head) + b"\r\n\r\n" + sent])
        assert int(found.split()[1]) == status, (path, found[:300])


def test_two_authorizations_are_refused_alike_everywhere(stage: Stage) -> None:
    """Whatever a path asks of who calls it, nobody guesses which of two is meant, were they the same."""
    token = f"Bearer {admin_token(stage.api)}"
    twice = b"authorization: %b\r\nauthorization: %b" % (token.encode(), token.encode())
    paths = {path for path, methods in openapi_document()["paths"].items() if "{" not in path}
    for path in (*sorted(paths), "/plans/p-none", "/nowhere"):
        for method in ("GET", "POST"):
            sent = raw(method, path, connection="close", content_length="0").replace(
                b"connection", twice + b"\r\nconnection"
            )
            status, body = converse(stage.ours, [sent]).partition(b"\r\n\r\n")[::2]
            assert status.startswith(b"HTTP/1.1 401 "), (method, path, status)
            assert b"several Authorization headers" in body
