"""A host that lends its processors: what it offers, the networks that were sent there, and runs of them."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import re
import secrets
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

import onnx
from pydantic import ValidationError

from agent_sdk.errors import OutOfMemory, ProcessorError, ProcessorLost, UnsupportedOp, printable
from agent_sdk.runtimes.remote.halved import change_us_per_byte
from agent_sdk.runtimes.remote.line import GoneError, Line, Reply, request
from agent_sdk.runtimes.remote.link import Way
from agent_sdk.runtimes.remote.settings import HostSettings
from hope_schema import Missing, Observations, Offer

log = logging.getLogger(__name__)

CONNECT_S: Final = 2.0
"""Longest time that connecting, or a short question, may take."""
LOAD_S: Final = 20.0
"""Longest time that a network may take to be made ready there, beside what its bytes take."""
SLOWEST: Final = 64 * 1024
"""Bytes a second that a link has at least."""
RETRY_S: Final = 2.0
"""How long a host that failed is left alone: whoever asks meanwhile is told so at once."""
MOST_FILE: Final = 2**31 - 1
"""Most bytes of a network's file: protobuf has no longer messages."""
PROBE_BYTES: Final = 256 * 1024
PROBES: Final = 3
LOOK_BYTES: Final = 64 * 1024
LOOKED: Final = 0.5
"""Part of the estimate of a link that looking at it has."""
_RAN = re.compile(r"\brun;dur=([0-9.]+)")


def file_of(network: onnx.ModelProto) -> bytes:
    """A network as it is sent. Raises OutOfMemory for one that is too large, without trying to write it down."""
    size = sum(
        math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        for tensor in network.graph.initializer
    )
    if size > MOST_FILE:
        raise OutOfMemory(f"a network of {size} bytes is too large to be sent to another host")
    return network.SerializeToString(deterministic=True)


