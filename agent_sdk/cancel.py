"""What is done for somebody ends when nobody waits for it any more: loops look, children are killed, loads are stopped.

Work runs under a ``Cancel`` (``with cancel.current():``). What takes long asks ``check()`` between its steps, and names
what ends a step that cannot ask: ``with cancelling(process.kill): process.wait()``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from agent_sdk.errors import NotWantedError
from agent_sdk.forking import Forks, watch_forks


class Cancel(Forks):
    """Whether work is still wanted; may be asked and cancelled from any thread.

    Args:
        within: what this is part of, and is cancelled with.
    """

    def __init__(self, within: Cancel | None = None) -> None:
        self._lock = threading.Lock()
        self._stops: list[Callable[[], object]] = []
        self._parts: weakref.WeakSet[Cancel] = weakref.WeakSet()
        self.cancelled = False
        if within is not None:
            with within._lock:
                within._parts.add(self)
                self.cancelled = within.cancelled
        watch_forks(self)

    def in_child(self) -> None:
        """What would be stopped is the parent's."""
        super().in_child()
        self._stops = []

    def cancel(self) -> None:
        """Nobody waits any more. Idempotent."""
        with self._lock:
            self.cancelled = True
            stops, self._stops = self._stops, []
            parts = list(self._parts)
        for stop in stops:
            stop()
        for part in parts:
            part.cancel()

    def check(self) -> None:
        """Raise NotWantedError once this is cancelled."""
        if self.cancelled:
            raise NotWantedError("nobody waits any more for what was being done: the session is closed")

    @contextmanager
    def calling(self, stop: Callable[[], object]) -> Iterator[None]:
        """Meanwhile have ``stop`` called when this is cancelled, from whatever thread does that; it must not block."""
        with self._lock:
            late = self.cancelled
            if not late:
                self._stops.append(stop)
        if late:
            stop()
        try:
            yield
        finally:
            with self._lock:
                if stop in self._stops:
                    self._stops.remove(stop)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Meanwhile ``check`` and ``cancelling`` of this module, called by this thread, are those of this."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)


NEVER: Final = Cancel()
"""What somebody waits for whatever comes."""
_current: ContextVar[Cancel] = ContextVar("cancel", default=NEVER)


def current() -> Cancel:
    """What this thread works under: to be handed to threads that it starts."""
    return _current.get()


def check() -> None:
    """Raise NotWantedError where nobody waits any more for what this thread does."""
    _current.get().check()


@contextmanager
def cancelling(stop: Callable[[], object]) -> Iterator[None]:
    """Meanwhile have ``stop`` called when nobody waits any more for what this thread does."""
    with _current.get().calling(stop):
        yield
