"""A server that is asked to end answers what is under way, takes nothing more, and ends."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path

import pytest

from agent_sdk.errors import RefusedError
from agent_sdk.server.admission import Admission
from tests.agent.server.running import running, written
from tests.agent.server.test_bad_input import good, held, read_answer
from tests.agent.test_session_shapes import until


def test_what_is_under_way_is_answered(tmp_path: Path) -> None:
    """After SIGTERM a request that has begun is answered, an idle client is let go, and the process ends well."""
    with running(written(tmp_path)[:1], tmp_path) as server:
        begun, idle = (socket.create_connection(("127.0.0.1", server.http), 20) for _ in range(2))
        idle.sendall(good())
        assert read_answer(idle)[0] == 200
        begun.sendall(good()[:-1])
        until(lambda: held(server) > 0)
        server.process.send_signal(signal.SIGTERM)
        assert idle.recv(1) == b""
        with pytest.raises(OSError):  # noqa: PT011  refused or reset, as it comes
            socket.create_connection(("127.0.0.1", server.http), 20).recv(1)
        begun.sendall(good()[-1:])
        assert read_answer(begun)[0] == 200
        assert server.process.wait(20) == 0


def test_a_client_that_never_ends_keeps_no_server(tmp_path: Path) -> None:
    """A request whose body never comes is given up once the time to end in is over."""
    with (
        running(written(tmp_path)[:1], tmp_path, "--grace", "0.5") as server,
        socket.create_connection(("127.0.0.1", server.http), 20) as client,
    ):
        client.sendall(good()[:-1])
        until(lambda: held(server) > 0)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0


def test_admission_counts_what_comes_and_goes() -> None:
    """Requests and bytes are taken up to their bounds, come back whatever happens, and none are taken once draining."""
    admission = Admission(memory=100, requests=2)
    with admission.admitted() as first, admission.admitted() as second:
        first.take(60)
        for size, status in ((41, 503), (101, 413)):
            with pytest.raises(RefusedError) as caught:
                second.take(size)
            assert caught.value.status == status
        second.take(40)
        assert (admission.requests, admission.held) == (2, 100)
        with pytest.raises(RefusedError), admission.admitted():
            pass
        assert not admission.drain(0.01)
    assert (admission.requests, admission.held) == (0, 0)
    with pytest.raises(RefusedError), admission.admitted():
        pass


def test_draining_waits_for_the_last_request() -> None:
    """Whoever drains goes on once the last request has gone."""
    admission = Admission(memory=1, requests=1)
    entered, leave, drained = threading.Event(), threading.Event(), threading.Event()

    def ask() -> None:
        with admission.admitted():
            entered.set()
            leave.wait(20)

    asking = threading.Thread(target=ask)
    asking.start()
    assert entered.wait(20)
    draining = threading.Thread(target=lambda: admission.drain(20) and drained.set())
    draining.start()
    assert not drained.wait(0.05)
    leave.set()
    assert drained.wait(20)
    asking.join()
    draining.join()
