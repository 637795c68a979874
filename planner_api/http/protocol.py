"""The server's HTTP/1.1 connection: requests bounded in bytes, fields and time before anybody has shown a token.

Uvicorn's httptools connection takes heads of any size and waits for requests for ever; its h11 connection bounds the
bytes of a head alone, at half the requests per second.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sized
from typing import Any
from weakref import WeakSet

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from planner_api.http.error import HttpError
from planner_api.http.problems import answer

MAX_HEAD_BYTES = 32 * 1024
"""Longest request line with all its fields, and trailer if there is one; looked at after each piece."""
PIECE_BYTES = 16 * 1024
MAX_FIELDS = 100
HEAD_S = 10.0
"""Longest time from a connection's beginning to its first byte, and from the first byte to the end of a head."""
LOOK_S = 0.5
"""How often connections are looked at whose time may be up: a timer for each request would cost it a tenth."""

_WATCHED: WeakSet[ServerState] = WeakSet()
"""Servers whose connections are looked at; while they have any."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection that ends with 400, 408 or 431 where a request is malformed, slow or has too large a head."""

    body_timeout_s = 30.0
    """Longest time from the end of a head to the end of its body."""

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._unread = 0
        """Bytes that came since the parser last completed a head, a piece of a body or a message."""
        self._in_body = False
        self.due = math.inf
        """When (by the loop's clock) what the client owes must have come."""
        self._refusal = HttpError(400, "malformed-request", "this is not a request of HTTP/1.1")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a first head."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self.transport = self._joined = _Joined(transport)  # type: ignore[assignment]
        self.due = self.loop.time() + HEAD_S
        if self.server_state not in _WATCHED:
            _WATCHED.add(self.server_state)
            self.loop.call_later(LOOK_S, _look, self.loop, self.server_state)

    def data_received(self, data: bytes) -> None:
        """Take in what arrived, piece by piece: the parser reads on whatever it is given."""
        if len(data) > PIECE_BYTES:
            for start in range(0, len(data), PIECE_BYTES):
                if not self.transport.is_closing():
                    self.data_received(data[start : start + PIECE_BYTES])
            return
        if not self._unread and not self._in_body:
            self.due = math.inf
        self._unread += len(data)
        super().data_received(data)
        if (self._unread or self._in_body) and not self.transport.is_closing():
            self._bound_the_rest()

    def on_headers_complete(self) -> None:
        """Go on to the body."""
        self._unread = 0
        self._in_body = True
        self.due = math.inf
        if len(self.headers) > MAX_FIELDS:
            self._refusal = HttpError(431, "head-too-large", f"a request may have {MAX_FIELDS} header fields")
            raise self._refusal
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take in a piece of the body."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Have the whole request."""
        self._unread = 0
        self._in_body = False
        self.due = math.inf
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Have answered: go on with what waits, or wait for the next request (uvicorn's own sets a timer each time)."""
        self._joined.flush()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif not self._in_body:
            self.due = self.loop.time() + (HEAD_S if self._unread else self.timeout_keep_alive)

    def send_400_response(self, msg: str) -> None:
        """Say why this connection ends, and end it."""
        headers, body = answer(self._refusal, None, None)
        headers = [*self.server_state.default_headers, *headers, (b"connection", b"close")]
        head = b"".join(b"%b: %b\r\n" % pair for pair in headers)
        self.transport.write(b"".join((STATUS_LINE[self._refusal.status], head, b"\r\n", body)))
        self.transport.close()

    def end_wait(self) -> None:
        """Wait no longer for what the client owes."""
        self.due = math.inf
        if self._in_body and self.flow.read_paused:
            self.due = self.loop.time() + self.body_timeout_s  # it is we who keep it waiting
        elif self._in_body:
            self._refuse(408, "body-timeout", f"the body did not arrive within {self.body_timeout_s:g} s")
        elif self._unread:
            self._refuse(408, "head-timeout", f"the head did not arrive within {HEAD_S:g} s")
        else:
            self.transport.close()  # nothing was asked

    def _bound_the_rest(self) -> None:
        """Limit what is still to come of a request."""
        if self._unread > MAX_HEAD_BYTES:
            self._refuse(431, "head-too-large", f"the head of a request may have {MAX_HEAD_BYTES} bytes")
        elif self.due == math.inf and (self._in_body or self.cycle is None or self.cycle.response_complete):
            self.due = self.loop.time() + (self.body_timeout_s if self._in_body else HEAD_S)

    def _refuse(self, status: int, kind: str, detail: str) -> None:
        self._refusal = HttpError(status, kind, detail)
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.send_400_response(detail)
        else:
            self.transport.close()  # in the middle of an answer


def _look(loop: asyncio.AbstractEventLoop, server: ServerState) -> None:
    """End the connections whose time is up, and look again while there are any."""
    now = loop.time()
    for connection in list(server.connections):
        if isinstance(connection, BoundedProtocol) and connection.due <= now:
            connection.end_wait()
    if server.connections:
        loop.call_later(LOOK_S, _look, loop, server)
    else:
        _WATCHED.discard(server)


class _Flow(FlowControl):
    """Flow control that reads on only once every request that came is being answered.

    NOTE: uvicorn reads on after each answer, so a client that sends requests and reads no answers fills the memory.
    """

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read on, unless requests wait."""
        if self.read_paused and not self._waiting:
            super().resume_reading()


class _Joined:
    """A transport that holds an answer's head until its body is there: one system call for both.

    ASGI asks servers to hold it. Where an answer comes in many pieces, every second one waits for the next, or the end.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Hold it, or send it with what was held."""
        if self._held:
            self._transport.writelines((self._held, data))
            self._held = b""
        elif data.startswith(b"HTTP/1.1 100 "):
            self._transport.write(data)
        else:
            self._held = data

    def flush(self) -> None:
        """Send what is held."""
        if self._held:
            self._transport.write(self._held)
            self._held = b""

    def close(self) -> None:
        """Send what is held, then close."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
