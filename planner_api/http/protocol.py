"""The server's HTTP/1.1 connection: requests bounded in bytes, fields and time before anybody has shown a token.

Uvicorn's httptools connection takes heads of any size and waits for requests for ever; its h11 connection bounds the
bytes of a head alone, at half the requests per second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from planner_api.http.error import HttpError
from planner_api.http.problems import answer

MAX_HEAD_BYTES = 32 * 1024
"""Longest request line with all its fields, and trailer if there is one; looked at after each piece."""
PIECE_BYTES = 16 * 1024
MAX_FIELDS = 100
HEAD_S = 10.0
"""Longest time from a connection's beginning, or from the first byte after an answer, to the end of a head."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection that ends with 400, 408 or 431 where a request is malformed, slow or has too large a head."""

    body_timeout_s = 30.0
    """Longest time from the end of a head to the end of its body."""

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._unread = 0
        """Bytes that came since the parser last completed a head, a piece of a body or a message."""
        self._in_body = False
        self._clock: asyncio.TimerHandle | None = None
        self._refusal = HttpError(400, "malformed-request", "this is not a request of HTTP/1.1")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a first head."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self.transport = self._joined = _Joined(transport)  # type: ignore[assignment]
        self._clock = self.loop.call_later(HEAD_S, self._overdue)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in what arrived, piece by piece: the parser reads on whatever it is given."""
        if len(data) > PIECE_BYTES:
            for start in range(0, len(data), PIECE_BYTES):
                if not self.transport.is_closing():
                    self.data_received(data[start : start + PIECE_BYTES])
            return
        self._unread += len(data)
        super().data_received(data)
        if (self._unread or self._in_body) and not self.transport.is_closing():
            self._bound_the_rest()

    def on_headers_complete(self) -> None:
        """Go on to the body."""
        self._unread = 0
        self._in_body = True
        if self._clock is not None:
            self._stop_clock()
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
        if self._clock is not None:
            self._stop_clock()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Have answered."""
        self._joined.flush()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Say why this connection ends, and end it."""
        self._stop_clock()
        headers, body = answer(self._refusal, None, None)
        headers = [*self.server_state.default_headers, *headers, (b"connection", b"close")]
        head = b"".join(b"%b: %b\r\n" % pair for pair in headers)
        self.transport.write(b"".join((STATUS_LINE[self._refusal.status], head, b"\r\n", body)))
        self.transport.close()

    def _bound_the_rest(self) -> None:
        """Limit what is still to come of a request."""
        if self._unread > MAX_HEAD_BYTES:
            self._refuse(431, "head-too-large", f"the head of a request may have {MAX_HEAD_BYTES} bytes")
        elif self._clock is None and (self._in_body or self.cycle is None or self.cycle.response_complete):
            limit_s = self.body_timeout_s if self._in_body else HEAD_S
            self._clock = self.loop.call_later(limit_s, self._overdue)

    def _refuse(self, status: int, kind: str, detail: str) -> None:
        self._refusal = HttpError(status, kind, detail)
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.send_400_response(detail)
        else:
            self.transport.close()  # in the middle of an answer

    def _overdue(self) -> None:
        self._clock = None
        if self._in_body and self.flow.read_paused:
            self._clock = self.loop.call_later(self.body_timeout_s, self._overdue)  # it is we who keep it waiting
        elif self._in_body:
            self._refuse(408, "body-timeout", f"the body did not arrive within {self.body_timeout_s:g} s")
        elif self._unread:
            self._refuse(408, "head-timeout", f"the head did not arrive within {HEAD_S:g} s")
        else:
            self.transport.close()  # nothing was asked

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


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
            held, self._held = self._held, b""
            self._transport.writelines((held, data))
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
