"""A file as it was when it was opened.

It is kept open: renamed, replaced or deleted it is still read as it was. One that is written in place is not there any
more: every read compares the file's size and times, and its digest where these leave a doubt.
"""

import hashlib
import os
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from agent_sdk.closing import Closes
from agent_sdk.errors import ModelError

CHUNK_BYTES: Final = 8 * 2**20
"""How much of a file is looked at at once."""
TICK_S: Final = 0.02
"""Longest time for which a file system may give two writes one time."""


class _Stamp(NamedTuple):
    """What the file system says of a file's content; links are counted because removing one changes ``ctime_ns``."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    links: int
    ctime_ns: int


class HeldFile(Closes):
    """A regular file as it is now. Raises ModelError where there is none, OSError where it cannot be opened.

    Args:
        keep: keep it open; otherwise it has to be found at its path again.
    """

    def __init__(self, path: Path, *, keep: bool = True) -> None:
        self.path = path
        self._digest = ""
        self._handle: int | None = self._opened()
        if not stat.S_ISREG(os.fstat(self._handle).st_mode):
            os.close(self._handle)
            raise ModelError(f"'{path}' is a directory or a device, not a file")
        self._stamp = _settled(self._handle)
        self.real = Path(os.path.realpath(path))
        self._end = weakref.finalize(self, os.close, self._handle)
        if not keep:
            self.close()

    def _opened(self) -> int:
        return os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        self._handle = None
        self._end()

    @property
    def size(self) -> int:
        return self._stamp.size

    @property
    def at(self) -> str:
        """A path to the content that is kept open, for this process and its children; its own where none is."""
        return str(self.path) if self._handle is None else f"/proc/{os.getpid()}/fd/{self._handle}"

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Its bytes from an offset on. Raises ModelError where it has changed since."""
        end = self.size if length is None else offset + length
        with self._unchanged() as handle:
            return b"".join(_pieces(handle, offset, end, end))

    def check(self, *, by_path: bool = False) -> None:
        """Raise ModelError where its content is not what it was, or (``by_path``) its path leads elsewhere by now."""
        with self._unchanged():
            pass
        if by_path:
            now = os.stat(self.path)
            if (now.st_dev, now.st_ino) != (self._stamp.device, self._stamp.inode):
                raise self._changed()

    def digest(self) -> str:
        """SHA-256 of it; once that is known, a file that was only moved is not taken for a changed one."""
        if not self._digest:
            with self._unchanged() as handle:
                found = _digest(handle, self.size)
            self._digest = found  # not before it is known to be that of the same content
        return self._digest

    @contextmanager
    def _unchanged(self) -> Iterator[int]:
        """A handle on the content, which is compared before and after; it stays when this is closed meanwhile."""
        kept = self._handle
        try:
            handle = self._opened() if kept is None else os.dup(kept)
        except OSError as error:
            raise self._changed() from error
        try:
            self._compare(handle)
            yield handle
            self._compare(handle)
        finally:
            os.close(handle)

    def _compare(self, handle: int) -> None:
        now = _stamp(handle)
        if now[:4] != self._stamp[:4]:
            raise self._changed()
        # NOTE: moved, or written by somebody who then put its time back: only its content tells.
        doubtful = now.ctime_ns != self._stamp.ctime_ns and now.links == self._stamp.links
        if doubtful and (not self._digest or _digest(handle, self.size) != self._digest):
            raise self._changed()
        self._stamp = now

    def _changed(self) -> ModelError:
        return ModelError(f"the file '{self.path}' has changed since it was loaded; load it anew to use what it is now")


def _stamp(handle: int) -> _Stamp:
    now = os.fstat(handle)
    return _Stamp(now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_nlink, now.st_ctime_ns)


def _settled(handle: int) -> _Stamp:
    """A stamp that no later write can have: of a file written just now, or later, the next tick is waited for."""
    age_s = time.time() - _stamp(handle).ctime_ns / 1e9
    if age_s < TICK_S:
        time.sleep(TICK_S)
    return _stamp(handle)


def _pieces(handle: int, offset: int, end: int, most: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The bytes between two offsets; at once the kernel gives less than 2 GiB, and less where it was interrupted."""
    while offset < end and (piece := os.pread(handle, min(most, end - offset), offset)):
        yield piece
        offset += len(piece)


def _digest(handle: int, size: int) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(handle, 0, size):
        digest.update(piece)
    return digest.hexdigest()
