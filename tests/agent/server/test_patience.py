"""How long a client is waited for, and how many there may be; on a listener of this process, whose bounds are small."""

from __future__ import annotations

import gc
import select
import socket
import ssl
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_sdk.errors import RefusedError
from agent_sdk.server import connection, listener
from agent_sdk.server.access import Address, Tls
from agent_sdk.server.connection import Exchange
from agent_sdk.server.listener import Listener
from tests.agent.server.certificates import made_certificate
from tests.agent.server.test_bad_input import read_answer
from tests.agent.test_session_shapes import until

HEAD = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n"


def echo(exchange: Exchange) -> None:
    """Answer with the body."""
    try:
        exchange.answer(200, bytes(exchange.body(lambda _: None)))
    except RefusedError as error:
        exchange.answer(error.status, str(error).encode())


@contextmanager
def listening(handle: Callable[[Exchange], None] = echo, tls: ssl.SSLContext | None = None) -> Iterator[Listener]:
    """Serve this on a port of this machine."""
    made = Listener(Address("127.0.0.1", 0), tls, handle)
    made.start()
    try:
        yield made
    finally:
        made.stop(lambda: None)


def connected(server: Listener) -> socket.socket:
    """A client that waits for a minute at most."""
    return socket.create_connection(("127.0.0.1", server.address.port), 60)


def test_a_head_is_read_once_and_goes_with_its_connection() -> None:
    """The same head again is not read again, another one is; with the client its token is gone from the server."""
    found: list[weakref.ref[connection.Head]] = []
    shown: list[str] = []

    def told(exchange: Exchange) -> None:
        found.append(weakref.ref(exchange.head))
        shown.append(exchange.head.fields["authorization"])
        echo(exchange)

    with listening(told) as server:
        with connected(server) as client:
            for token in ("one", "one", "another"):
                client.sendall(HEAD[:-2] + f"authorization: Bearer {token}\r\n\r\n".encode() + b"abcd")
                assert read_answer(client) == (200, "abcd")
            assert shown == ["Bearer one", "Bearer one", "Bearer another"]
            assert found[0] is found[1] is not found[2]
        until(lambda: not server.connections)
        gc.collect()
        until(lambda: all(head() is None for head in found))


def test_a_slow_head_is_told_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the time for a head is over its client hears so and the connection ends; the next one is served."""
    with listening() as server:
        with monkeypatch.context() as patched, connected(server) as slow:
            patched.setattr(connection, "HEAD_S", -1.0)  # over before it began
            slow.sendall(HEAD[:20])
            status, body = read_answer(slow)
            assert (status, "did not arrive within" in body) == (408, True), body
            assert slow.recv(1) == b""
        with connected(server) as client:
            client.sendall(HEAD + b"abcd")
            assert read_answer(client) == (200, "abcd")


def test_a_slow_head_behind_another_request_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has begun to come with the request before it, and comes byte by byte from then on."""
    monkeypatch.setattr(connection, "HEAD_S", 0.0)  # a head that comes at once is in time
    with listening() as server, connected(server) as slow:
        slow.sendall(HEAD + b"abcd" + HEAD[:20])
        assert read_answer(slow) == (200, "abcd")
        for byte in HEAD[20:-4]:
            slow.sendall(bytes([byte]))
            if select.select([slow], [], [], 0.05)[0]:
                break
        status, body = read_answer(slow)
        assert (status, "did not arrive within" in body) == (408, True), body


def test_a_slow_body_is_told_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the time for a body is over its client hears so and the connection ends."""
    monkeypatch.setattr(connection, "BODY_S", -1.0)
    with listening() as server, connected(server) as slow:
        slow.sendall(HEAD[:-2] + b"expect: 100-continue\r\n\r\n")
        assert slow.recv(100).startswith(b"HTTP/1.1 100")  # the body is waited for
        slow.sendall(b"ab")
        status, body = read_answer(slow)
        assert (status, "of 4 bytes of the body 2" in body) == (408, True), body
        assert slow.recv(1) == b""


def test_a_silent_client_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who connects and says nothing, or takes no answer, keeps its thread no longer than that."""
    monkeypatch.setattr(connection, "SILENCE_S", 0.05)
    with listening() as server, connected(server) as silent:
        assert silent.recv(1) == b""


def test_who_takes_no_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads nothing keeps its thread, and what its answer takes, no longer than that."""
    monkeypatch.setattr(connection, "SILENCE_S", 0.05)
    size = 32 * 2**20  # beyond what the system buffers
    with listening() as server, connected(server) as deaf:
        deaf.settimeout(60)
        deaf.sendall(HEAD.replace(b"length: 4", b"length: %d" % size))
        for _ in range(32):
            deaf.sendall(bytes(2**20))
        until(lambda: server.connections == 0)


def test_a_request_that_comes_as_its_connection_ends_is_answered_under_tls(tmp_path: Path) -> None:
    """Who ends what is idle may find a head that has just come: its answer is encrypted as any other."""
    certificate, key = made_certificate(tmp_path)

    def ended(exchange: Exchange) -> None:
        exchange.connection.idle = True  # as whoever ends it sees it
        exchange.connection.end()
        exchange.answer(200, b"secret")

    context = ssl.create_default_context(cafile=certificate)
    with (
        listening(ended, Tls(certificate, key).context()) as server,
        context.wrap_socket(connected(server), server_hostname="localhost") as client,
    ):
        client.sendall(HEAD.replace(b"length: 4", b"length: 0"))
        assert read_answer(client) == (200, "secret")


def test_more_clients_than_may_be_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes when all places are taken is told to come again, and is served once somebody has left."""
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 1)
    with listening() as server:
        with connected(server) as first:
            first.sendall(HEAD + b"abcd")
            assert read_answer(first)[0] == 200
            with connected(server) as second:
                assert read_answer(second)[0] == 503
        until(lambda: server.connections == 0)
        with connected(server) as third:
            third.sendall(HEAD + b"abcd")
            assert read_answer(third) == (200, "abcd")
