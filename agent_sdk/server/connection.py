"""HTTP/1.1 over one socket, on a thread of its own: heads and bodies bounded in bytes and time, bodies never copied.

A thread waits in ``recv`` and goes on in the network's run and in ``send``: no other thread has to be woken, which at
the size of a small network takes as long as its run. Heads are parsed by httptools, bodies arrive where they stay.
"""

from __future__ import annotations

import ctypes
import json
import select
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Final, TypeAlias

import httptools
import numpy as np

from agent_sdk.cancel import Cancel
from agent_sdk.errors import RefusedError
from agent_sdk.sockets import ReadAhead, send_parts

MOST_HEAD: Final = 16 * 1024
"""Most bytes of a request line with all its fields."""
MOST_BODY: Final = 2**60
"""Most bytes that a body can be said to have; what is admitted are far fewer."""
DIGITS: Final = len(str(MOST_BODY))
SILENCE_S: Final = 60.0
"""Longest time in which a client sends nothing, or takes an answer: then its connection ends."""
HEAD_S: Final = 10.0
"""Longest time from the first byte of a head to its last."""
BODY_S: Final = 10.0
"""Longest time of a short body; a longer one has a second more for each ``SLOWEST`` bytes."""
SLOWEST: Final = 64 * 1024
LINGER_S: Final = 2.0
"""How long a request that was refused unread is read on, so that its answer arrives; ``LINGER_BYTES`` at most."""
LINGER_BYTES: Final = 64 * 2**20
ALIGNED: Final = 64
"""The address of a body's binary part is a multiple of this, so that tensors are read where they stand."""
PIECE: Final = 2**20
"""Bytes that are inflated at once."""
ONCE: Final = frozenset(
    ("host", "authorization", "content-length", "content-encoding", "expect", "inference-header-content-length")
)
"""Fields that stand in a head once."""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""An answer before the answer, of which any client may be sent some."""
PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


Route: TypeAlias = Callable[["Exchange", Mapping[str, str]], None]
"""What answers a request, given what its path names."""


class Head:
    """What a request says before its body.

    Attributes:
        said: all of it, as it came.
        method, path: of the request line; the path without a query.
        fields: the header's, by lower-case name.
        goes_on: whether the client leaves the connection open.
        is_old: whether it is of HTTP/1.0, which knows no answer before the answer.
        length: bytes of the body.
        encoding: how that is compressed, ``identity`` where it is not.
        waits: whether the client sends it only once it is told to.
        leads: who answers such requests, and what their path names; None until that is known.

    Raises RefusedError where it is no head of HTTP/1.1 that can be answered.
    """

    def __init__(self, said: bytes) -> None:
        self.said = said
        self.leads: tuple[Route, Mapping[str, str]] | None = None
        self.fields: dict[str, str] = {}
        self._target, self._twice = b"", ""
        self._parser = parser = httptools.HttpRequestParser(self)
        try:
            with suppress(httptools.HttpParserUpgrade):  # an offer, which may be passed over
                parser.feed_data(said)
            self.method = parser.get_method().decode("ascii")
            self.path = (httptools.parse_url(self._target).path or b"/").decode("ascii")
        except (httptools.HttpParserError, httptools.HttpParserInvalidURLError, UnicodeDecodeError) as error:
            raise RefusedError(400, f"this is no request of HTTP/1.1: {error}") from None
        finally:
            del self._parser  # else each would keep the other
        if self._twice:
            raise RefusedError(400, f"the request has several fields '{self._twice}'")
        if "transfer-encoding" in self.fields:
            raise RefusedError(411, "say how long the body is: Content-Length")
        self.length = self.number("content-length", MOST_BODY)
        self.encoding = self.fields.get("content-encoding", "identity").lower()
        self.waits = self.fields.get("expect", "").lower() == "100-continue"

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        if key in ONCE and key in self.fields:
            self._twice = key
        self.fields[key] = value.decode("latin-1").strip(" \t")

    def on_headers_complete(self) -> None:
        # Asked here: with the end of a request, which may be that of its head, the parser forgets what it said of this.
        # Of HTTP/1.0 a client waits for the end of the connection unless it is told otherwise.
        self.is_old = self._parser.get_http_version() == "1.0"
        self.goes_on = self._parser.should_keep_alive() and not self.is_old

    def number(self, field: str, most: int) -> int:
        """A field that counts bytes; 0 where it is missing. Raises RefusedError for more than so many."""
        given = self.fields.get(field, "0")
        if not given.isdecimal() or len(given) > DIGITS or int(given) > most:
            raise RefusedError(400, f"{field.title()} is a number of bytes, up to {most}")
        return int(given)


class Exchange:
    """One request, whose ``head`` was read, and its answer; ``connection`` is what both come over."""

    def __init__(self, connection: Connection, head: Head) -> None:
        self.connection, self.head, self.goes_on = connection, head, head.goes_on
        self.answered = self._read = False

    def body(self, take: Callable[[int], None], aligned_at: int = 0) -> memoryview:
        """Read the body, with the byte ``aligned_at`` at an address that any tensor may have.

        ``take`` is told of bytes before they are held, and may refuse. Raises RefusedError, OSError.
        """
        encoding = self.head.encoding
        if encoding not in ("identity", "gzip", "deflate"):
            raise RefusedError(415, f"a body may be sent as it is, or as gzip or deflate, not as '{encoding:.16}'")
        take(self.head.length)
        plain = encoding == "identity"
        body = self._received(aligned_at if plain else 0)
        return body if plain else _inflated(body, take, aligned_at)

    def pass_over(self) -> None:
        """Read a body that says nothing here. Raises RefusedError where it is longer than a head, OSError."""
        if self.head.length > MOST_HEAD:
            raise RefusedError(413, f"the body of this call may have {MOST_HEAD} bytes")
        self._received(0)

    def _received(self, aligned_at: int) -> memoryview:
        if self.head.waits:
            self.connection.send([CONTINUE])
        body = _room(self.head.length, aligned_at)
        self.connection.receive(body)
        self._read, self.connection.asks = True, not self.head.is_old
        self.connection.ask()
        return body

    def answer(
        self,
        status: int,
        body: bytes,
        tail: Sequence[memoryview] = (),
        fields: Sequence[tuple[str, str]] = (),
        kind: str = "application/json",
    ) -> None:
        """Send the answer, and the tensors that stand behind it. Raises OSError."""
        self.answered, self.connection.asks = True, False
        unread = self.head.length > 0 and not self._read
        self.goes_on = self.goes_on and not unread and not self.connection.ending
        size = len(body) + sum(map(len, tail))
        kind = f"application/octet-stream\r\ninference-header-content-length: {len(body)}" if tail else kind
        more = "".join([f"{name}: {value}\r\n" for name, value in fields])
        more += "" if self.goes_on else "connection: close\r\n"
        said = f"HTTP/1.1 {status} {PHRASES[status]}\r\ncontent-length: {size}\r\ncontent-type: {kind}\r\n{more}\r\n"
        head = said.encode("latin-1")
        self.connection.send([head + body, *tail] if self.head.method != "HEAD" else [head])
        if unread:
            self.connection.linger()


class Connection:
    """What one client sends, request after request.

    Args:
        tls: what wraps it, if anything.

    Attributes:
        idle: whether it waits for a request.
        ending: whether the answer under way is the last.
        asks: whether a client that waits for its answer may be sent another one before.
        gone: cancelled once the client is gone; what its requests ask for is done under it.
        number: of the socket, for the system.
        when_ended: called with it once it has ended.
    """

    def __init__(self, taken: socket.socket, tls: ssl.SSLContext | None) -> None:
        self._socket, self._tls = taken, tls
        self._ahead = ReadAhead(MOST_HEAD)
        self._head: Head | None = None
        self._sending = threading.Lock()
        self._half_closed = self.asks = False
        self.idle, self.ending = True, False
        self.gone, self.number = Cancel(), taken.fileno()
        self.when_ended: Callable[[Connection], object] = lambda _: None

    def serve(self, handle: Callable[[Exchange], None]) -> None:
        """Have requests answered until either side ends."""
        try:
            self._socket.settimeout(SILENCE_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                self._socket = self._tls.wrap_socket(self._socket, server_side=True)
            with self.gone.current():
                while (exchange := self._next()) is not None:
                    handle(exchange)
                    self.idle = True
                    if not exchange.goes_on or self.ending:
                        break
        except RefusedError as error:  # no head that could be answered as a request
            self._last_words(error)
        except OSError:  # the client has gone, or takes too long
            pass
        finally:
            self.close()
            self.when_ended(self)

    def end(self) -> None:
        self.ending = True
        if self.idle:
            self._shut(socket.SHUT_RD)

    def close(self) -> None:
        self._shut(socket.SHUT_RDWR)
        with self._sending, suppress(OSError):
            self._socket.close()

    def look(self) -> None:
        """See whether the client has closed its side, or is gone. Does not wait."""
        state = select.poll()
        state.register(self.number, select.POLLRDHUP | select.POLLOUT)
        found = dict(state.poll(0)).get(self.number, 0)
        if found & (select.POLLHUP | select.POLLERR):
            self.gone.cancel()
        elif found & select.POLLRDHUP:
            self._half_closed = True
            if found & select.POLLOUT:
                self.ask()

    def ask(self) -> None:
        """Find out whether a client is there that has closed its side, and may wait for an answer all the same.

        Whose system knows it no more resets the connection when more is sent.
        """
        if self._half_closed and not self.ending and self._sending.acquire(blocking=False):
            with suppress(OSError):
                if self.asks:
                    self._socket.send(CONTINUE)
            self._sending.release()

    def _shut(self, ways: int) -> None:
        # NOTE: after an SSLSocket's own shutdown, an answer that another thread gives just now would go unencrypted.
        with suppress(OSError):
            socket.socket.shutdown(self._socket, ways)

    def receive(self, into: memoryview) -> None:
        """Fill this with what comes next. Raises RefusedError, OSError."""
        size = len(into)
        latest = time.monotonic() + BODY_S + size / SLOWEST
        have = self._ahead.fill(self._socket, into, latest)
        if have < size and time.monotonic() > latest:
            raise RefusedError(408, f"of {size} bytes of the body {have} arrived in time")
        if have < size:
            raise RefusedError(400, f"the body ends after {have} of {size} bytes")

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send all of it. Raises OSError."""
        with self._sending:
            send_parts(self._socket, parts)

    def linger(self) -> None:
        """Read on for a while: what ends with bytes unread takes its last answer with it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(LINGER_S)
            end, count = time.monotonic() + LINGER_S, 0
            while time.monotonic() < end and count < LINGER_BYTES and (got := len(self._socket.recv(MOST_HEAD))):
                count += got

    def _next(self) -> Exchange | None:
        """The next request, once its head is there; None where none comes. Raises RefusedError, OSError."""
        try:
            head = self._ahead.head(self._socket, begun_s=HEAD_S)
        except ValueError:
            raise RefusedError(431, f"the head of a request may have {MOST_HEAD} bytes") from None
        except TimeoutError:
            if not self._ahead.filled:
                raise
            raise RefusedError(408, f"the head of the request did not arrive within {HEAD_S:g} s") from None
        if not head:
            return None
        self.idle = False
        if self._head is None or self._head.said != head:
            # A client says the same again and again. It shows a token, so no head outlives its connection.
            self._head = Head(head)
        return Exchange(self, self._head)

    def _last_words(self, error: RefusedError) -> None:
        body = json.dumps({"error": str(error)})
        head = f"HTTP/1.1 {error.status} {PHRASES[error.status]}\r\nconnection: close\r\n"
        with suppress(OSError):
            self._socket.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode("latin-1"))
            self.linger()


def _room(size: int, aligned_at: int) -> memoryview:
    """Memory for a body. Raises RefusedError where the machine has none."""
    try:
        memory = np.empty(size + ALIGNED, np.uint8).data
    except MemoryError as error:
        raise RefusedError(503, f"this machine has no {size} bytes left") from error
    start = -(ctypes.addressof(ctypes.c_char.from_buffer(memory)) + aligned_at) % ALIGNED
    return memory[start : start + size]


def _inflated(body: memoryview, take: Callable[[int], None], aligned_at: int) -> memoryview:
    made, parts = zlib.decompressobj(zlib.MAX_WBITS | 32), []
    left: bytes | memoryview = body
    try:
        while not made.eof:
            part = made.decompress(left, PIECE)
            take(2 * len(part))  # in pieces, and put together
            parts.append(part)
            left = made.unconsumed_tail
            if not part and not left:
                raise RefusedError(400, "the body ends before what it inflates to does")
    except zlib.error as error:
        raise RefusedError(400, f"the body cannot be inflated: {error}") from None
    whole = _room(sum(map(len, parts)), aligned_at)
    at = 0
    for part in parts:
        whole[at : at + len(part)] = part
        at += len(part)
    return whole
