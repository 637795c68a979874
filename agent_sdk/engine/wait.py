"""Waiting in Python: for the lanes of a run inside the interpreter, and for one's turn."""

from __future__ import annotations

import threading
from collections import deque
from math import inf
from time import monotonic

from agent_sdk.engine.errors import DeviceClosedError
from agent_sdk.engine.interrupt import DeferredInterrupts

FINISHED = 1 << 60
"""Count of finished segments that a lane shows once it will run no more."""
GLANCE_S = 0.2
"""How long somebody sleeps at most: a signal just before the main thread fell asleep wakes nobody."""


class Progress:
    """How far the lanes of one run are, and who sleeps until when. One per run.

    Attributes:
        done: per lane the number of finished segments; ``FINISHED`` when the lane runs no more.
        stopped: whether lanes go no further.
        sleepers: lane (or the caller, -1) to the (lane, count) it sleeps for and the lock that wakes it.

    NOTE: no lock guards these. Each entry of ``done`` has one writer; a sleeper says so before it looks a last
    time, a finisher counts before it looks for sleepers, and whoever takes the sleeper's entry out of the
    dict, which one thread alone can do, owes or forgoes the wake-up.
    """

    __slots__ = ("done", "sleepers", "stopped")

    CALLER = -1

    def __init__(self, lanes: int) -> None:
        self.done = [0] * lanes
        self.stopped = False
        self.sleepers: dict[int, tuple[int, int, threading.Lock]] = {}

    def finish(self, lane: int, count: int) -> None:
        """Count and wake whoever sleeps for it."""
        self.done[lane] = count
        if self.sleepers:
            self.wake(lane, count)

    def wake(self, lane: int, count: int) -> None:
        """Wake those who sleep until ``lane`` has finished ``count`` segments."""
        for sleeper, (target, wanted, _) in list(self.sleepers.items()):
            if target == lane and wanted <= count:
                self._wake(sleeper)

    def stop(self) -> None:
        """Stop the run: everyone who sleeps wakes up and sees that."""
        self.stopped = True
        for sleeper in list(self.sleepers):
            self._wake(sleeper)

    def _wake(self, sleeper: int) -> None:
        # A caller whom Ctrl-C woke may sleep again meanwhile: woken too early, it looks once more.
        entry = self.sleepers.pop(sleeper, None)
        if entry is not None:
            entry[2].release()

    def wait(self, me: int, lane: int, count: int, timeout_s: float = -1) -> bool:
        """Sleep until ``lane`` has finished ``count`` segments or, but for the caller, the run is stopped.

        False when ``timeout_s`` is over; a negative number sets no end.
        """
        done = self.done
        end = inf if timeout_s < 0 else monotonic() + timeout_s
        while done[lane] < count and (me == self.CALLER or not self.stopped):
            left = end - monotonic()
            if left < 0:
                return False
            woken = threading.Lock()
            woken.acquire()
            self.sleepers[me] = (lane, count, woken)
            ready = done[lane] >= count or (me != self.CALLER and self.stopped)
            if ready and self.sleepers.pop(me, None) is not None:
                break
            # Either nobody has noticed yet that this thread sleeps, or somebody has and will release the lock.
            if not woken.acquire(timeout=min(left, GLANCE_S)) and self.sleepers.pop(me, None) is None:
                woken.acquire()
        return True


class Turn:
    """A lock that is passed on in the order in which it was asked for.

    Args:
        lock: what guards it; whoever holds that may look at ``taken``, set it, and ``pass_on``.
    """

    def __init__(self, lock: threading.Lock | None = None) -> None:
        self._lock = lock or threading.Lock()
        self.taken = False
        self._withheld = ""
        self._queue: deque[_Place] = deque()

    def acquire(self, interrupts: DeferredInterrupts, timeout_s: float = -1) -> bool:
        """Wait for the turn; False when ``timeout_s`` is over. An interrupted wait leaves the queue.

        Raises DeviceClosedError where the turn is withheld.
        """
        with self._lock:
            if self._withheld:
                raise DeviceClosedError(self._withheld)
            if not self.taken:
                self.taken = True
                return True
            mine = _Place()
            self._queue.append(mine)
        try:
            got = interrupts.wait(mine.gate, timeout_s)
        except BaseException:
            self._forgo(mine)
            raise
        if not got:
            self._forgo(mine)
        elif mine.refused:
            raise DeviceClosedError(mine.refused)
        return got

    def acquire_now(self) -> bool:
        """Take the turn if nobody has it."""
        with self._lock:
            free = not self.taken
            self.taken = True
        return free

    def release(self) -> None:
        """Pass the turn on."""
        with self._lock:
            self.pass_on()

    def pass_on(self) -> None:
        """What ``release`` does, with the lock held."""
        self._withheld = ""
        if self._queue:
            self._queue.popleft().gate.release()
        else:
            self.taken = False

    def withhold(self, why: str) -> None:
        """Keep the turn until it is released, and have nobody wait for it meanwhile."""
        with self._lock:
            self._withheld = why
            for place in self._queue:
                place.refused = why
                place.gate.release()
            self._queue.clear()

    def _forgo(self, mine: _Place) -> None:
        with self._lock:
            waiting = mine in self._queue
            if waiting:
                self._queue.remove(mine)
        if not waiting and not mine.refused:
            # It was passed on to us while we gave up.
            self.release()


class _Place:
    """In the queue for a turn: ``gate`` opens when the turn has come, or never will for the reason in ``refused``."""

    __slots__ = ("gate", "refused")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.refused = ""
