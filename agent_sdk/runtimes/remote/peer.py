"""Another machine that speaks the Open Inference Protocol: connections that are kept, deadlines, refusals."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from agent_sdk.errors import OutOfMemory, ProcessorError, ProcessorLost, UnsupportedOp, printable
from agent_sdk.runtimes.remote.line import GoneError, Line, Reply, request
from agent_sdk.runtimes.remote.settings import HostSettings

CONNECT_S: Final = 2.0
"""Longest time that connecting, or a short question, may take."""
RETRY_S: Final = 2.0
"""How long a host that failed is left alone: whoever asks meanwhile is told so at once."""


class Peer:
    """A machine that answers runs of networks; may be used from any number of threads.

    Args:
        name: what it is called here.
        settings: where it is, and what it serves us for.

    Attributes:
        lost: how often it has failed.

    Raises InputError for settings that are none.
    """

    def __init__(self, name: str, settings: HostSettings) -> None:
        self.name = name
        host, port, _ = settings.place
        self._address, self._context = (host, port), settings.context()
        shown = f"[{host}]" if ":" in host else host
        self._fields: dict[str, str | int] = {"host": f"{shown}:{port}"}
        if settings.token:
            self._fields["authorization"] = f"Bearer {settings.token}"
        self._idle: deque[Line] = deque()
        self._down_until = 0.0
        self._why = ""
        self.lost = 0
        self.closed = False

    @property
    def is_down(self) -> bool:
        """Whether it failed a moment ago, and is left alone for a while."""
        return time.monotonic() < self._down_until

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

    def run_request(self, name: str, head: bytes, tensors: int) -> bytes:
        """What stands before the tensors of every run of a network."""
        fields = self._fields | {"inference-header-content-length": len(head)}
        return request("POST", f"/v2/models/{quote(name, safe='')}/infer", fields, len(head) + tensors) + head

    def learn(self, reply: Reply, sent: int, received: int, took_us: float) -> None:
        """Take in how long a run took."""

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self.closed = True
        while self._idle:
            self._idle.pop().close()
