"""Bodies on the wire: whole ones come through in every form, cut ones are told apart from short ones."""

from __future__ import annotations

import gzip

import pytest
import zstandard

from agent_sdk.planner import wire

TEXT = b"{" + b"a" * 5000 + bytes(range(256)) * 50
ZSTD = zstandard.ZstdCompressor().compress(TEXT)
GZIP = gzip.compress(TEXT)


@pytest.mark.parametrize(("encoding", "body"), [("zstd", ZSTD), ("gzip", GZIP), ("x-gzip", GZIP)])
def test_a_body_in_several_pieces_is_read_whole(encoding: str, body: bytes) -> None:
    """Frames or members that follow each other are one body, up to the limit and no further."""
    assert wire.decompress(body, encoding, len(TEXT)) == TEXT
    assert wire.decompress(body * 3, encoding, 3 * len(TEXT)) == TEXT * 3
    with pytest.raises(wire.TooLargeError):
        wire.decompress(body * 3, encoding, 3 * len(TEXT) - 1)


@pytest.mark.parametrize("cut", [1, 100])
@pytest.mark.parametrize(("encoding", "body"), [("zstd", ZSTD), ("gzip", GZIP), ("zstd", ZSTD * 2), ("gzip", GZIP * 2)])
def test_a_cut_body_is_damaged(encoding: str, body: bytes, cut: int) -> None:
    """A body that ends too early is never taken for a shorter one."""
    with pytest.raises(ValueError, match=f"damaged {encoding} body"):
        wire.decompress(body[:-cut], encoding, 1 << 20)


@pytest.mark.parametrize(("encoding", "body"), [("zstd", ZSTD), ("gzip", GZIP)])
def test_rubbish_after_a_body_is_damage(encoding: str, body: bytes) -> None:
    """What follows the end and is no body of its own is not overlooked."""
    with pytest.raises(ValueError, match=f"damaged {encoding} body"):
        wire.decompress(body + b"rubbish", encoding, 1 << 20)
