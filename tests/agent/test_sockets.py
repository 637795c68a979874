"""Bytes from several places of memory, sent as one message, and what comes packet by packet, received as one."""

from __future__ import annotations

import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from agent_sdk.server.access import Tls
from agent_sdk.sockets import END, GATHERED, ReadAhead, receive, send_parts
from tests.agent.server.certificates import made_certificate

PIECE = 4096


@pytest.fixture(params=["plain", "TLS"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over TCP, and over TLS on it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        receiver = socket.create_connection(listening.getsockname(), 60)
        sender, _ = listening.accept()
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if request.param == "TLS":
        certificate, key = made_certificate(tmp_path)
        context = ssl.create_default_context(cafile=certificate)
        with ThreadPoolExecutor(1) as served:
            wrapped = served.submit(Tls(certificate, key).context().wrap_socket, sender, server_side=True)
            receiver = context.wrap_socket(receiver, server_hostname="localhost")
            sender = wrapped.result()
    with sender, receiver:
        yield sender, receiver


def test_more_parts_than_one_call_takes_arrive_in_order() -> None:
    """The system takes 1 024 parts at a time; of large parts it takes but a piece."""
    parts = [bytes([place % 251]) * (1 + place % 7) for place in range(3000)] + [bytes(range(256)) * 8192]
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sending = threading.Thread(target=send_parts, args=(sender, parts))
        sending.start()
        with receiver.makefile("rb") as arriving:
            assert arriving.read(sum(map(len, parts))) == b"".join(parts)
        sending.join()


def test_who_receives_is_not_woken_for_every_packet(ends: tuple[socket.socket, socket.socket]) -> None:
    """A message that comes in small pieces is taken in few, whole, and the next short one at once."""
    sender, receiver = ends
    message = np.random.default_rng(0).bytes(4 * GATHERED + PIECE)

    def slowly() -> None:
        for start in range(0, len(message), PIECE):
            sender.sendall(message[start : start + PIECE])
            time.sleep(1e-3)

    sending = threading.Thread(target=slowly)
    into = memoryview(bytearray(len(message)))
    sending.start()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    assert receive(receiver, into, time.monotonic() + 60) == len(message)
    woken = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    sending.join()
    assert into == message
    assert woken < len(message) / PIECE / 4
    sender.sendall(b"next")
    assert receiver.recv(4) == b"next"
    assert receiver.gettimeout() == 60


@pytest.mark.parametrize("size", [100, 10 * GATHERED])
def test_where_a_message_ends_early_its_length_is_known(ends: tuple[socket.socket, socket.socket], size: int) -> None:
    """Where the other side ends, the caller hears how many bytes there are."""
    sender, receiver = ends
    sender.sendall(b"some")
    sender.shutdown(socket.SHUT_WR)
    assert receive(receiver, memoryview(bytearray(size)), time.monotonic() + 60) == 4


def test_nobody_waits_longer_for_more_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    """Too few bytes to be woken for do not keep who receives beyond the time that is given."""
    sender, receiver = ends
    sender.sendall(b"some")
    assert receive(receiver, memoryview(bytearray(10 * GATHERED)), time.monotonic() + 0.05) < GATHERED
    assert receiver.gettimeout() == 60


@pytest.mark.parametrize("seed", range(8))
def test_messages_that_come_at_once_are_taken_one_by_one(seed: int) -> None:
    """Heads up to as long as what is read ahead, and bodies behind them, wherever in that they begin and end."""
    rng = np.random.default_rng(seed)
    most = 64
    heads = [b"h" * int(size) + END for size in rng.integers(0, most - len(END) + 1, 50)]
    bodies = [rng.bytes(int(size)).replace(END[:1], b"-") for size in rng.integers(0, 3 * most, 50)]
    sent = b"".join(head + body for head, body in zip(heads, bodies, strict=True))
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sender.sendall(sent)
        sender.shutdown(socket.SHUT_WR)
        ahead, late = ReadAhead(most), time.monotonic() + 60
        for head, body in zip(heads, bodies, strict=True):
            assert ahead.head(receiver) == head
            into = memoryview(bytearray(len(body)))
            assert ahead.fill(receiver, into, late) == len(body)
            assert into == body
        assert ahead.head(receiver) == b""


def test_a_head_that_is_longer_than_what_is_read_ahead_is_refused() -> None:
    """Also where the rest of it would be there."""
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sender.sendall(b"h" * 61 + END)
        with pytest.raises(ValueError, match="too long"):
            ReadAhead(64).head(receiver)


def test_silence_is_an_error(ends: tuple[socket.socket, socket.socket]) -> None:
    """Who says nothing for longer than the socket's timeout has gone, however much time there is."""
    ends[1].settimeout(0.05)
    with pytest.raises(TimeoutError):
        receive(ends[1], memoryview(bytearray(10 * GATHERED)), time.monotonic() + 60)
