"""Files that may be anything by now: read within limits, replaced whole, locked for a while; and a directory for them.

What is kept on disk saves time at the next start and nothing else: whatever is wrong with it costs persistence, never
the run.
"""

import fcntl
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from agent_sdk.forking import TemporaryFolder
from agent_sdk.paths import CACHE_VARIABLE

MAX_BYTES: Final = 256 * 2**20
"""Largest file that is read whole."""
PART: Final = (".hope-", ".part")
"""How the names of files begin and end that are being written; a folder may hold other people's files too."""
ROOM_BYTES: Final = 4 * 2**20
"""What must fit into a directory for it to be worth using."""
STALE_S: Final = 60.0
"""A file that has been in the making for so long belongs to a process that was killed."""


def read_whole(path: Path) -> bytes:
    """Return a regular file's bytes. Raises OSError for anything else: a pipe would be waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
            raise OSError(f"'{path}' is no file of at most {MAX_BYTES} bytes")
        return file.read(MAX_BYTES)


def replace_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file by one that is whole. Raises OSError when that cannot be done.

    Who may use the one before may use it, of those whom this mode names; where there is none it has this mode, less the
    umask. What a killed process left half written in the same folder goes.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    prefix, ending = PART
    for left in path.parent.glob(f"{prefix}*{ending}"):
        with suppress(OSError):  # another process has just removed it, or it is somebody else's
            if time.time() - left.lstat().st_mtime > STALE_S:
                left.unlink()
    temporary = path.parent / f"{prefix}{secrets.token_hex(8)}{ending}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            with suppress(FileNotFoundError):
                before = path.lstat().st_mode
                if stat.S_ISREG(before):
                    os.fchmod(handle, before & mode)
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # it stays half written, until the next write removes it; why it failed is raised
            os.unlink(temporary)
        raise


def usable(directory: Path) -> str | None:
    """Say why files cannot be kept in a directory, or None.

    One that belongs to somebody else is not trusted: who owns it decides what is found in it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if directory.stat().st_uid != os.geteuid():
            return f"'{directory}' belongs to another user"
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    except OSError as error:
        return f"'{directory}' cannot be used ({error.strerror or error})"
    return None


class Kept:
    """Where an agent keeps files: the directory it was given, or temporary ones where that cannot be used.

    Attributes:
        note: one sentence where something does not outlive this process; empty otherwise.
    """

    def __init__(self, directory: Path) -> None:
        self._temporary: list[TemporaryFolder] = []
        self.note = ""
        self.path = self._usable(directory)

    def folder(self, name: str) -> Path:
        return self._usable(self.path / name)

    def _usable(self, directory: Path) -> Path:
        trouble = usable(directory)
        if trouble is None:
            return directory
        self._temporary.append(TemporaryFolder())
        cure = f"set {CACHE_VARIABLE} to a directory of your own that can be written"
        self.note = f"nothing is kept for the next start: {trouble}; {cure}"
        return self._temporary[-1].path

    def close(self) -> None:
        for temporary in self._temporary:
            temporary.remove()


@contextmanager
def one_at_a_time(path: Path, longest_s: float) -> Iterator[None]:
    """Hold a lock among processes, on a folder or on a file that is made, waiting for ``longest_s`` seconds at most.

    It ends with the process that holds it. Where nothing can be locked nobody waits.
    """
    handle = -1
    held = False
    try:
        with suppress(OSError):  # then nobody waits, see above
            path.parent.mkdir(parents=True, exist_ok=True)
            kind = os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
            handle = os.open(path, kind | os.O_CLOEXEC, 0o600)
            until = time.monotonic() + longest_s
            while not held and time.monotonic() < until:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    held = True
                except BlockingIOError:
                    time.sleep(0.1)
        yield
    finally:
        if handle >= 0:
            os.close(handle)
