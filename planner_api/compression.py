"""Compression of what the planner stores: one place for formats and levels."""

from __future__ import annotations

import gzip

import zstandard

ZSTD_LEVEL = 3
GZIP_LEVEL = 6


def zstd(data: bytes | bytearray) -> bytes:
    """Compress with zstd; the frame declares its size."""
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)


def gzipped(data: bytes | bytearray) -> bytes:
    """Compress with gzip; the same bytes always give the same result (no clock in the header)."""
    return gzip.compress(data, compresslevel=GZIP_LEVEL, mtime=0)


def unzstd(data: bytes) -> bytes:
    """Return what ``zstd`` compressed. Only for our own rows: uploads go through ``http.body.inflate``."""
    return zstandard.ZstdDecompressor().decompress(data)
