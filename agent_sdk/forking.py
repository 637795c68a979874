"""What a forked child finds of what its parent opened: no threads, and locks that nobody is left to release.

Nothing of it is freed or waited for there, and nothing on disk is removed: that is the parent's.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Final

FORKED: Final = (
    "this process was forked from the one that opened the agent, and has none of its threads; open a new agent in it"
)


class Forks:
    """Something that may be open when its process forks; made known by ``watch_forks``."""

    def in_child(self) -> None:
        """Called in a forked child before anything else runs there: locks are as if nobody had ever held them."""
        for name, held in vars(self).items():
            if type(held) in _LOCKS:
                setattr(self, name, _LOCKS[type(held)]())


_LOCKS: Final = {type(make()): make for make in (threading.Lock, threading.RLock)}


def watch_forks(opened: Forks) -> None:
    """Have ``in_child`` called in every forked child, as long as ``opened`` lives."""
    _OPEN.add(opened)


def keep(value: object) -> None:
    """Never free a value: runtimes would wait for threads that stayed behind."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


class TemporaryFolder:
    """A folder that goes with this object, or with the process that made it, but with no forked child of that.

    Attributes:
        path: where it is.
        remove: removes it; called again it does nothing.
    """

    def __init__(self, prefix: str = "hope-", directory: Path | None = None) -> None:
        self._hold(Path(tempfile.mkdtemp(prefix=prefix, dir=directory)), os.getpid())

    @classmethod
    def of_another(cls, path: Path) -> TemporaryFolder:
        """A folder that another process has made, and removes."""
        folder = cls.__new__(cls)
        folder._hold(path, 0)
        return folder

    def _hold(self, path: Path, owner: int) -> None:
        self.path = path
        self.remove = weakref.finalize(self, _remove, path, owner)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def _remove(path: Path, process: int) -> None:
    if process == os.getpid():
        shutil.rmtree(path, ignore_errors=True)


_OPEN: weakref.WeakSet[Forks] = weakref.WeakSet()


class Here(Forks):
    """What is known of the process itself, so that no run asks the system.

    Attributes:
        process: its id.
        main: the identifier of its main thread.
    """

    def __init__(self) -> None:
        self.in_child()
        watch_forks(self)

    def in_child(self) -> None:
        self.process, self.main = os.getpid(), threading.main_thread().ident


HERE: Final = Here()


def _tell_in_child() -> None:
    for opened in list(_OPEN):
        opened.in_child()


os.register_at_fork(after_in_child=_tell_in_child)
