"""An application behind a real socket, and requests as they go over it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse

import uvicorn

from tests.planner.samples import Api


def raw(method: str, path: str, body: bytes = b"", /, **headers: str) -> bytes:
    """A request as it goes over the wire."""
    named = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body and "transfer-encoding" not in named:
        named.setdefault("content-length", str(len(body)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def received(connection: socket.socket, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Read one whole answer, in however many pieces it comes: status, headers (names in lower case), body."""
    answer = HTTPResponse(connection, method=method)
    answer.begin()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


@contextmanager
def listening(
    api: Api, config: uvicorn.Config, made: Callable[[uvicorn.Config], uvicorn.Server] = uvicorn.Server
) -> Iterator[int]:
    """Serve an application that runs already until the block ends; yields the port."""
    config.lifespan = "off"
    server = made(config)
    assert api.client.portal is not None
    ended = api.client.portal.start_task_soon(server.serve)
    while not server.started:
        time.sleep(0.01)
    try:
        yield int(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        ended.result()
