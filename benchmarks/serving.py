"""What a served network costs beside its own run, beside another server, and as a segment on another host.

    HOPE_MLSERVER=DIR nice python -m benchmarks.serving [--rounds 5] [--seconds 5] [--json FILE]

Everything is on this machine, over loopback, with clients that keep their connections and their buffers. In ``DIR`` is
an environment with ``mlserver`` and ``onnxruntime`` in it; without it there is no row for that. It takes no bytes over
HTTP, so that its clients write numbers out.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

from agent_sdk import Agent
from agent_sdk.engine import Device
from agent_sdk.engine.single import whole_run
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.trial import PLAN
from agent_sdk.machine.cores import bound_to
from agent_sdk.machine.soc import read_soc
from agent_sdk.model import Content, read_model
from agent_sdk.model.feeds import Drawn, draw, feeds_of
from agent_sdk.planner.supplier import Obtained
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.remote.host import RemoteHost
from agent_sdk.runtimes.remote.line import Line, request
from agent_sdk.runtimes.remote.processor import RemoteProcessor
from agent_sdk.runtimes.remote.settings import HostSettings
from benchmarks import cli
from benchmarks.results import Measure, Table, TableRow, report, verdict
from benchmarks.session import in_turns, sized_networks
from tests.agent.server.peers import mlserver

INFER: Final = 1.6
RATE: Final = 3.0
REMOTE_US: Final = 400.0
KILLED_MS: Final = 200.0
RUNS: Final = 400
QUIET_S: Final = 4.0
CLIENTS: Final = 4
"""Clients at once where requests per second are counted."""
PICTURE: Final = (1, 3, 224, 224)
"""602 KB."""
ECHO: Final = """
import socket, sys
size = int(sys.argv[1])
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
client, _ = listening.accept()
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
memory = memoryview(bytearray(size))
while True:
    have = 0
    while have < size:
        count = client.recv_into(memory[have:])
        if not count:
            sys.exit()
        have += count
    client.sendall(memory)
"""
ALONE: Final = """
import sys
from agent_sdk.server.access import Address
from agent_sdk.server.listener import Listener

def give_back(exchange):
    size = exchange.head.number("inference-header-content-length", 2**20)
    body = exchange.body(lambda _: None, aligned_at=size)
    exchange.answer(200, b"{}", [body[size:]])

