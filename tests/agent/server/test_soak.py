"""A server under mixed load for a long time: right clients get right answers beside wrong ones, and nothing stays."""

from __future__ import annotations

import json
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import onnxruntime as ort
import psutil
import pytest

from agent_sdk.protocol.messages import SERVICE, message
from tests import SOAK_S
from tests.agent.models import BRANCHING
from tests.agent.server.running import Running, running, written
from tests.agent.server.test_bad_input import BINARY, asked_over_grpc, good, is_freed, read_answer, request

CLIENTS = 6
WAITS_S = 120.0
"""Longest time in which an answer may come: nobody starves."""
LEAK_BYTES = 64 * 2**20
LOADED_S = 100.0
"""A shorter soak says nothing of memory: until a fifth of it the server may still be planning."""
IMAGES = np.random.default_rng(8).random((8, 1, 3, 16, 16), np.float32)
TIMEOUTS_US = (0, 0, 1, 2_000, 10**7)


class Client:
    """One client that draws what it does next, and holds each answer to plain ONNX Runtime's.

    Args:
        server: whom it asks.
        right: the answers, by image.
        seed: of what it draws.

    Attributes:
        counted: what it did, and what became of it.
    """

    def __init__(self, server: Running, right: np.ndarray, seed: int) -> None:
        self._draw, self._right, self._server = random.Random(seed), right, server
        self._connected: socket.socket | None = None
        self.counted: Counter[str] = Counter()
        self._ways: tuple[Callable[[int, dict[str, int]], None], ...] = (
            *(self._over_http,) * 4, *(self._over_grpc,) * 3,
            self._half_closed, self._in_pieces, self._wrong, self._truncated, self._gone, self._cancelled,
        )  # fmt: skip

    def run(self, until: float) -> Counter[str]:
        """Ask again and again."""
        with grpc.insecure_channel(f"127.0.0.1:{self._server.grpc}") as channel:
            self._call = channel.unary_unary(
                f"/{SERVICE}/ModelInfer",
                message("ModelInferRequest").SerializeToString,
                message("ModelInferResponse").FromString,
            )
            while time.monotonic() < until:
                terms = {"timeout": self._draw.choice(TIMEOUTS_US), "priority": self._draw.choice((0, 0, 1, 2))}
                way = self._draw.choice(self._ways)
                way(self._draw.randrange(len(IMAGES)), terms)
                self.counted[way.__name__] += 1
        self._leave()
        return self.counted

    def _sent(self, place: int, terms: dict[str, int]) -> bytes:
        return request({"inputs": [BINARY], "parameters": terms}, IMAGES[place].tobytes())

    @property
    def _socket(self) -> socket.socket:
        if self._connected is None:
            self._connected = socket.create_connection(("127.0.0.1", self._server.http), WAITS_S)
        return self._connected

    def _leave(self) -> None:
        if self._connected is not None:
            self._connected.close()
        self._connected = None

    def _check(self, place: int, terms: dict[str, int], status: int, values: Callable[[], Any]) -> None:
        if status == 504:
            assert terms["timeout"], "what has no deadline is never dropped"
            self.counted["dropped"] += 1
            return
        assert status == 200
        np.testing.assert_allclose(np.ravel(values()), self._right[place], rtol=1e-3)
        self.counted["answered"] += 1

    def _read(self, place: int, terms: dict[str, int]) -> None:
        status, body = read_answer(self._socket)
        self._check(place, terms, status, lambda: json.loads(body)["outputs"][0]["data"])

    def _over_http(self, place: int, terms: dict[str, int]) -> None:
        self._socket.sendall(self._sent(place, terms))
        self._read(place, terms)

    def _half_closed(self, place: int, terms: dict[str, int]) -> None:
        self._socket.sendall(self._sent(place, terms))
        self._socket.shutdown(socket.SHUT_WR)
        self._read(place, terms)
        self._leave()

    def _in_pieces(self, place: int, terms: dict[str, int]) -> None:
        sent = self._sent(place, terms)
        for start in range(0, len(sent), 700):
            self._socket.sendall(sent[start : start + 700])
            time.sleep(0.001)
        self._read(place, terms)

    def _wrong(self, _: int, __: dict[str, int]) -> None:
        self._socket.sendall(request({"inputs": [BINARY | {"shape": [1, 3, 16, 15]}]}, bytes(2880)))
        assert read_answer(self._socket)[0] == 400

    def _truncated(self, place: int, terms: dict[str, int]) -> None:
        self._socket.sendall(self._sent(place, terms)[: self._draw.randrange(1, 3000)])
        self._leave()

    def _gone(self, place: int, terms: dict[str, int]) -> None:
        self._socket.sendall(self._sent(place, terms))
        self._leave()

    def _asked(self, place: int, terms: dict[str, int]) -> Any:
        parameters = {name: {"int64_param": value} for name, value in terms.items()}
        return self._call.future(asked_over_grpc(raw=[IMAGES[place].tobytes()], parameters=parameters), timeout=WAITS_S)

    def _over_grpc(self, place: int, terms: dict[str, int]) -> None:
        asked = self._asked(place, terms)
        status = {grpc.StatusCode.OK: 200, grpc.StatusCode.DEADLINE_EXCEEDED: 504}[asked.code()]
        self._check(place, terms, status, lambda: np.frombuffer(asked.result().raw_output_contents[0], np.float32))

    def _cancelled(self, place: int, terms: dict[str, int]) -> None:
        self._asked(place, terms).cancel()


@pytest.mark.timeout(2 * SOAK_S + 300)
def test_a_soak_loses_nothing(tmp_path: Path) -> None:
    """Every whole request is answered right, or dropped for its own deadline; nothing is held at the end, and memory
    stays where it was.
    """
    session = ort.InferenceSession(BRANCHING, providers=["CPUExecutionProvider"])
    right = np.concatenate([session.run(None, {"x": image})[0] for image in IMAGES])
    settled: list[int] = []
    with running(written(tmp_path)[:1], tmp_path, "--in-flight", "2") as server, ThreadPoolExecutor(CLIENTS) as pool:
        process = psutil.Process(server.process.pid)
        began = time.monotonic()
        clients = [pool.submit(Client(server, right, seed).run, began + SOAK_S) for seed in range(CLIENTS)]
        while not all(client.done() for client in clients):
            time.sleep(0.1)
            if not settled and time.monotonic() - began > SOAK_S / 5:
                settled.append(process.memory_info().rss)
        found = sum((client.result() for client in clients), Counter())
        assert found["answered"]
        assert is_freed(server)
        stats = httpx.get(f"http://127.0.0.1:{server.http}/v2/models/branching/stats").json()["model_stats"][0]
        assert found["answered"] <= stats["inference_count"] <= found["answered"] + found["_gone"] + found["_cancelled"]
        assert SOAK_S < LOADED_S or process.memory_info().rss < settled[0] + LEAK_BYTES
        with socket.create_connection(("127.0.0.1", server.http), WAITS_S) as client:
            client.sendall(good())
            assert read_answer(client)[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    print(dict(found))
