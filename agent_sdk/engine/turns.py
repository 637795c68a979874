"""Waiting for one's turn: what a session has a few of is lent in the order in which it was asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Generic, TypeVar

from agent_sdk.engine.interrupt import DeferredInterrupts
from agent_sdk.errors import DeviceClosedError

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """Things that are lent one at a time to each who asks.

    Attributes:
        withheld: why they are; empty while they are not.
    """

    def __init__(self, items: Iterable[Item]) -> None:
        self._lock = threading.Lock()
        self._free = deque(items)
        self._count = len(self._free)
        self.withheld = ""
        self._queue: deque[_Place[Item]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def take_all(self) -> list[Item]:
        """All of them, where none is lent, also while they are withheld; nothing otherwise."""
        with self._lock:
            if len(self._free) < self._count:
                return []
            found = [*self._free]
            self._free.clear()
            return found

    def take(self, interrupts: DeferredInterrupts, timeout_s: float = -1) -> Item | None:
        """Wait for one; None when ``timeout_s`` is over. An interrupted wait leaves the queue.

        Raises DeviceClosedError while they are withheld.
        """
        with self._lock:
            if self.withheld:
                raise DeviceClosedError(self.withheld)
            if self._free:
                return self._free.popleft()
            mine: _Place[Item] = _Place()
            self._queue.append(mine)
        try:
            interrupts.wait(mine.gate, timeout_s)
        except BaseException:
            self._leave(mine)
            if mine.item is not None:
                self.give(mine.item)
            raise
        self._leave(mine)
        if mine.refused:
            raise DeviceClosedError(mine.refused)
        return mine.item

    def give(self, item: Item) -> None:
        with self._lock:
            if self._queue:
                place = self._queue.popleft()
                place.item = item
                place.gate.release()
            else:
                self._free.append(item)

    def withhold(self, why: str) -> None:
        """Lend nothing until ``why`` is empty, and have nobody wait for it meanwhile."""
        with self._lock:
            self.withheld = why
            for place in self._queue if why else ():
                place.refused = why
                place.gate.release()
            if why:
                self._queue.clear()

    def _leave(self, mine: _Place[Item]) -> None:
        """Nothing is lent to it any more."""
        with self._lock, suppress(ValueError):  # it may have left the queue with what it was lent
            self._queue.remove(mine)


class _Place(Generic[Item]):
    """In the queue: ``gate`` opens when there is an ``item``, or never will be for the reason in ``refused``."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.item: Item | None = None
        self.refused = ""
