"""Connections that take and do not give: unread answers, dripped bodies, more of them than one address may hold."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from sqlalchemy import event

from hope_schema import ModelGraph, Op, Tensor
from planner_api import concurrency
from planner_api.cli.serve import build_config
from planner_api.concurrency import Turns
from planner_api.devices.guard import AT_ONCE
from planner_api.web import protocol
from planner_api.web.body import SMALL_BYTES
from planner_api.web.connections import NETWORK, Connections
from planner_api.web.stored import StoredReply
from tests.planner.samples import Api, admin_token, bearer, chain, enrolled, eventually, serving
from tests.planner.wire import listening, raw

pytestmark = pytest.mark.above_databases

GRAPH = chain()


def large_graph() -> ModelGraph:
    """A graph of four megabytes, which is small when it is compressed."""
    tensors = tuple(Tensor(name=f"t{i:03}" + "x" * 400, shape=(1,), dtype="float32") for i in range(4000))
    ops = tuple(
        Op(type="Relu", inputs=(tensors[i].name,), outputs=(tensors[i + 1].name,)) for i in range(len(tensors) - 1)
    )
    return ModelGraph(name="large", tensors=tensors, ops=ops, inputs=(tensors[0].name,), outputs=(tensors[-1].name,))


@pytest.fixture(scope="module")
def served(shared_url: str) -> Iterator[tuple[Api, int, str]]:
    """A planner behind a socket that knows a large graph; its port, and the path of the graph."""
    with serving(shared_url, works=(), tokens_required=True, connections_per_address=60) as api:
        graph = large_graph()
        answer = api.post("/models", graph, **bearer(admin_token(api)))
        assert answer.status_code == 201, answer.text
        with listening(api, build_config(api.app, "127.0.0.1", 0)) as port:
            yield api, port, f"/models/{graph.model_hash}"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> set[protocol.BoundedProtocol]:
    """The connections that a server has, or had."""
    found: set[protocol.BoundedProtocol] = set()
    made = protocol.BoundedProtocol.connection_made

    def note(self: protocol.BoundedProtocol, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        found.add(self)

    monkeypatch.setattr(protocol.BoundedProtocol, "connection_made", note)
    return found


def unread(stack: contextlib.ExitStack, port: int, path: str, **headers: str) -> None:
    """Ask for something on a connection that is not read from."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stack.enter_context(connection).connect(("127.0.0.1", port))
    connection.sendall(raw("GET", path, **headers))


