"""Huge pages: where memory is in use already, without changing what is in it or how much there is."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_sdk.device import huge_pages

MIB = 2**20
AMPLE_S = 60.0
"""Enough for whatever else this process has in use."""


@contextmanager
def private_memory(size: int) -> Iterator[mmap.mmap]:
    """A mapping of its own, of which nothing is in use yet, filled with small pages whatever the kernel prefers."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory.madvise(mmap.MADV_DONTDUMP)  # unlike its neighbours, so that they stay mappings of their own
        yield memory


def collapsed(memory: mmap.mmap, budget_s: float = 2.0) -> int:
    """What ``collapse`` says once this mapping may be part of it."""
    memory.madvise(mmap.MADV_HUGEPAGE)
    return huge_pages.collapse(budget_s)


def own_mib(memory: mmap.mmap, name: str) -> int:
    """A figure of the mapping that holds this memory, MiB."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    found: dict[str, int] = {}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            start, _, end = first.partition("-")
            inside = int(start, 16) <= address < int(end, 16)
        elif inside and rest[-1] == "kB":
            found[first] = int(rest[0])
    return found[f"{name}:"] // 1024


def kernel() -> tuple[int, ...]:
    """Its version, as far as the second number."""
    return tuple(int(part) for part in os.uname().release.split(".")[:2])


def told_never() -> bool:
    """Whether there are no huge pages here, or an administrator wants none."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return not setting.exists() or "[never]" in setting.read_text()


def test_memory_in_use_is_collapsed_and_keeps_its_content() -> None:
    """A mapping full of data is in huge pages afterwards, byte for byte; a second time finds it done."""
    content = bytes(range(256)) * (32 * MIB // 256)
    with private_memory(len(content)) as memory:
        memory.write(content)
        done = collapsed(memory, AMPLE_S)
        if done == 0 and (kernel() < (6, 1) or told_never()):
            pytest.skip("this kernel makes no huge pages on demand (Linux 6.1)")
        assert done >= 28 * MIB
        for _ in range(2):
            assert own_mib(memory, "AnonHugePages") >= 28
            assert memory[:] == content
            assert huge_pages.collapse(AMPLE_S) >= 28 * MIB


@pytest.mark.parametrize("read", [True, False])
def test_memory_that_is_hardly_used_stays_small(read: bool) -> None:
    """Of a mapping every second page was written, and the others perhaps read: to fill them would double it."""
    with private_memory(64 * MIB) as memory:
        for place in range(0, len(memory), 2 * mmap.PAGESIZE):
            memory[place] = 1
            if read:
                assert memory[place + mmap.PAGESIZE] == 0
        before = own_mib(memory, "Rss")
        collapsed(memory)
        # NOTE: the kernel's own daemon fills some of what it may, a sixth of this at a time.
        assert own_mib(memory, "Rss") < 1.5 * before


def test_memory_shared_with_a_forked_process_stays_shared() -> None:
    """Its huge pages would be copies of what both processes read."""
    with private_memory(32 * MIB) as memory:
        memory.write(bytes(range(256)) * (32 * MIB // 256))
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        try:
            collapsed(memory)
            assert own_mib(memory, "AnonHugePages") == 0
        finally:
            os.write(writer, b".")
            os.waitpid(child, 0)
            os.close(reader)
            os.close(writer)


def test_no_more_is_begun_when_time_is_over() -> None:
    """A large process is not kept waiting."""
    with private_memory(32 * MIB) as memory:
        memory.write(bytes(range(256)) * (32 * MIB // 256))
        assert collapsed(memory, -1) == 0
        assert own_mib(memory, "AnonHugePages") == 0


def test_address_space_that_is_kept_for_later_takes_no_time() -> None:
    """Of a terabyte of which nothing is in use no more is looked at than the time allows."""
    no_reserve = 0x4000  # the name came with Python 3.12
    try:
        kept = mmap.mmap(-1, 2**40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    except OSError:
        pytest.skip("this machine gives no terabyte of address space")
    with kept:
        began = time.monotonic()
        huge_pages.collapse(0.2)
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("text", [None, "always madvise [never]\n", "always [madvise] never\n"])
def test_without_huge_pages_nothing_happens(text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without them, one told not to use them, and one that does not say how large they are."""
    if text is not None:
        (tmp_path / "enabled").write_text(text)
    monkeypatch.setattr(huge_pages, "_SETTINGS", tmp_path)
    assert huge_pages.collapse() == 0
