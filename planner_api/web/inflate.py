"""Decompressing bodies that may be hostile: bounded while they inflate."""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

import msgspec
import zstandard

from planner_api.web.errors import HttpError

CHUNK = 64 * 1024
MAX_WINDOW = 8 * 2**20
"""Largest zstd window accepted: a frame may ask its reader for gigabytes otherwise (RFC 8878 recommends 8 MiB)."""

MOST_EXPANDED, ALWAYS_BYTES = 128, 2**20
"""A body may inflate to so many times its size as sent and these bytes more: graphs and uploads inflate to some ten
times theirs, and who sends 16 KB makes nobody read 16 MiB."""
Encoding = Literal["identity", "gzip", "zstd"]


class TooLargeError(HttpError):
    """A body beyond its limit."""

    def __init__(self, when: str, limit: int) -> None:
        super().__init__(413, "body-too-large", f"the body exceeds the limit of {limit} bytes{when}")


class Body(msgspec.Struct, frozen=True):
    """A request body as it was sent."""

    raw: bytes
    encoding: Encoding


def inflate(body: Body, *, limit: int) -> bytes | bytearray:
    """Return the decompressed body; never holds more than ``limit`` bytes and one chunk of it.

    NOTE: one-shot decompression would trust the size that a zstd frame declares, so both formats are streamed.

    Raises:
        HttpError: 413 beyond ``limit``, or for what inflates beyond measure; 400 for damaged data.
    """
    limit = refuse_declared(body, limit)
    if body.encoding == "identity":
        return body.raw
    out = bytearray()
    try:
        for piece in _pieces(body):
            out += piece
            if len(out) > limit:
                raise TooLargeError(" after decompression", limit)
    except (EOFError, zlib.error, zstandard.ZstdError, MemoryError):
        of = "zstd with a window of at most 8 MiB" if body.encoding == "zstd" else "gzip"
        raise HttpError(400, "damaged-body", f"the body is not valid {of}, or ends too early or too late") from None
    return out


def _pieces(body: Body) -> Iterator[bytes]:
    if body.encoding == "zstd":
        inflating = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        with inflating.stream_reader(body.raw, read_across_frames=True) as reader:
            yield from iter(lambda: reader.read(CHUNK), b"")
        return
    inflater, rest = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), body.raw
    while not inflater.eof and (piece := inflater.decompress(rest, CHUNK)):
        yield piece
        rest = inflater.unconsumed_tail
    if not inflater.eof or inflater.unused_data:
        raise EOFError


def refuse_declared(body: Body, limit: int) -> int:
    """Return to how many bytes a body may inflate at most. Raises HttpError where it says itself that it has more.

    What it says is only ever a reason to refuse it, before the work of finding out.
    """
    limit = min(limit, ALWAYS_BYTES + MOST_EXPANDED * len(body.raw))
    declared = len(body.raw)
    if body.encoding == "zstd":  # gzip says so at its end, where a damaged body says anything
        with suppress(zstandard.ZstdError):  # damaged, which inflating it says
            declared = zstandard.frame_content_size(body.raw)
    if declared > limit:
        raise TooLargeError(" after decompression", limit)
    return limit
