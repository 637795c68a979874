"""Reading request bodies that may be hostile: bounded as sent, while they inflate, and while they become objects.

Who sent it is known before any of it is read (``devices/guard.py``). What a route reads into objects is small by its
own limit. Graphs and uploads may be large: those are read by a function of the route's, in a process of its own where
they are (``web/reader.py``), and only what has to be stored comes back.
"""

import errno
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from planner_api.errors import UnavailableError
from planner_api.web.errors import HttpError
from planner_api.web.inflate import Body, Encoding, TooLargeError, inflate, refuse_declared
from planner_api.web.principal import principal_of
from planner_api.web.shape import parse

SMALL_BYTES = 256 * 1024
"""Largest body of most routes, as it is sent and inflated; the contract's own bounds keep honest ones far below it."""
_EXPONENTS = (b"e-", b"e+", b"e0", b"e1", b"e2", b"e3")
MOST_EXPONENTS = 2000
"""How often these may stand in a body that is read at once. A number as small or as large as a float can be takes ten
microseconds, a hundred times what others do; what honest devices send has them in names only."""
Message = TypeVar("Message", bound=BaseModel)
Result = TypeVar("Result")
Reading = Callable[[bytes | bytearray], Result]
"""Makes of a body's text what is stored of it; a function of a module, so that another process finds it too."""


async def receive(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body piece by piece; how long that may take is the connection's to say (``web/protocol.py``).

    Raises:
        HttpError: 413 above ``limit`` bytes, 400 for one that breaks off.
    """
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise HttpError(400, "body-incomplete", "the connection closed before the body was complete")
        piece, more = message.get("body", b""), message.get("more_body", False)
        size += len(piece)
        if size > limit:
            raise TooLargeError("", limit)
        yield piece


async def read_message(
    request: Request, kind: type[Message], *, limit: int = SMALL_BYTES, empty: bytes = b""
) -> Message:
    """Read, inflate and validate a small body as one message of the contract; ``empty`` stands for one without a byte.

    Raises:
        HttpError: as ``read_small`` and ``parse`` do.
    """
    return parse(await read_small(request, limit=limit) or empty, kind)


async def read_small(request: Request, *, limit: int = SMALL_BYTES) -> bytes | bytearray:
    """Read and inflate a small body.

    Raises:
        HttpError: as ``coding_of`` and ``inflate`` do; 413 above ``limit`` bytes.
    """
    encoding = coding_of(request, limit)
    body = Body(b"".join([piece async for piece in receive(request, limit)]), encoding)
    return inflate(body, limit=limit)


async def read_large(request: Request, reading: Reading[Result], *, inline: int) -> tuple[Result, Body]:
    """Return what ``reading`` makes of a body that may be large, or slow to read, and the body as it was sent.

    Args:
        request: whose body it is.
        reading: raises HttpError for what is not valid.
        inline: up to this many bytes it is read here and now, unless that is slow; else in a process of its own.

    Raises:
        HttpError: as ``coding_of``, ``inflate`` and ``reading`` do; 413 for one too long; 429 for who sends too many
            large bodies at once.
        UnavailableError: there is no room on disk.
    """
    planner = request.app.state.planner
    settings, owner = planner.settings, principal_of(request.scope).name
    encoding = coding_of(request, settings.max_body_bytes)
    with _spooled() as file:

        def take() -> Body:
            """Take it into memory: a large one stands on disk until then, however slowly it came."""
            file.seek(0)
            return Body(file.read(), encoding)

        async with AsyncExitStack() as held:
            is_small = True
            async for piece in receive(request, settings.max_body_bytes):
                if is_small and file.tell() + len(piece) > SMALL_BYTES:
                    is_small = False
                    await held.enter_async_context(planner.large_bodies.turn(owner))
                file.write(piece)
            if is_small:
                body = take()
                refuse_declared(body, settings.max_inflated_bytes)
                try:
                    text = inflate(body, limit=min(inline, settings.max_inflated_bytes))
                    if not is_slow(text):
                        return reading(text), body
                except TooLargeError:
                    pass
            result: Result = await planner.reader.read(owner, reading, take)
            return result, take()


@contextmanager
def _spooled() -> Iterator[IO[bytes]]:
    """A file for a body, on disk once it is large. Raises UnavailableError where there is no room."""
    try:
        with SpooledTemporaryFile(max_size=SMALL_BYTES) as file:
            yield file
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UnavailableError("the planner's disk is full; try again", retry_after_s=30) from error


def is_slow(text: bytes | bytearray) -> bool:
    """Whether a body may have so many numbers of extreme exponents that reading it would hold up everybody."""
    signs = text.count(b"E")
    # Counting one byte costs a tenth of counting two.
    return signs + text.count(b"e") > MOST_EXPONENTS and signs + sum(map(text.count, _EXPONENTS)) > MOST_EXPONENTS


def coding_of(request: Request, limit: int) -> Encoding:
    """How a body of JSON is compressed.

    Raises:
        HttpError: 415 for an unknown content type or coding, 400 where the request says one of them twice, 413 where it
            says that it has more than ``limit`` bytes.
    """
    given: dict[bytes, str] = {}
    for name, value in request.scope["headers"]:
        if name in (b"content-type", b"content-encoding", b"content-length"):
            if name in given:
                raise HttpError(400, "repeated-header", f"the request has several {name.decode()} headers; send one")
            given[name] = value.decode("latin-1")
    if (declared := given.get(b"content-length", "")).isdigit() and int(declared) > limit:
        raise TooLargeError("", limit)
    if given.get(b"content-type", "application/json").split(";")[0].strip().lower() != "application/json":
        raise HttpError(415, "unsupported-media-type", "send the body as application/json")
    match given.get(b"content-encoding", "").strip().lower():
        case "" | "identity":
            return "identity"
        case "gzip" | "x-gzip":
            return "gzip"
        case "zstd":
            return "zstd"
    raise HttpError(
        415,
        "unsupported-encoding",
        "the body's content encoding is not supported; use gzip or zstd",
        headers={"Accept-Encoding": "zstd, gzip"},
    )
