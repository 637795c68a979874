"""Few large pages instead of many small ones, for what a run reads: packed weights, scratch memory, the engine itself.

A network streams through far more memory than a core's TLB covers in pages of 4 KiB; in a virtual machine every miss
walks two page tables. Linux makes one page of 2 MiB out of 512 small ones in place, whatever is kept in them, when it
is asked to (``MADV_COLLAPSE``, Linux 6.1). See docs/engine.md.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

log = logging.getLogger(__name__)

MADV_COLLAPSE: Final = 25
IN_USE: Final = 0.75
"""The part of a large page that must be this process's own already, so that memory grows by a third at most."""
STRETCH_BYTES: Final = 64 * 2**20
"""Memory that the kernel is asked for at a time; it sees to all CPUs' lists of pages at every call."""
OWN: Final = np.uint64(1 << 63 | 1 << 56)
"""Bits of a page in /proc/self/pagemap: in memory, and not shared with a forked process or the page of zeros."""

_SETTINGS: Final = Path("/sys/kernel/mm/transparent_hugepage")


def collapse(budget_s: float = 2.0) -> int:
    """Put private memory of this process into huge pages wherever most of one is in use.

    Contents and addresses stay; other threads are slowed down meanwhile.

    Args:
        budget_s: seconds after which no more is begun; a gigabyte takes about one.

    Returns:
        Bytes that are in huge pages now, at least; 0 where the kernel cannot make them, or has been told not to.
    """
    until = time.monotonic() + budget_s
    done = 0
    try:
        if sys.platform != "linux" or "[never]" in (_SETTINGS / "enabled").read_text():
            return 0
        huge = int((_SETTINGS / "hpage_pmd_size").read_text())
        madvise = ctypes.CDLL(None).madvise
        for start, end in _in_use(huge, until):
            if madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE) == 0:
                done += end - start
    except (OSError, ValueError, AttributeError) as error:
        log.debug("no huge pages: %s", error)
    return done


def _in_use(huge: int, until: float) -> Iterator[tuple[int, int]]:
    """Stretches of whole huge pages that are mostly in use, by address, as many as are found in time."""
    pages = huge // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        for first, last in _mappings(huge):
            for start in range(first, last, STRETCH_BYTES):
                if time.monotonic() > until:
                    return
                end = min(start + STRETCH_BYTES, last)
                pagemap.seek(start // mmap.PAGESIZE * 8)
                entries = np.frombuffer(pagemap.read((end - start) // mmap.PAGESIZE * 8), np.uint64)
                own = (entries & OWN == OWN).reshape(-1, pages).mean(axis=1) >= IN_USE
                edges = np.flatnonzero(np.diff(own, prepend=False, append=False))
                for begins, ends in edges.reshape(-1, 2).tolist():
                    yield start + begins * huge, start + ends * huge


def _mappings(huge: int) -> Iterator[tuple[int, int]]:
    """What of each mapping that is private, writable and no file lies on huge pages."""
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        addresses, access, _, _, inode, *_ = line.split(maxsplit=5)
        if access == "rw-p" and inode == "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield -(-start // huge) * huge, end // huge * huge
