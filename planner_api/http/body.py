"""Reading request bodies that may be hostile: bounded as sent, bounded again while they inflate."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass
from typing import Literal, TypeVar

import zstandard
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from planner_api.errors import ApiError, invalid

CHUNK = 64 * 1024
MAX_WINDOW = 8 * 2**20
"""Largest zstd window accepted: a frame may ask its reader for gigabytes otherwise (RFC 8878 recommends 8 MiB)."""

Encoding = Literal["identity", "gzip", "zstd"]
Message = TypeVar("Message", bound=BaseModel)


@dataclass(frozen=True)
class Body:
    """A request body as it was sent."""

    raw: bytes
    encoding: Encoding


async def read_body(request: Request, *, limit: int, timeout_s: float) -> Body:
    """Read the whole body.

    Raises:
        ApiError: 413 above ``limit`` bytes, 415 for an unknown content type or encoding, 408 after ``timeout_s``.
    """
    encoding = _encoding(request.headers.get("content-encoding", ""))
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "unsupported-media-type", "send the body as application/json")
    if (declared := request.headers.get("content-length", "")).isdigit() and int(declared) > limit:
        raise _too_large("", limit)
    raw = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > limit:
                    raise _too_large("", limit)
    except TimeoutError:
        raise ApiError(408, "body-timeout", f"the body did not arrive within {timeout_s:g} s") from None
    except ClientDisconnect:
        raise ApiError(400, "body-incomplete", "the connection closed before the body was complete") from None
    return Body(bytes(raw), encoding)


async def read_message(request: Request, kind: type[Message], *, empty: bytes = b"") -> Message:
    """Read, inflate and validate the body as one message of the contract; ``empty`` stands for a body without a byte.

    Raises:
        ApiError: as ``read_body``, ``inflate`` and ``parse`` do.
    """
    message, _ = await read_both(request, kind, empty=empty)
    return message


async def read_both(request: Request, kind: type[Message], *, empty: bytes = b"") -> tuple[Message, Body]:
    """Return the body as a message, as ``read_message`` does, and as it was sent."""
    settings = request.app.state.planner.settings
    body = await read_body(request, limit=settings.max_body_bytes, timeout_s=settings.body_timeout_s)
    return parse(inflate(body, limit=settings.max_inflated_bytes) or empty, kind), body


def parse(text: bytes | bytearray, kind: type[Message]) -> Message:
    """Validate JSON bytes. Raises ApiError: 400 when they are not JSON, 422 when they are not a ``kind``."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise invalid(error) from None


def inflate(body: Body, *, limit: int) -> bytes | bytearray:
    """Return the decompressed body; never holds more than ``limit`` bytes and one chunk of it.

    NOTE: one-shot decompression would trust the size that a zstd frame declares, so both formats are streamed.

    Raises:
        ApiError: 413 beyond ``limit``, 400 for damaged data.
    """
    match body.encoding:
        case "identity":
            if len(body.raw) > limit:
                raise _too_large(" after decompression", limit)
            return body.raw
        case "gzip":
            return _gunzip(body.raw, limit)
        case "zstd":
            return _unzstd(body.raw, limit)


def _gunzip(raw: bytes, limit: int) -> bytearray:
    out = bytearray()
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        rest = raw
        while not inflater.eof:
            chunk = inflater.decompress(rest, CHUNK)
            out += chunk
            rest = inflater.unconsumed_tail
            if len(out) > limit:
                raise _too_large(" after decompression", limit)
            if not chunk and not rest:
                break
    except zlib.error:
        raise ApiError(400, "damaged-body", "the body is not valid gzip") from None
    if not inflater.eof or inflater.unused_data:
        raise ApiError(400, "damaged-body", "the gzip body ends too early or too late")
    return out


def _unzstd(raw: bytes, limit: int) -> bytearray:
    out = bytearray()
    try:
        with zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).stream_reader(
            raw, read_across_frames=True
        ) as reader:
            while chunk := reader.read(CHUNK):
                out += chunk
                if len(out) > limit:
                    raise _too_large(" after decompression", limit)
    except (zstandard.ZstdError, MemoryError):
        raise ApiError(400, "damaged-body", "the body is not valid zstd with a window of at most 8 MiB") from None
    return out


def _encoding(text: str) -> Encoding:
    match text.strip().lower():
        case "" | "identity":
            return "identity"
        case "gzip" | "x-gzip":
            return "gzip"
        case "zstd":
            return "zstd"
    raise ApiError(
        415,
        "unsupported-encoding",
        "the body's content encoding is not supported; use gzip or zstd",
        headers={"Accept-Encoding": "zstd, gzip"},
    )


def _too_large(when: str, limit: int) -> ApiError:
    return ApiError(413, "body-too-large", f"the body exceeds the limit of {limit} bytes{when}")
