"""Bodies on the wire: compressed going out, decompressed within a limit coming in."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from typing import Final, Literal

import zstandard

Encoding = Literal["zstd", "gzip", "identity"]

SMALL: Final = 1024
"""Bodies of fewer bytes are sent as they are: compressing them costs more than it saves."""
_CHUNK: Final = 1 << 16
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


class TooLargeError(ValueError):
    """A body is larger than the limit, before or after decompression."""


def compress(body: bytes, encoding: Encoding) -> tuple[bytes, Encoding]:
    """Return the body in ``encoding`` and the encoding used: ``identity`` for small bodies."""
    if encoding == "identity" or len(body) < SMALL:
        return body, "identity"
    if encoding == "gzip":
        return gzip.compress(body, compresslevel=6, mtime=0), "gzip"
    return zstandard.ZstdCompressor(level=3).compress(body), "zstd"


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Return the body decompressed, holding at most ``limit`` bytes of it.

    NOTE: zstd is streamed, because ``ZstdDecompressor.decompress(max_output_size=...)`` ignores its limit when
    the frame declares a size.

    Raises:
        TooLargeError: the decompressed body exceeds ``limit``.
        ValueError: the body is damaged, or the encoding is none of ``gzip``, ``zstd``, ``identity``.
    """
    match encoding.strip().lower() or "identity":
        case "identity":
            if len(body) > limit:
                raise TooLargeError(f"the body has {len(body)} bytes, more than the limit of {limit}")
            return body
        case "gzip" | "x-gzip":
            return _gunzip(body, limit)
        case "zstd":
            with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True) as stream:
                try:
                    return _collect(stream.read, limit)
                except zstandard.ZstdError as error:
                    raise ValueError(f"damaged zstd body: {error}") from error
        case other:
            raise ValueError(f"content encoding '{other}' is not supported")


def _gunzip(body: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        out = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise ValueError(f"damaged gzip body: {error}") from error
    if len(out) > limit:
        raise TooLargeError(f"the decompressed body exceeds the limit of {limit} bytes")
    if not inflater.eof:
        raise ValueError("damaged gzip body: it ends too early")
    return out


def _collect(read: Callable[[int], bytes], limit: int) -> bytes:
    out = bytearray()
    while chunk := read(_CHUNK):
        out += chunk
        if len(out) > limit:
            raise TooLargeError(f"the decompressed body exceeds the limit of {limit} bytes")
    return bytes(out)
