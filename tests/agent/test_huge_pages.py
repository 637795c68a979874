"""Huge pages: where memory is in use already, without changing what is in it or how much there is."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_sdk import huge_pages

MIB = 2**20


@contextmanager
def private_memory(size: int) -> Iterator[mmap.mmap]:
    """A mapping of its own, of which nothing is in use yet."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        yield memory


def rolled_up(name: str) -> int:
    """A figure of this process's memory, MiB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) // 1024


def test_memory_in_use_is_collapsed_and_keeps_its_content() -> None:
    """A mapping full of data is in huge pages afterwards, byte for byte; a second time finds it done."""
    content = bytes(range(256)) * (32 * MIB // 256)
    with private_memory(len(content)) as memory:
        memory.write(content)
        before = rolled_up("AnonHugePages")
        done = huge_pages.collapse()
        if done == 0:
            pytest.skip("this kernel makes no huge pages on demand (Linux 6.1)")
        assert done >= 28 * MIB
        assert rolled_up("AnonHugePages") >= before + 28
        assert memory[:] == content
        assert huge_pages.collapse() >= 28 * MIB
        assert memory[:] == content


def test_memory_that_is_hardly_used_stays_small() -> None:
    """Every second page of a mapping is in use: filling the gaps would double it, so they stay gaps."""
    with private_memory(64 * MIB) as memory:
        for place in range(0, len(memory), 2 * mmap.PAGESIZE):
            memory[place] = 1
        before = rolled_up("Rss")
        huge_pages.collapse()
        assert rolled_up("Rss") < before + 24


@pytest.mark.parametrize("text", [None, "always madvise [never]\n", "always [madvise] never\n"])
def test_without_huge_pages_nothing_happens(text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without them, one told not to use them, and one that does not say how large they are."""
    if text is not None:
        (tmp_path / "enabled").write_text(text)
    monkeypatch.setattr(huge_pages, "_SETTINGS", tmp_path)
    assert huge_pages.collapse() == 0
