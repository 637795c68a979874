"""A cheap HTTP/1.1 load generator: keep-alive sockets, no pipelining, responses counted and timed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

RETRY_S = 0.05
"""Pause before a connection that broke is opened again."""


@dataclass
class Answer:
    """One response: its request's number, status, head and body, and when it began and ended (monotonic)."""

    number: int
    status: int
    head: bytes
    body: bytes
    began: float
    ended: float

    @property
    def tag(self) -> str:
        """Its ``ETag``."""
        return next(line[6:].decode() for line in self.head.split(b"\r\n") if line.lower().startswith(b"etag: "))


@dataclass
class Tally:
    """What came back."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    broken: int = 0
    elapsed: float = 0.0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return sum(self.statuses.values()) / self.elapsed if self.elapsed else 0.0

    def percentile(self, share: float) -> float:
        """Seconds within which ``share`` of the answers came."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Pump:
    """Sends requests over ``connections`` sockets, each waiting for its answer before its next request.

    Args:
        addresses: ``(host, port)`` of each server; connections are dealt out evenly.
        requests: raw requests; the pump ends with them.
        connections: how many sockets.
        seconds: ends earlier after this long.
        per_second: sends each request at its moment, or as soon after it as a socket is free; without it at once.
        on_answer: called with every answer (bodies are kept only then).
        sources: addresses of this machine that connections come from in turn; none: the usual one.
    """

    def __init__(
        self,
        addresses: list[tuple[str, int]],
        requests: Iterator[bytes],
        *,
        connections: int,
        seconds: float | None = None,
        per_second: float | None = None,
        on_answer: Callable[[Answer], None] | None = None,
        sources: Sequence[str] = (),
    ) -> None:
        self._addresses = addresses
        self._requests = enumerate(requests)
        self._connections = connections
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._per_second = per_second
        self._started = time.monotonic()
        self.on_answer = on_answer
        self._sources: list[tuple[str, int] | None] = [(source, 0) for source in sources] or [None]
        self.tally = Tally()

    def take(self) -> tuple[int, bytes] | None:
        """The next request; None when it is over."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return None
        return next(self._requests, None)

    def early_s(self, number: int) -> float:
        """How long it is until a request's moment."""
        return 0.0 if self._per_second is None else self._started + number / self._per_second - time.monotonic()

    async def run(self) -> Tally:
        """Send everything and return what came back."""
        self._started = time.monotonic()
        sockets = [
            self._serve(self._addresses[number % len(self._addresses)], self._sources[number % len(self._sources)])
            for number in range(self._connections)
        ]
        await asyncio.gather(*sockets)
        self.tally.elapsed = time.monotonic() - self._started
        return self.tally

    async def _serve(self, address: tuple[str, int], source: tuple[str, int] | None) -> None:
        pending: tuple[int, bytes] | None = None
        while True:
            pending = pending or self.take()
            if pending is None:
                return
            loop = asyncio.get_running_loop()
            ended = loop.create_future()
            try:
                transport, _ = await loop.create_connection(
                    partial(_Connection, self, pending, ended), *address, local_addr=source
                )
            except OSError:
                self.tally.broken += 1
                await asyncio.sleep(RETRY_S)
                continue
            try:
                pending = await ended
            finally:
                transport.abort()
            if pending is not None:
                self.tally.broken += 1
                await asyncio.sleep(RETRY_S)
            elif self._deadline is not None and time.monotonic() >= self._deadline:
                return


class _Connection(asyncio.Protocol):
    """One socket. Its future ends with the request that was not answered, or None."""

    def __init__(self, pump: Pump, first: tuple[int, bytes], ended: asyncio.Future[tuple[int, bytes] | None]) -> None:
        self._pump = pump
        self._current: tuple[int, bytes] | None = first
        self._ended = ended
        self._keep = pump.on_answer is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send_in_time()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(self._current)

    def _send_in_time(self) -> None:
        assert self._current is not None
        early_s = self._pump.early_s(self._current[0])
        if early_s > 0.0:
            asyncio.get_running_loop().call_later(early_s, self._send)
        else:
            self._send()

    def _send(self) -> None:
        assert self._current is not None
        self._head = b""
        self._need = -1
        self._body: list[bytes] = []
        self._began = time.monotonic()
        self._transport.write(self._current[1])

    def data_received(self, data: bytes) -> None:
        if self._need < 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = self._head[:end], self._head[end + 4 :]
            self._head = head
            self._status = int(head[9:12])
            _, _, rest = head.lower().partition(b"\r\ncontent-length:")
            bodiless = self._status in (204, 304) or not rest
            self._need = 0 if bodiless else int(rest.partition(b"\r\n")[0])
        self._need -= len(data)
        if self._keep:
            self._body.append(data)
        if self._need == 0:
            self._complete()

    def _complete(self) -> None:
        assert self._current is not None
        ended = time.monotonic()
        pump = self._pump
        pump.tally.statuses[self._status] += 1
        pump.tally.seconds.append(ended - self._began)
        if pump.on_answer is not None:
            pump.on_answer(Answer(self._current[0], self._status, self._head, b"".join(self._body), self._began, ended))
        self._current = pump.take()
        if self._current is None:
            self._ended.set_result(None)
        else:
            self._send_in_time()


def request(
    method: str, path: str, body: bytes = b"", *, token: str | None = None, headers: dict[str, str] | None = None
) -> bytes:
    """A raw HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
    if token is not None:
        lines.append(f"authorization: Bearer {token}")
    if body or method in ("POST", "PUT"):
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
