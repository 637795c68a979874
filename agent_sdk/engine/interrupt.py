"""Ctrl-C during a run: noted at once, raised only where nothing can be left half done.

Python raises KeyboardInterrupt between any two bytecodes of the main thread. A run that is interrupted while it hands
out work would leave other threads waiting for ever, so for its duration SIGINT is noted instead (as asyncio's
runner does), and raised where the caller merely waits, or at the end.
"""

from __future__ import annotations

# NOTE: signal.signal wraps each handler in an enum, which costs 13 µs a run; this is the function that it wraps.
import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final

from agent_sdk.forking import HERE

_SIGINT: Final = int(signal.SIGINT)


class DeferredInterrupts:
    """Within ``with``, SIGINT is noted and handled at the end; does nothing outside the main thread.

    Attributes:
        raising: whether SIGINT is handled at once. Set it to False after a wait that began with ``listen``.
        noted: what will be raised at the end.
    """

    # Values that most runs never change stand in the class: an object is made for every run.
    raising = False
    noted: KeyboardInterrupt | None = None
    _note: Callable[[BaseException], None] | None = None
    _heard = False
    _previous: Callable[[int, FrameType | None], object] | None = None

    def __enter__(self) -> DeferredInterrupts:
        if threading.get_ident() == HERE.main:
            previous = _signal.getsignal(_SIGINT)
            # Where Ctrl-C is ignored or handled outside Python there is nothing to defer.
            if callable(previous):
                self._previous = previous
                _signal.signal(_SIGINT, self._handle)
        return self

    @property
    def cancels(self) -> bool:
        """Whether an interrupt ends what is going on: here is the main thread, and nobody else handles SIGINT."""
        return self._previous is signal.default_int_handler

    def tell(self, note: Callable[[BaseException], None] | None) -> None:
        """Have ``note`` told of an interrupt as soon as it comes; of an earlier one now. It may hear it twice.

        With None nobody is told any more; the interrupt is raised at the end all the same.
        """
        self._note = note
        if self.noted is not None and note is not None:
            note(self.noted)

    def listen(self) -> None:
        """Before a wait that may be left by an exception: from now on Ctrl-C is raised at once, an earlier one here."""
        self.raising = True
        if self.noted is not None:
            raise self.noted

    def wait(self, lock: threading.Lock, timeout_s: float = -1) -> bool:
        """Acquire a lock that others release, with Ctrl-C raised at once; False when ``timeout_s`` is over."""
        try:
            self.listen()
            return lock.acquire(timeout=timeout_s)
        finally:
            self.raising = False

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.raising and self._previous is not None:
            self._previous(signum, frame)
            return
        self._heard = True
        # A program with a handler of its own may not want to stop; what it wants it says when the run is over.
        if self._previous is signal.default_int_handler:
            self.noted = KeyboardInterrupt()
            self.tell(self._note)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._previous is None:
            return
        _signal.signal(_SIGINT, self._previous)
        if self._heard and not isinstance(error, KeyboardInterrupt):
            self._previous(_SIGINT, None)
