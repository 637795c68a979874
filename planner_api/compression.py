"""Compression of what the planner stores: one place for format and level."""

from typing import TypeVar

import zstandard
from pydantic import BaseModel

ZSTD_LEVEL = 3
Message = TypeVar("Message", bound=BaseModel)


def zstd(data: bytes | bytearray) -> bytes:
    """Compress with zstd; the frame declares its size."""
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)


def unzstd(data: bytes) -> bytes:
    """Return what ``zstd`` compressed. Only for our own rows: uploads go through ``web.inflate.inflate``."""
    return zstandard.ZstdDecompressor().decompress(data)


def loaded(kind: type[Message], body_zstd: bytes) -> Message:
    """Return the message whose JSON is stored compressed."""
    return kind.model_validate_json(unzstd(body_zstd))