def test_answers_that_nobody_reads_take_little_and_end(
    served: tuple[Api, int, str], connections: set[protocol.BoundedProtocol], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any number of large answers a device holds pieces alone, of few at once, and not for long."""
    api, port, path = served
    token = enrolled(api, "idle")["authorization"]
    under_way: list[int] = [0]
    """How many answers were, each time that one began."""
    pieces: list[int] = []
    answer = StoredReply.__call__

    async def noted(self: StoredReply, scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            pieces.append(len(message.get("body", b"")))
            await send(message)

        now.add(self)
        under_way.append(len(now))
        try:
            await answer(self, scope, receive, sent)
        finally:
            now.remove(self)

    now: set[StoredReply] = set()
    monkeypatch.setattr(StoredReply, "__call__", noted)
    monkeypatch.setattr(protocol, "READ_S", 1.0)
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            unread(stack, port, path, authorization=token)
        assert eventually(lambda: len(under_way) > 30 and all(each.transport.is_closing() for each in connections))
    assert len(connections) == 30
    assert max(under_way) <= AT_ONCE
    assert max(pieces) <= 256 * 1024


def test_an_answer_goes_out_in_pieces(served: tuple[Api, int, str], connections: set[protocol.BoundedProtocol]) -> None:
    """However large an answer is, a connection that nobody reads from holds a piece of it."""

    async def large(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(16 * 2**20)})

    api, _, _ = served
    config = build_config(api.app, "127.0.0.1", 0)
    config.app = large
    with listening(api, config) as port, contextlib.ExitStack() as stack:
        unread(stack, port, "/")

        async def held() -> int:
            return sum(each.transport.get_write_buffer_size() for each in connections)

        assert eventually(lambda: api.await_(held) > 0)
        assert api.await_(held) <= 256 * 1024


def test_a_large_answer_is_the_same_in_each_coding(served: tuple[Api, int, str]) -> None:
    """Piece by piece, as stored, and without a body: what is said of the length is true."""
    api, _, path = served
    header = bearer(admin_token(api))
    plain = api.client.get(path, headers={**header, "accept-encoding": "identity"})
    assert len(plain.content) == int(plain.headers["content-length"])
    assert ModelGraph.model_validate_json(plain.content) == large_graph()
    stored = api.client.get(path, headers={**header, "accept-encoding": "zstd"})
    assert stored.headers["content-encoding"] == "zstd"
    assert int(stored.headers["content-length"]) < len(plain.content) // 10
    head = api.client.head(path, headers={**header, "accept-encoding": "identity"})
    assert head.headers["content-length"] == plain.headers["content-length"]
    assert head.content == b""


def test_an_address_holds_so_many_connections(served: tuple[Api, int, str]) -> None:
    """One more than it may hold is told so and logged; what was closed makes room."""
    _, port, _ = served
    with structlog.testing.capture_logs() as said, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(61)]
        assert idle[-1].recv(4096).startswith(b"HTTP/1.1 429 ")
        assert [line["address"] for line in said if line["event"] == "connections_refused"] == ["127.0.0.1"]
        idle[0].close()
        assert eventually(lambda: b" 200 " in _answer_of(port))


def _answer_of(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(raw("GET", "/healthz", connection="close"))
        with contextlib.suppress(ConnectionResetError):
            return connection.recv(4096)
    return b""


def test_connections_are_counted_by_address_and_together() -> None:
    """Each address has its bound, a proxy's has none, and all together have theirs."""
    held = Connections(5, 2, {"10.0.0.9"})
    assert [held.enter("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert [held.enter("10.0.0.9") for _ in range(4)] == [True, True, True, False]
    held.leave("10.0.0.9")
    assert held.enter("10.0.0.2")
    held.leave("10.0.0.1")
    held.leave("10.0.0.2")
    assert held.enter("10.0.0.1")


@pytest.mark.parametrize(("drawn", "other"), [("10.0.1.{}", "10.0.2.1"), ("2001:db8:0:1::{}", "2001:db8:0:2::1")])
def test_connections_are_counted_by_network(drawn: str, other: str) -> None:
    """Whoever has every address of a network holds a share of all connections; what has left is counted no more."""
    held = Connections(1000, 2)
    entered = [address for address in map(drawn.format, range(100)) if held.enter(address)]
    assert len(entered) == 2 * NETWORK
    assert held.enter(other)
    for address in (*entered, other):
        held.leave(address)
    assert not held._open


def test_strangers_write_no_log_full(sqlite_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Malformed requests, and wishes for another protocol, are answered and leave no line."""
    upgrade = raw("GET", "/healthz", connection="Upgrade", upgrade="websocket", sec_websocket_version="13")
    with serving(sqlite_url, works=()) as api, listening(api, build_config(api.app, "127.0.0.1", 0)) as port:
        capfd.readouterr()
        for sent, status in ((upgrade, b" 200 "), (b"\x16\x03\x01 nothing\r\n\r\n", b" 400 ")):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(sent)
                assert status in connection.recv(16)
        assert "WARNING" not in capfd.readouterr().err


def test_open_files_are_raised(sqlite_url: str) -> None:
    """A server asks for as many open files as it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, soft), hard))
    try:
        with serving(sqlite_url, works=()) as api:
            build_config(api.app, "127.0.0.1", 0)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(hard, 2**16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_who_drips_holds_nobodys_slot(served: tuple[Api, int, str]) -> None:
    """However many devices send large bodies that never end, another one's is read."""
    api, port, _ = served
    with contextlib.ExitStack() as stack:
        for number in range(12):
            token = enrolled(api, f"drip-{number}")["authorization"]
            begun = raw("POST", "/models", content_length="400000", authorization=token) + b" " * (SMALL_BYTES + 1)
            for _ in range(2):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
                connection.sendall(begun)
        assert eventually(lambda: api.app.planner.large_bodies._at_work.total() == 24)
        body = GRAPH.model_dump_json().encode() + b" " * (SMALL_BYTES + 1)
        assert api.post("/models", body, **enrolled(api, "honest")).status_code in (200, 201)


def test_who_took_least_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of owners that wait, one that took nothing lately goes before any that keep the slot busy."""
    now = [0.0]
    monkeypatch.setattr(
        concurrency, "time", SimpleNamespace(monotonic=lambda: now[0])
    )  # event loops of other tests read time

    async def main() -> list[str]:
        turns, order = Turns("things", slots=1, each=1, waiting=100, refused=Counter()), list[str]()

        async def work(owner: str) -> None:
            async with turns.turn(owner):
                order.append(owner)
                now[0] += 1.0
                await asyncio.sleep(0)

        await asyncio.gather(*(work(f"hostile {number}") for number in range(5)))
        order.clear()
        await asyncio.gather(*(work(f"hostile {number}") for number in range(5)), work("honest"))
        return order

    assert asyncio.run(main()).index("honest") <= 1


def test_an_old_version_is_read_once(database_url: str) -> None:
    """Asked for again and again, a version of a plan costs the database nothing."""
    with serving(database_url) as api:
        api.learn(GRAPH)
        plan = api.plan(GRAPH)
        asked: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
            asked.append(statement)

        event.listen(api.app.planner.database.reader.sync_engine, "before_cursor_execute", note)
        address = f"/plans/{plan.plan_id}?version={plan.version}"

        def costs_nothing() -> bool:
            asked.clear()
            assert len({api.client.get(address).content for _ in range(5)}) == 1
            return not any("plan_versions" in statement for statement in asked)

        assert eventually(costs_nothing)  # the news of the plan itself may still come, and has it read anew
        assert api.client.get(f"/plans/{plan.plan_id}?version=99").status_code == 404
