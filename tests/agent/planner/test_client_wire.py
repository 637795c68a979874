"""Bodies on the wire: whole ones come through in every form, cut ones are told apart from short ones."""

from __future__ import annotations

import pytest
import zstandard

from agent_sdk.planner import wire

TEXT = b"{" + b"a" * 5000 + bytes(range(256)) * 50
ZSTD = zstandard.ZstdCompressor().compress(TEXT)


def test_a_body_in_several_pieces_is_read_whole() -> None:
    """Frames that follow each other are one body, up to the limit and no further."""
    assert wire.decompress(ZSTD, "zstd", len(TEXT)) == TEXT
    assert wire.decompress(ZSTD * 3, "zstd", 3 * len(TEXT)) == TEXT * 3
    with pytest.raises(wire.TooLargeError):
        wire.decompress(ZSTD * 3, "zstd", 3 * len(TEXT) - 1)


@pytest.mark.parametrize("cut", [1, 100])
@pytest.mark.parametrize("body", [ZSTD, ZSTD * 2])
def test_a_cut_body_is_damaged(body: bytes, cut: int) -> None:
    """A body that ends too early is never taken for a shorter one."""
    with pytest.raises(ValueError, match="damaged zstd body"):
        wire.decompress(body[:-cut], "zstd", 1 << 20)


def test_rubbish_after_a_body_is_damage() -> None:
    """What follows the end and is no body of its own is not overlooked."""
    with pytest.raises(ValueError, match="damaged zstd body"):
        wire.decompress(ZSTD + b"rubbish", "zstd", 1 << 20)
