"""The server's HTTP/1.1 connection: requests bounded in bytes, fields and time before anybody has shown a token.

Uvicorn's httptools connection takes heads of any size and waits for requests for ever; its h11 connection bounds the
bytes of a head alone, at half the requests per second.
"""

import asyncio
from collections.abc import Sized
from typing import Any, cast
from weakref import WeakSet

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from planner_api.web.connections import MOST_FILES, Connections
from planner_api.web.errors import HttpError
from planner_api.web.problems import answer

MAX_HEAD_BYTES = 32 * 1024
"""Longest request line with all its fields, and trailer if there is one; looked at after each piece."""
PIECE_BYTES, SENT_BYTES = 16 * 1024, 64 * 1024
"""What is taken in at once, and what is sent."""
MAX_FIELDS = 100
HEAD_S = 10.0
"""Longest time from a connection's beginning to its first byte, and from the first byte to the end of a head."""
READ_S = 10.0
"""Longest time that a client may take to read on: the answer, or 64 KiB of a longer one."""
LOOK_S = 0.5
"""How often it is looked at what connections wait for, and since when: a timer for each request would cost it a tenth.
What takes too long is seen up to two looks late."""

_WATCHED: WeakSet[ServerState] = WeakSet()
"""Servers whose connections are looked at; while they have any."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection that ends with 400, 408 or 431 where a request is malformed, slow or has too large a head, and
    without a word where nobody reads the answer.
    """

    body_timeout_s = 30.0
    """Longest time from the end of a head to the end of its body."""
    held = Connections(MOST_FILES, 0)
    """The connections of this server."""

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._unread = 0
        """Bytes that came since the parser last completed a head, a piece of a body or a message."""
        self._in_body = False
        self._owed: tuple[str, RequestResponseCycle | None] | None = None
        """What the client owed at the last look, after which request; and (by the loop's clock) since when."""
        self._owed_since = 0.0
        self._address: str | None = None
        self._refusal = HttpError(400, "malformed-request", "this is not a request of HTTP/1.1")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        super().connection_made(stream)
        self.flow = _Flow(stream, self.pipeline)
        self._address = self.client[0] if self.client else "unknown"
        if not self.held.enter(self._address):
            self._address = None
            self._refuse(429, "too-many-connections", "this address has too many connections open; close some")
        if self.server_state not in _WATCHED:
            _WATCHED.add(self.server_state)
            self.loop.call_later(LOOK_S, _look, self.loop, self.server_state)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._address is not None:
            self.held.leave(self._address)
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._owed = None
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take in what arrived, piece by piece: the parser reads on whatever it is given."""
        if len(data) > PIECE_BYTES:
            for start in range(0, len(data), PIECE_BYTES):
                if not self.transport.is_closing():
                    self.data_received(data[start : start + PIECE_BYTES])
            return
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, "head-too-large", f"the head of a request may have {MAX_HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        self._unread = 0
        self._in_body = True
        if len(self.headers) > MAX_FIELDS:
            self._refusal = HttpError(431, "head-too-large", f"a request may have {MAX_FIELDS} header fields")
            raise self._refusal
        super().on_headers_complete()
        self.cycle.__class__ = _Answering  # uvicorn makes one of its own

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Have answered: go on with what waits (uvicorn's own also sets a timer for the next request)."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def send_400_response(self, msg: str) -> None:
        """Say why this connection ends, and end it."""
        headers, body = answer(self._refusal, None, None)
        headers += [*self.server_state.default_headers, (b"connection", b"close")]
        lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[self._refusal.status], lines, body))
        self.transport.close()

    def look(self, now: float) -> None:
        """End the connection where what the client owes has been due for too long."""
        owed = self._owes()
        if owed is None or owed != self._owed:
            self._owed, self._owed_since = owed, now
            return
        waited_s = now - self._owed_since
        if owed[0] == "answer":
            if waited_s >= READ_S:
                self.transport.abort()  # what is left of it stands in memory until then
        elif owed[0] == "body" and waited_s >= self.body_timeout_s:
            self._refuse(408, "body-timeout", f"the body did not arrive within {self.body_timeout_s:g} s")
        elif owed[0] == "head" and waited_s >= HEAD_S:
            self._refuse(408, "head-timeout", f"the head did not arrive within {HEAD_S:g} s")
        elif owed[0] == "request" and waited_s >= (HEAD_S if owed[1] is None else self.timeout_keep_alive):
            self.transport.close()  # nothing was asked

    def _owes(self) -> tuple[str, RequestResponseCycle | None] | None:
        """What the client is to read or to send next, after which request; None: it is we who keep it waiting."""
        if self.transport.get_write_buffer_size():
            return "answer", self.cycle
        if self._in_body:
            return None if self.flow.read_paused else ("body", self.cycle)
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        return ("head" if self._unread else "request", self.cycle)

    def _refuse(self, status: int, kind: str, detail: str) -> None:
        self._refusal = HttpError(status, kind, detail)
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.send_400_response(detail)
        else:
            self.transport.close()  # in the middle of an answer


def _look(loop: asyncio.AbstractEventLoop, server: ServerState) -> None:
    """Look at every connection, and again while there are any."""
    now = loop.time()
    for connection in list(server.connections):
        if isinstance(connection, BoundedProtocol):
            connection.look(now)
    if server.connections:
        loop.call_later(LOOK_S, _look, loop, server)
    else:
        _WATCHED.discard(server)


class _Answering(RequestResponseCycle):
    """A request and its answer, which goes out in pieces: whoever reads slowly is waited for after each."""

    async def send(self, message: Any) -> None:
        body = message.get("body", b"")
        if len(body) > SENT_BYTES:
            last = (len(body) - 1) // SENT_BYTES * SENT_BYTES
            for start in range(0, last, SENT_BYTES):
                piece = {"type": message["type"], "body": body[start : start + SENT_BYTES], "more_body": True}
                await super().send(cast(Any, piece))
            message = {**message, "body": body[last:]}
        await super().send(message)


class _Flow(FlowControl):
    """Flow control that reads on only once every request that came is being answered.

    NOTE: uvicorn reads on after each answer, so a client that sends requests and reads no answers fills the memory.
    """

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if self.read_paused and not self._waiting:
            super().resume_reading()
