"""What is done for somebody ends when nobody waits for it any more: loops look, children are killed, loads are stopped.

Work runs under a ``Cancel`` (``with cancel.current():``). What takes long asks ``check()`` between its steps, and names
what ends a step that cannot ask: ``with cancelling(process.kill): process.wait()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from agent_sdk.errors import NotWantedError
from agent_sdk.forking import HERE


class Cancel:
    """Whether work is still wanted; may be asked and cancelled from any thread.

    Args:
        within: what this is part of, and is cancelled with.
    """

    # NOTE: without a lock, which each run would make. Whoever begins a step makes it known, then looks; whoever cancels
    # says so, then stops what is known: one of the two sees the other.

    def __init__(self, within: Cancel | None = None) -> None:
        self._within = within
        self._steps: set[_Step] = set()
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        return self._cancelled or (self._within is not None and self._within.cancelled)

    def cancel(self) -> None:
        """Nobody waits any more. Idempotent. In a forked child, steps of the parent's go on."""
        self._cancelled = True
        while True:
            try:
                step = self._steps.pop()
            except KeyError:  # all are stopped, or have ended
                return
            if step.process == HERE.process:
                step.stop()

    def check(self) -> None:
        """Raise NotWantedError once this is cancelled."""
        if self.cancelled:
            raise NotWantedError("nobody waits any more for what was being done: the session is closed")

    def calling(self, stop: Callable[[], object]) -> _Step:
        """Within this block have ``stop`` called when this is cancelled, from whatever thread does that.

        It must not block, and may be called twice.
        """
        return _Step(self, stop)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Meanwhile ``check`` and ``cancelling`` of this module, called by this thread, are those of this."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)


class _Step:
    """What a cancel stops, as long as the block lasts."""

    def __init__(self, cancel: Cancel, stop: Callable[[], object]) -> None:
        self._cancel, self.stop = cancel, stop
        self.process = HERE.process

    def __enter__(self) -> None:
        try:
            within: Cancel | None = self._cancel
            while within is not None:
                within._steps.add(self)
                within = within._within
            if self._cancel.cancelled:
                self.stop()
        except BaseException:
            self.__exit__()  # nobody else calls it
            raise

    def __exit__(self, *_: object) -> None:
        within: Cancel | None = self._cancel
        while within is not None:
            within._steps.discard(self)
            within = within._within


NEVER: Final = Cancel()
"""What somebody waits for whatever comes."""
_current: ContextVar[Cancel] = ContextVar("cancel", default=NEVER)


def check() -> None:
    """Raise NotWantedError where nobody waits any more for what this thread does."""
    _current.get().check()


def cancelling(stop: Callable[[], object]) -> _Step:
    """Within this block have ``stop`` called when nobody waits any more for what this thread does."""
    return _current.get().calling(stop)
