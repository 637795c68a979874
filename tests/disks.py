"""A disk so small that a test can fill it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

DETACH = 2


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[None]:
    """A file system of its own in this folder; where none may be mounted, the test is skipped."""
    at.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", os.fsencode(at), b"tmpfs", 0, f"size={size}".encode()):
        pytest.skip("this process may not mount file systems")
    try:
        yield
    finally:
        libc.umount2(os.fsencode(at), DETACH)


def fill(path: Path) -> None:
    """Write a file until its disk has no room."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
