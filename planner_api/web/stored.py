"""JSON that is stored compressed, on its way to a client: as it is, or inflated piece by piece while it is read."""

import re
from collections.abc import Iterable
from typing import Any

import zstandard
from starlette.responses import Response

from planner_api.web.asgi import Scope

PIECE_BYTES = 64 * 1024
VARY = (b"vary", b"Accept-Encoding")
_ZERO = re.compile(r"\s*q\s*=\s*0(\.0{0,3})?\s*", re.IGNORECASE)
"""The weight with which a client says that it does not read a coding (RFC 9110, section 12.4.2)."""


class StoredReply(Response):
    """An answer whose body stands compressed in memory, however long it is and however slowly it is read.

    Args:
        body_zstd: as ``compression.zstd`` makes it.
        accept_encoding: the request's header.
        headers: beside those of the body, as they are sent.
    """

    media_type = "application/json"

    def __init__(self, body_zstd: bytes, accept_encoding: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(body_zstd)
        self.raw_headers += [VARY, *headers]
        self._as_stored = reads_zstd(accept_encoding)
        if self._as_stored:
            self.raw_headers.append((b"content-encoding", b"zstd"))
        else:
            self.headers["content-length"] = str(zstandard.frame_content_size(body_zstd))

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Send the answer; each piece is made once the client has read most of those before."""
        if self._as_stored:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with zstandard.ZstdDecompressor().stream_reader(self.body) as reader:
            piece = reader.read(PIECE_BYTES)
            while piece:
                after = reader.read(PIECE_BYTES)
                await send({"type": "http.response.body", "body": piece, "more_body": bool(after)})
                piece = after


def reads_zstd(accept_encoding: str) -> bool:
    """Whether an ``Accept-Encoding`` header names zstd (RFC 9110, section 12.5.3)."""
    for item in accept_encoding.split(","):
        name, _, weight = item.partition(";")
        if name.strip().lower() == "zstd":
            return _ZERO.fullmatch(weight) is None
    return False
