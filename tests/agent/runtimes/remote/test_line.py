"""Answers that the protocol does not allow, or that are too large: each is given up for its own reason."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from agent_sdk.errors import ProcessorLost
from agent_sdk.runtimes.remote.line import GoneError, Line, request

OK = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {
    "more tensors": (
        b"content-length: 12\r\ninference-header-content-length: 2\r\n\r\n{}0123456789",
        "10 bytes of tensors instead of 4",
    ),
    "no tensors": (b"content-length: 2\r\n\r\n{}", "without the tensors"),
    "lengths": (b"content-length: 2\r\ninference-header-content-length: 3\r\n\r\n{}", "contradict each other"),
    "an endless head": (b"a: b\r\n" * 20_000, "the head is too long"),
    "endless JSON": (b"content-length: 1000000000\r\n\r\n", "1000000000 bytes of JSON"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_beyond_the_protocol_is_given_up(answer: str) -> None:
    """Nothing of it is waited for, or believed."""
    said, why = ANSWERS[answer]
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client, suppress(OSError):
                client.recv(1 << 16)
                client.sendall(OK + said)
                client.recv(1)  # until it is given up

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        line = Line(listening.getsockname(), None, "edge", 20.0)
        with pytest.raises(ProcessorLost, match=why):
            line.ask([request("GET", "/", {"host": "edge"}, 0)], [memoryview(bytearray(4))], 20.0)
        assert line.closed
        thread.join(20)


@pytest.mark.parametrize("length", [0, 104, 232])
def test_what_is_lost_on_the_way_is_what_the_system_sends_again(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Linux counts it (``struct tcp_info``, as long as the system has it); a connection that loses nothing has
    sent a few; elsewhere nothing is known.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        line = Line(listening.getsockname(), None, "edge", 20.0)
        again, sent = line.sent_again()
        assert again == 0 < sent < 10
        # 8 bytes, 24 counts of which the last is of what was sent again, 4 of 64 bits, what was sent
        counts = struct.pack("=8x23I I 4Q 2I 88x", *range(23), 7, 0, 0, 0, 0, 350, 300)[:length]
        monkeypatch.setattr(line, "_socket", SimpleNamespace(getsockopt=lambda *_: counts, close=line._socket.close))
        assert line.sent_again() == ((7, 350) if length == 232 else (0, 0))
        line.close()


WHOLE = OK + b"content-length: 6\r\ninference-header-content-length: 2\r\n\r\n{}0123"


@pytest.mark.parametrize("kept", [0, 5, len(WHOLE) - 6, len(WHOLE) - 5, len(WHOLE) - 4, len(WHOLE) - 1])
def test_only_a_connection_that_ends_before_an_answer_was_merely_idle(kept: int) -> None:
    """Who ends one in the middle of an answer, at whatever byte, has failed, and is not asked again at once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                for answer in (WHOLE, WHOLE[:kept]):
                    client.recv(1 << 16)
                    client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        line, into = Line(listening.getsockname(), None, "edge", 20.0), bytearray(4)
        asked = [request("GET", "/", {"host": "edge"}, 0)]
        assert line.ask(asked, [memoryview(into)], 20.0)[2] == b"{}"
        assert into == b"0123"
        with pytest.raises(ProcessorLost) as lost:
            line.ask(asked, [memoryview(into)], 20.0)
        assert isinstance(lost.value, GoneError) == (not kept)
        thread.join(20)


@pytest.mark.parametrize("at_once", [1, 7, 1 << 16])
def test_what_an_answer_says_of_its_time_is_its_own(at_once: int) -> None:
    """However it is written, and however the answer comes: all that it says beside that is the same each time."""
    said = [("Server-Timing: run;dur=1.5;at=2\r\n", "run;dur=1.5;at=2"), ("", ""), ("server-timing:x\r\n", "x")]
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with client:
                for field, _ in said * 2:
                    client.recv(1 << 16)
                    answer = OK + field.encode() + b"content-length: 2\r\n\r\n{}"
                    for start in range(0, len(answer), at_once):
                        client.sendall(answer[start : start + at_once])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        line = Line(listening.getsockname(), None, "edge", 20.0)
        asked = [request("GET", "/", {"host": "edge"}, 0)]
        for _, timing in said * 2:
            assert line.ask(asked, [], 20.0) == (200, timing, b"{}")
        line.close()
        thread.join(20)
