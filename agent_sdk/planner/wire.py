"""Bodies on the wire: compressed going out, decompressed within a limit coming in."""

from typing import Final

import zstandard

SMALL: Final = 1024
"""Bodies of fewer bytes are sent as they are: compressing them costs more than it saves."""
_SLICE: Final = 256
"""Bytes of zstd inflated at a time: at most 8 MiB, as a block of 128 KiB takes no fewer than 4 bytes."""


class TooLargeError(ValueError):
    """A body is larger than the limit, before or after decompression."""


def compress(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(body)


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Return the body decompressed, all frames of it, giving up once it exceeds ``limit`` bytes.

    NOTE: zstd goes in by slices, because ``ZstdDecompressor.decompress(max_output_size=...)`` ignores its limit when
    the frame declares a size, and ``stream_reader`` takes a body that was cut for a whole one.

    Raises:
        TooLargeError: the decompressed body exceeds ``limit``.
        ValueError: the body is damaged, or the encoding is neither ``zstd`` nor ``identity``.
    """
    encoding = encoding.strip().lower() or "identity"
    if encoding == "identity":
        _check_size(body, limit)
        return body
    if encoding != "zstd":
        raise ValueError(f"content encoding '{encoding}' is not supported")
    out = bytearray()
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    try:
        for start in range(0, len(body), _SLICE):
            piece = body[start : start + _SLICE]
            while piece:
                frame = decompressor.decompressobj() if frame.eof else frame
                out += frame.decompress(piece)
                _check_size(out, limit)
                piece = frame.unused_data
    except zstandard.ZstdError as error:
        raise ValueError(f"damaged zstd body: {error}") from error
    if not frame.eof:
        raise ValueError("damaged zstd body: it ends too early")
    return bytes(out)


def _check_size(out: bytes | bytearray, limit: int) -> None:
    if len(out) > limit:
        raise TooLargeError(f"the body exceeds the limit of {limit} bytes")
