"""Few large pages instead of many small ones, for what a run reads: weights, scratch memory, the engine itself.

A network streams through far more memory than a core's TLB covers in pages of 4 KiB; in a virtual machine every miss
walks two page tables. Linux makes one page of 2 MiB out of 512 small ones in place, whatever is kept in them, when it
is asked to (``MADV_COLLAPSE``, Linux 6.1). What it saves is in docs/engine.md.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

MADV_COLLAPSE: Final = 25
RESIDENT: Final = 0.75
"""The part of a large page that must be in use already: what is missing will be, so memory grows by a third at most."""
LARGEST_BYTES: Final = 1 << 36
"""Longer mappings are address space that somebody keeps for later."""

_SETTINGS: Final = Path("/sys/kernel/mm/transparent_hugepage")


def collapse() -> int:
    """Put the private memory of this process into huge pages wherever most of one is in use.

    Contents, addresses and other threads' work are not touched, only slowed down meanwhile (about a second for each
    gigabyte). Returns the bytes that are in huge pages now; 0 where the kernel cannot, or must not.
    """
    try:
        if sys.platform != "linux" or "[never]" in (_SETTINGS / "enabled").read_text():
            return 0
        huge = int((_SETTINGS / "hpage_pmd_size").read_text())
        libc = ctypes.CDLL(None, use_errno=True)
        mappings = list(_mappings())
    except (OSError, ValueError) as error:
        log.debug("no huge pages: %s", error)
        return 0
    pages = huge // mmap.PAGESIZE
    done = 0
    for start, end in mappings:
        first, last = -(-start // huge) * huge, end // huge * huge
        if not 0 < last - first <= LARGEST_BYTES:
            continue
        present = (ctypes.c_ubyte * ((last - first) // mmap.PAGESIZE))()
        if libc.mincore(ctypes.c_void_p(first), ctypes.c_size_t(last - first), present):
            continue
        resident = bytes(present)
        for place, address in enumerate(range(first, last, huge)):
            used = sum(resident[place * pages : (place + 1) * pages])
            if used < RESIDENT * pages:
                continue
            if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(huge), MADV_COLLAPSE) == 0:
                done += huge
    return done


def _mappings() -> Iterator[tuple[int, int]]:
    """Addresses of what is private, writable and no file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, inode, *name = line.split(maxsplit=5)
        if access == "rw-p" and inode == "0" and not (name and name[0].startswith("[stack")):
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)
