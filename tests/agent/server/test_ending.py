"""A server that is asked to end answers what is under way, takes nothing more, and ends."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import onnx
import onnx.parser
import pytest

from agent_sdk.cli.serve import asked_to_end
from agent_sdk.errors import InputError, RefusedError
from agent_sdk.protocol.messages import SERVICE, message
from agent_sdk.server.access import Access, Address
from agent_sdk.server.admission import Admission, Room
from agent_sdk.server.serving import Server, Settings
from tests.agent.server.running import running, written
from tests.agent.server.test_bad_input import good, held, read_answer, request
from tests.agent.test_session_shapes import until

LOOPING = """<ir_version: 8, opset_import: ["": 17]>
looping (int64[1] n, float[1] x) => (float[1] y) {
    go = Constant <value = bool {1}> ()
    y = Loop <body = body (int64 i, bool before, float[1] v) => (bool after, float[1] w) {
        after = Identity (before)
        w = Add (v, v)
    }> (n, go, x)
}"""
"""Goes round as often as a request says."""


def test_what_is_under_way_is_answered(tmp_path: Path) -> None:
    """After SIGTERM a request whose body comes and a call that computes are answered, whoever is idle or comes later is
    let go, and the process ends well.
    """
    onnx.save(onnx.parser.parse_model(LOOPING), tmp_path / "looping.onnx")
    asked = message("ModelInferRequest")(
        model_name="looping",
        inputs=[
            {"name": "n", "datatype": "INT64", "shape": [1], "contents": {"int64_contents": [300_000]}},
            {"name": "x", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [0.0]}},
        ],
    ).SerializeToString()
    with (
        running([*written(tmp_path)[:1], tmp_path / "looping.onnx"], tmp_path, "--grace", "60") as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel,
    ):
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        is_ready = channel.unary_unary(
            f"/{SERVICE}/ServerReady", response_deserializer=message("ServerReadyResponse").FromString
        )
        begun, idle = (socket.create_connection(("127.0.0.1", server.http), 20) for _ in range(2))
        idle.sendall(good())
        assert read_answer(idle)[0] == 200
        begun.sendall(good()[:-1])
        until(lambda: held(server) > 0)
        before = held(server)
        computing = call.future(asked, timeout=60)
        until(lambda: held(server) > before or computing.done())
        server.process.send_signal(signal.SIGTERM)
        assert idle.recv(1) == b""
        with pytest.raises(OSError):  # noqa: PT011  refused or reset, as it comes
            socket.create_connection(("127.0.0.1", server.http), 20).recv(1)
        assert computing.result()
        until(lambda: not is_ready(b"").ready)
        with pytest.raises(grpc.RpcError, match="being stopped"):
            call(asked, timeout=60)
        begun.sendall(good()[-1:])
        assert read_answer(begun)[0] == 200
        assert server.process.wait(20) == 0


def test_a_server_that_has_ended_keeps_no_file_open() -> None:
    """Neither its socket, nor what it is told by of clients that close."""
    gc.collect()  # or files that tests before this one dropped are closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    server = Server([], Access([]), Settings(Address("127.0.0.1", 0), None, memory=2**24, requests=1))
    server.close()
    assert len(os.listdir("/proc/self/fd")) == before


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


def test_a_run_that_never_ends_keeps_no_server(tmp_path: Path) -> None:
    """A request that computes for ever is given up once the time to end in is over, whatever it computes on."""
    onnx.save(onnx.parser.parse_model(LOOPING), tmp_path / "looping.onnx")
    asked = [
        {"name": "n", "datatype": "INT64", "shape": [1], "data": [2**62]},
        {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]},
    ]
    with (
        running([tmp_path / "looping.onnx"], tmp_path, "--grace", "0.1") as server,
        socket.create_connection(("127.0.0.1", server.http), 20) as client,
    ):
        client.sendall(request({"inputs": asked}, path="/v2/models/looping/infer"))
        until(lambda: held(server) > 0)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.stderr is not None
        assert "what was not answered within 0.1 s is given up" in server.process.stderr.read()
        assert server.process.wait(20) == 1


@pytest.mark.timeout(20)
@pytest.mark.parametrize("moment", range(4))
def test_a_signal_is_heard_whenever_it_comes(moment: int) -> None:
    """Between any two steps of the thread that waits for it, or later, and whichever thread it interrupts."""
    left = moment

    def step(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGTERM)

    before = sys.getprofile()
    with asked_to_end() as wait:
        other = threading.Timer(0.005, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        other.start()
        sys.setprofile(step)
        try:
            wait()
        finally:
            sys.setprofile(before)
            other.join()


def test_servers_end_with_the_tests_that_started_them() -> None:
    """Where a suite is killed, as by a limit of time, no server of its goes on."""
    child = "import sys, time; print('up', flush=True); time.sleep(600)"
    suite = (
        "import os, subprocess, sys, tests;"
        f"subprocess.Popen([*tests.ENDING_WITH_TESTS, sys.executable, '-c', {child!r}]);"
        "sys.stdin.read(1); os.kill(os.getpid(), 9)"
    )
    with subprocess.Popen([sys.executable, "-c", suite], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdin is not None
        assert started.stdout.readline() == b"up\n"
        started.stdin.write(b"x")
        started.stdin.flush()
        assert started.stdout.read() == b""  # the end of the file: both have ended


def test_admission_counts_what_comes_and_goes() -> None:
    """Requests and bytes are taken up to their bounds, come back whatever happens, and none are taken once draining."""
    admission = Admission(memory=100, requests=2)
    with Room(admission) as first, Room(admission) as second:
        first.take(60)
        for size, status in ((41, 503), (101, 413)):
            with pytest.raises(RefusedError) as caught:
                second.take(size)
            assert caught.value.status == status
        second.take(40)
        assert (admission.requests, admission.held) == (2, 100)
        with pytest.raises(RefusedError), Room(admission):
            pass
        assert not admission.drain(0.01)
    assert (admission.requests, admission.held) == (0, 0)
    with pytest.raises(RefusedError), Room(admission):
        pass


def test_a_server_that_cannot_have_one_address_gives_back_the_other() -> None:
    """Where gRPC's address is taken, that of HTTP is free again as soon as this is said."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        http, grpc_too = (Address("127.0.0.1", one.getsockname()[1]) for one in (free, taken))
        free.close()
        with pytest.raises(InputError, match="cannot listen") as refused:
            Server([], Access([]), Settings(http, grpc_too, memory=2**20, requests=1))
        with socket.create_server((http.host, http.port)):
            assert refused.tb is not None  # what was opened is not merely collected as garbage


def test_draining_waits_for_the_last_request() -> None:
    """Whoever drains goes on once the last request has gone."""
    admission = Admission(memory=1, requests=1)
    entered, leave, drained = threading.Event(), threading.Event(), threading.Event()

    def ask() -> None:
        with Room(admission):
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
