"""A system that has no thread left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def no_thread_left(*names: str) -> Iterator[None]:
    """The system refuses threads of these names, as it does where a process may have no more."""
    own = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(names):
            raise RuntimeError("can't start new thread")
        own(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        yield