listener = Listener(Address("127.0.0.1", 0), None, give_back)
listener.start()
print(listener.address.port, flush=True)
sys.stdin.read()
"""
"""The connections of the server with nothing behind them."""


def pooled() -> bytes:
    """A network that reads a picture and computes little."""
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, list(PICTURE)),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 14, 14]),
    ]
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[16, 16], strides=[16, 16])
    graph = helper.make_graph([node], "pooled", ends[:1], ends[1:])
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


@contextmanager
def ours(cache: Path, *options: str) -> Iterator[tuple[int, int]]:
    """A server of ours in a process of its own; gives its port, and the process's id."""
    command = [sys.executable, "-m", "agent_sdk.cli", "serve", "--listen", "127.0.0.1:0", "--grpc", "off", *options]
    environment = {**os.environ, "HOPE_CACHE_DIR": str(cache), "HOPE_SOLVE_BUDGET_S": "2"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            said = ""
            while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", said)):
                said = process.stderr.readline()
                if not said:
                    raise SystemExit("the server did not start")
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield int(found[1]), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def settle(servers: Sequence[int]) -> None:
    """Wait until servers have planned behind their answers: they and what they started take no time for a while."""

    def taken_s() -> float:
        found = 0.0
        for server in map(psutil.Process, servers):
            for one in (server, *server.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    found += sum(one.cpu_times()[:2])
        return found

    while True:
        before = taken_s()
        time.sleep(QUIET_S)
        if abs(taken_s() - before) < QUIET_S / 50:  # what ended has taken its time along
            return


def once(call: Callable[[], object], core: int) -> float:
    """Seconds of a call on one core."""
    with bound_to(frozenset({core})):
        began = time.perf_counter()
        call()
        return time.perf_counter() - began


def taken(call: Callable[[], object], runs: int = RUNS) -> float:
    """Median seconds of a call, after a third that does not count."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times[runs // 3 :])


class Client:
    """Infers one network over a kept connection: tensors as bytes, or as numbers written out."""

    def __init__(self, port: int, name: str, feed: np.ndarray, outputs: int, *, as_bytes: bool = True) -> None:
        given: dict[str, object] = {"name": "x", "datatype": "FP32", "shape": list(feed.shape)}
        given |= {"parameters": {"binary_data_size": feed.nbytes}} if as_bytes else {"data": feed.ravel().tolist()}
        wanted = {"name": "y", "parameters": {"binary_data": as_bytes}}
        head = json.dumps({"inputs": [given], "outputs": [wanted]}).encode()
        tail = feed.reshape(-1).view(np.uint8).data if as_bytes else memoryview(b"")
        fields: dict[str, str | int] = {"host": f"127.0.0.1:{port}", "content-type": "application/json"}
        if as_bytes:
            fields["inference-header-content-length"] = len(head)
        path = f"/v2/models/{name}/infer"
        self._parts: list[bytes | memoryview] = [request("POST", path, fields, len(head) + len(tail)) + head, tail]
        self._into = [memoryview(bytearray(outputs))] if as_bytes else []
        self._line = Line(("127.0.0.1", port), None, "the server", 10.0)

    def infer(self) -> None:
        """Ask once. Raises SystemExit where the answer is an error."""
        status, _, said = self._line.ask(self._parts, self._into, 10.0)
        if status != 200:
            raise SystemExit(f"the server answers {status}: {said[:200]!r}")

    def close(self) -> None:
        """Close the connection."""
        self._line.close()


@contextmanager
def echo(size: int) -> Iterator[Callable[[], None]]:
    """A plain echo of so many bytes over TCP, from a process of its own."""
    with subprocess.Popen([sys.executable, "-c", ECHO, str(size)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sent, memory = bytes(size), memoryview(bytearray(size))

            def once() -> None:
                client.sendall(sent)
                have = 0
                while have < size:
                    have += client.recv_into(memory[have:])

            yield once


def rate(port: int, feed: np.ndarray, seconds: float, *, as_bytes: bool) -> float:
    """Requests per second of several clients at once, each a process of its own."""
    code = (
        "import sys, time, numpy as np; from benchmarks.serving import Client\n"
        "feed, seconds = np.zeros(eval(sys.argv[2]), np.float32), float(sys.argv[3])\n"
        "client = Client(int(sys.argv[1]), 'net', feed, feed.nbytes, as_bytes=eval(sys.argv[4]))\n"
        "[client.infer() for _ in range(20)]\nend, count = time.perf_counter() + seconds, 0\n"
        "while time.perf_counter() < end: client.infer(); count += 1\nprint(count / seconds)"
    )
    arguments = [str(port), str(feed.shape), str(seconds), str(as_bytes)]
    clients = [
        subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
        for _ in range(CLIENTS)
    ]
    return sum(float(client.communicate()[0]) for client in clients)


def served(folder: Path, rounds: int, seconds: float) -> tuple[list[Measure], Table]:
    """A small network: through the server, beside its own run and an echo; and requests per second beside MLServer.

    The three are asked for in turns, so that each finds the caches as the others left them. Server, echo and the
    session's own run are on one core, and who asks is on another: else the kernel puts some pairs on one core.
    """
    source = sized_networks()[1]
    network = folder / "net.onnx"
    network.write_bytes(source)
    shape = read_model(source).graph.tensor["x"].shape
    feed = np.zeros(shape, np.float32)
    computes, asks = sorted(os.sched_getaffinity(0))[:2]
    processor = f"ort@{computes}"
    rows: list[TableRow] = []
    ratios: list[float] = []
    floors: list[float] = []
    with ExitStack() as opened:
        with bound_to(frozenset({computes})):
            port, served = opened.enter_context(
                ours(folder / "served", "--models", str(network), "--processors", processor)
            )
            plain = opened.enter_context(echo(feed.nbytes))
            command = [sys.executable, "-c", ALONE]
            alone = opened.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            opened.callback(alone.communicate)
        assert alone.stdout is not None
        free, other = opened.enter_context(ours(folder / "free", "--models", str(network), "--processors", processor))
        agent = opened.enter_context(Agent(processors=processor, cache=folder / "own"))
        session = opened.enter_context(agent.load(network, background=False))
        client, bare = (Client(where, "net", feed, feed.nbytes) for where in (port, int(alone.stdout.readline())))
        calls = {
            "own": partial(once, lambda: session.run({"x": feed}), computes),
            "echo": partial(once, plain, asks),
            "http": partial(once, bare.infer, asks),
            "infer": partial(once, client.infer, asks),
        }
        settle([served, other])
        for _ in range(rounds):
            own, bytes_alone, http, asked = in_turns(calls, RUNS).values()
            ratios.append(asked / (own + bytes_alone))
            floors.append((own + http) / (own + bytes_alone))
            rows.append([f"{feed.nbytes} bytes", *(round(one * 1e6) for one in (own, bytes_alone, http, asked))])
        least, all_of_it = statistics.median(floors), statistics.median(ratios)
        rows.append(["÷ (own run + echo): own run + echo over HTTP, infer", None, None, least, all_of_it])
        client.close()
        bare.close()
        measures = [
            verdict("infer over HTTP ÷ the session's run + a plain echo", all_of_it, INFER),
        ]
        if "HOPE_MLSERVER" in os.environ:
            ours_per_s = rate(free, feed, seconds, as_bytes=True)
            peer = folder / "mlserver"
            peer.mkdir()
            theirs = opened.enter_context(mlserver(peer, network))["http"]
            theirs_per_s = rate(theirs, feed, seconds, as_bytes=False)
            rows.append(["requests/s: ours, MLServer's", round(ours_per_s), round(theirs_per_s), None, None])
            measures.append(verdict("requests/s ÷ MLServer's", ours_per_s / theirs_per_s, RATE, at_least=True))
    return measures, Table("A 100 µs network", ["what", "own run µs", "echo µs", "echo over HTTP µs", "infer µs"], rows)


def remote(folder: Path, rounds: int) -> tuple[list[Measure], Table]:
    """A segment on another host of this machine: what it takes beyond itself and an echo."""
    model = read_model(pooled())
    feed = {"x": np.random.default_rng(0).random(PICTURE, np.float32)}
    size = feed["x"].nbytes
    beyond: list[float] = []
    rows: list[TableRow] = []
    with (
        ours(folder / "edge", "--lend", "--processors", "ort@1") as (port, _),
        echo(size) as plain,
        Device(discover("ort@0")) as here,
    ):
        host = RemoteHost("edge1", HostSettings(address=f"http://127.0.0.1:{port}"))
        lent = RemoteProcessor(host, host.offer.processors[0], frozenset(read_soc().cores))
        with (
            Device([lent]) as there,
            whole_run(model, lent, there) as far,
            whole_run(model, here.processors["ort@0"], here) as near,
        ):
            for _ in range(rounds):
                own, bytes_alone, asked = taken(lambda: near.run(feed)), taken(plain), taken(lambda: far.run(feed))
                beyond.append((asked - own - bytes_alone) * 1e6)
                rows.append([f"{size} bytes", *(round(one * 1e6) for one in (own, bytes_alone, asked))])
    what = "a remote segment, 602 KB in: beyond itself and an echo, µs"
    return [verdict(what, statistics.median(beyond), REMOTE_US)], Table(
        "A remote segment", ["what", "own run µs", "echo µs", "remote µs"], rows
    )


def killed(folder: Path, rounds: int) -> tuple[list[Measure], Table]:
    """A host that is killed in the middle of a run: when this machine has answered instead."""
    model = read_model("squeezenet")
    feed = draw(model, 0)
    beyond: list[float] = []
    rows: list[TableRow] = []
    for turn in range(rounds):
        with (
            ours(folder / f"edge{turn}", "--lend", "--processors", "ort@1") as (port, process),
            Device(discover("ort@0")) as here,
        ):
            host = RemoteHost("edge1", HostSettings(address=f"http://127.0.0.1:{port}"))
            lent = RemoteProcessor(host, host.offer.processors[0], frozenset(read_soc().cores))
            with Device([lent]) as there:
                far, near = whole_run(model, lent, there), whole_run(model, here.processors["ort@0"], here)
                obtained, drawn = Obtained(None, "single", False), Drawn(feeds_of(model))
                contenders, us = {PLAN: far, "ort@0": near}, {PLAN: 1.0, "ort@0": 2.0}
                serving = Prepared(model, Reference(Content(b"")), obtained, drawn, contenders, us, pinned=True)
                latency = taken(partial(serving.run, feed), 15)
                ending = threading.Timer(latency / 2, os.kill, (process, signal.SIGKILL))
                ending.start()
                began = time.perf_counter()
                serving.run(feed)
                answered = time.perf_counter() - began
                ending.join()
                beyond.append((answered - 2 * latency) * 1e3)
                rows.append([serving.current, round(latency * 1e3, 1), round(answered * 1e3, 1)])
                serving.close()
    what = "a host killed during a run → answer, beyond twice the plan's latency, ms"
    return [verdict(what, max(beyond), KILLED_MS)], Table("Killed", ["answered by", "latency ms", "answer ms"], rows)


def main() -> None:
    parser = cli.measuring("serving", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    measures: list[Measure] = []
    tables: Sequence[Table] = ()
    for part in (
        partial(served, rounds=options.rounds, seconds=options.seconds),
        partial(remote, rounds=options.rounds),
        partial(killed, rounds=min(options.rounds, 3)),
    ):
        with tempfile.TemporaryDirectory() as name:
            found, table = part(Path(name))
        measures += found
        tables = [*tables, table]
    report(options.json, measures, tables)


if __name__ == "__main__":
    main()
