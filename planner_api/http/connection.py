"""A connection of uvicorn's that writes what the plan cache has at hand at once.

A cached plan or a 304 takes a few microseconds to decide. Uvicorn's way to an ASGI application and back (a task, an
event, the headers checked one by one) costs several times as much, so a request that the front can answer skips it.
Everything else takes the usual way: a request behind one that is still being answered, one whose body did not arrive
together with its head, one that ends its connection, and so on.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from planner_api.app import App


class _Answered:
    """Stands where uvicorn keeps the request in hand: its answer is complete, so its body (if any) is ignored."""

    response_complete = True
    message_event = asyncio.Event()


_ANSWERED: Any = _Answered()


class Connection(HttpToolsProtocol):
    """Uvicorn's HTTP/1.1 connection with the front's short cut."""

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._front = config.app.planner.front if isinstance(config.app, App) else None
        self._held: bytearray | None = None
        """Body of a request whose head was not passed on yet."""

    def data_received(self, data: bytes) -> None:
        """Take in what arrived; a request that is not complete by its end takes the usual way, with its time limit."""
        super().data_received(data)
        if self._held is not None and not self.transport.is_closing():
            self._pass_on()

    def on_headers_complete(self) -> None:
        """Answer at once what can be, hold what may be once its body is here, or go on as uvicorn does."""
        method = self.parser.get_method()
        if method == b"GET" and self._simple() and self._answered("GET", b""):
            return
        if method == b"POST" and self._simple():
            self._held = bytearray()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body with the head it belongs to."""
        if self._held is None:
            super().on_body(body)
        else:
            self._held += body

    def on_message_complete(self) -> None:
        """Answer the held request, or pass it on."""
        if self._held is not None:
            if self._answered("POST", bytes(self._held)):
                self._held = None
                return
            self._pass_on()
        super().on_message_complete()

    def _pass_on(self) -> None:
        body, self._held = self._held, None
        super().on_headers_complete()
        if body:
            super().on_body(bytes(body))

    def _simple(self) -> bool:
        """Whether the request in hand asks nothing special of its connection, and nothing is answered before it."""
        parser = self.parser
        return (
            self._front is not None
            and self._front.concerns(self.url)
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.expect_100_continue
            and not self.flow.write_paused
            and (self.cycle is None or self.cycle.response_complete)
        )

    def _answered(self, method: str, body: bytes) -> bool:
        assert self._front is not None
        found = self._front.at_once(method, self.url, self.headers, body)
        if found is None:
            return False
        answer, request_id = found
        own = b"".join(b"%b: %b\r\n" % pair for pair in self.server_state.default_headers)
        head = b"".join((answer.line, own, answer.head, request_id, b"\r\n\r\n"))
        self.transport.writelines((head, answer.body))
        self.cycle = _ANSWERED
        self.on_response_complete()
        return True
