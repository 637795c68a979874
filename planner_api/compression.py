"""Compression of what the planner stores: one place for format and level."""

import zstandard

ZSTD_LEVEL = 3


def zstd(data: bytes | bytearray) -> bytes:
    """Compress with zstd; the frame declares its size."""
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)


def unzstd(data: bytes) -> bytes:
    """Return what ``zstd`` compressed. Only for our own rows: uploads go through ``web.body.inflate``."""
    return zstandard.ZstdDecompressor().decompress(data)