class RemoteHost:
    """Another machine; may be used from any number of threads.

    Args:
        name: what it is called here.
        settings: where it is, and what it serves us for.

    Attributes:
        here: what the names of tensors of ours begin with that stand there.
        as_float16: what it takes here per byte to let float32 cross as float16; None: it may not.
        lost: how often it has failed.

    Raises ProcessorLost where it cannot be reached or does not offer anything, InputError for settings that are none.
    """

    def __init__(self, name: str, settings: HostSettings) -> None:
        self.name, self.here = name, secrets.token_hex(16)
        self.as_float16 = change_us_per_byte() if settings.precision == "fp16" else None
        host, port, _ = settings.place
        self._address, self._context = (host, port), settings.context()
        shown = f"[{host}]" if ":" in host else host
        self._fields: dict[str, str | int] = {"host": f"{shown}:{port}"}
        if settings.token:
            self._fields["authorization"] = f"Bearer {settings.token}"
        self._idle: deque[Line] = deque()
        self._down_until = 0.0
        self._crossed = False
        self.lost = 0
        self._why = ""
        self._sending = threading.Lock()
        self._sent: dict[str, int] = {}
        self._holding = threading.Lock()
        self._held: Counter[str] = Counter()
        self.closed = False
        try:
            offer = Offer.model_validate_json(self.say("GET", "/v2/hope"))
        except ValidationError as error:
            raise ProcessorLost(f"host '{name}' offers no processors as this agent knows them: {error}") from None
        wanted = settings.processors
        lent = tuple(one for one in offer.processors if wanted is None or one.id in wanted)
        if not lent:
            offered = ", ".join(one.id for one in offer.processors)
            raise ProcessorLost(f"host '{name}' lends none of {', '.join(wanted or ())}, but {offered}")
        self.offer = offer.model_copy(update={"processors": lent})
        self.way = self.measured_way()

    @property
    def is_down(self) -> bool:
        """Whether it failed a moment ago, and is left alone for a while."""
        return time.monotonic() < self._down_until

    # Requests

    def say(self, method: str, path: str, body: bytes = b"", within_s: float = CONNECT_S) -> bytes:
        """Ask something whose answer is JSON. Raises ProcessorLost, or what the host's refusal means."""
        head = request(method, path, self._fields, len(body))
        reply, said = self.ask([head, body], [], within_s)
        self.refuse(reply, said)
        return said

    def ask(
        self, parts: Sequence[bytes | memoryview], into: Sequence[memoryview], within_s: float
    ) -> tuple[Reply, bytes]:
        """Make a request on a connection that is idle, or on a new one. Raises ProcessorLost."""
        if self.is_down:
            raise ProcessorLost(f"host '{self.name}' is left alone for a while: {self._why}")
        began = time.monotonic()
        try:
            while True:
                with self._line(within_s) as line:
                    try:
                        return line.ask(parts, into, max(0.001, within_s - (time.monotonic() - began)))
                    except GoneError:  # it was idle for too long; what was asked changes nothing there, so ask again
                        continue
        except ProcessorLost as error:
            self._down_until, self._why = time.monotonic() + RETRY_S, str(error)
            self.lost += 1
            raise

    @contextmanager
    def _line(self, within_s: float) -> Iterator[Line]:
        try:
            line = self._idle.pop()
        except IndexError:
            line = Line(self._address, self._context, self.name, min(within_s, CONNECT_S))
        try:
            yield line
        finally:
            if self.closed:
                line.close()
            elif not line.closed:
                self._idle.append(line)

    def refuse(self, reply: Reply, said: bytes) -> None:
        """Raise what it means that the host refused; nothing where it did not."""
        if reply.status == 200:
            return
        try:
            why = printable(str(json.loads(said)["error"]))[:400]
        except (ValueError, KeyError, TypeError):
            why = "no reason"
        kinds: dict[int, type[ProcessorError]] = {400: UnsupportedOp, 413: OutOfMemory, 503: OutOfMemory}
        kind = kinds.get(reply.status, ProcessorLost)
        raise kind(f"host '{self.name}' refuses with {reply.status}: {why}")

    def learn(self, reply: Reply, sent: int, received: int, took_us: float) -> float:
        """Take in how long a run took, and how long the way; returns what the host says that it computed."""
        said = _RAN.search(reply.fields.get("server-timing", ""))
        ran_us = min(float(said[1]) * 1e3 if said else 0.0, took_us)
        self.way.learn(sent, received, took_us - ran_us)
        self._crossed = True
        return ran_us

    def look(self) -> None:
        """See whether it answers, and how fast, unless runs have shown that since the last look. Never raises."""
        crossed, self._crossed = self._crossed, False
        if crossed or self.closed:
            return
        try:
            for sent, received in ((0, 1), (LOOK_BYTES, 1), (0, LOOK_BYTES)):
                self.way.learn(sent, received, self._round_trip(sent, received, 1), LOOKED)
        except ProcessorError as error:
            log.info("%s", error)

    # Networks

    def send(self, file: bytes, processor: str) -> str:
        """Send a network, unless it is there, and return its name; ``forget`` says that it is not needed any more.

        Raises OutOfMemory where the host is full, UnsupportedOp where it refuses the network, ProcessorLost.
        """
        name = f"{hashlib.sha256(file).hexdigest()}.{processor}"
        with self._sending:
            if name not in self._sent:
                self._send(name, file)
            self._sent[name] = self._sent.get(name, 0) + 1
        return name

    def send_again(self, name: str, file: bytes) -> None:
        """Send a network that the host has no more: it was started anew, or needed the room. Raises like ``send``."""
        with self._sending:
            self._send(name, file)

    def _send(self, name: str, file: bytes) -> None:
        body = b"".join((b'{"parameters": {"file:1/model.onnx": "', base64.b64encode(file), b'"}}'))
        self.say("POST", f"/v2/repository/models/{quote(name)}/load", body, LOAD_S + len(body) / SLOWEST)

    def forget(self, name: str) -> None:
        """Let a network go that was sent, once for each time that it was. Never raises."""
        with self._sending:
            self._sent[name] = self._sent.get(name, 1) - 1
            if self._sent[name] > 0:
                return
            del self._sent[name]
        try:
            self.say("POST", f"/v2/repository/models/{quote(name)}/unload")
        except ProcessorError as error:
            log.info("a network stays on host '%s': %s", self.name, error)

    def run_request(self, name: str, head: bytes, tensors: int) -> bytes:
        """What stands before the tensors of every run of a network."""
        fields = self._fields | {"inference-header-content-length": len(head)}
        return request("POST", f"/v2/models/{quote(name)}/infer", fields, len(head) + tensors) + head

    def hold(self, tensors: Collection[str]) -> None:
        """Count one more user of tensors that will stand there. Never raises."""
        with self._holding:  # not while those of these names are let go
            self._held.update(tensors)

    def drop(self, tensors: Collection[str]) -> None:
        """Count one user less of tensors, and let those go that have none. Never raises.

        NOTE: who is freed late names buffers that others may have been given meanwhile.
        """
        with self._holding:
            self._held.subtract(tensors)
            unused = [name for name in tensors if self._held[name] <= 0]
            for name in unused:
                del self._held[name]
            if not unused or self.closed:
                return  # with its connections they go as well
            try:
                self.say("POST", "/v2/hope/tensors/drop", json.dumps({"names": unused}).encode())
            except ProcessorError as error:
                log.info("tensors stay on host '%s': %s", self.name, error)

    def measure(self, name: str, missing: Missing, budget_s: float) -> Observations:
        """Have it measure what is missing of a network that was sent. Raises ProcessorError."""
        body = json.dumps({"missing": missing.model_dump(mode="json"), "budget_s": budget_s}).encode()
        said = self.say("POST", f"/v2/hope/models/{quote(name)}/measure", body, LOAD_S + 2 * budget_s)
        try:
            return Observations.model_validate_json(said)
        except ValidationError as error:
            raise ProcessorLost(f"host '{self.name}' measured nothing that can be used: {error}") from None

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self.closed = True
        while self._idle:
            self._idle.pop().close()

    # The way there

    def measured_way(self) -> Way:
        """What the way there takes now. Raises ProcessorLost."""
        small = self._round_trip(0, 1)
        there = max(self._round_trip(PROBE_BYTES, 1) - small, 0.0) / PROBE_BYTES
        back = max(self._round_trip(0, PROBE_BYTES) - small, 0.0) / PROBE_BYTES
        return Way(self.name, small, there, back, self.as_float16)

    def _round_trip(self, sent: int, received: int, times: int = PROBES) -> float:
        """Microseconds that so many bytes there and back take, in the middle of some."""
        into, body = memoryview(bytearray(received)), bytes(sent)
        head = request("POST", "/v2/hope/link", self._fields | {"x-hope-bytes": received}, sent)
        took = []
        for _ in range(times):
            began = time.perf_counter()
            reply, said = self.ask([head, body], [into], CONNECT_S + (sent + received) / SLOWEST)
            self.refuse(reply, said)
            took.append(time.perf_counter() - began)
        return statistics.median(took) * 1e6
