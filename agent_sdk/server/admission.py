"""Who is let in: so many requests and so many bytes at once, and nobody any more once the server drains."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agent_sdk.errors import RefusedError


class Room:
    """What one request takes up; it may come to take more."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.taken = 0

    def take(self, size: int) -> None:
        """Take so many bytes more. Raises RefusedError where they are not there."""
        self._admission.take(size)
        self.taken += size


class Admission:
    """The requests that are being read, wait, compute or are being answered, and the bytes that they hold.

    Args:
        memory: bytes that all of them may hold: what was sent, what it was made into, and the answers.
        requests: how many there may be.

    Attributes:
        requests, held: how many there are, and the bytes that they hold.
        draining: whether nobody is let in any more.
    """

    def __init__(self, *, memory: int, requests: int) -> None:
        self.memory, self.most = memory, requests
        self.requests = self.held = 0
        self.draining = False
        self._changed = threading.Condition()

    @contextmanager
    def admitted(self) -> Iterator[Room]:
        """Let a request in, until the block ends. Raises RefusedError."""
        with self._changed:
            if self.draining:
                raise RefusedError(503, "the server is being stopped and takes no requests any more")
            if self.requests >= self.most:
                raise RefusedError(503, f"{self.requests} requests are under way, the most that this server takes")
            self.requests += 1
        room = Room(self)
        try:
            yield room
        finally:
            with self._changed:
                self.requests -= 1
                self.held -= room.taken
                self._changed.notify_all()

    def take(self, size: int) -> None:
        """Count so many bytes more. Raises RefusedError where that is too many."""
        with self._changed:
            if size > self.memory:
                raise RefusedError(413, f"the request takes {size} bytes, and this server holds {self.memory} at most")
            if self.held + size > self.memory:
                free = self.memory - self.held
                raise RefusedError(503, f"the request takes {size} bytes, and {free} are free at the moment")
            self.held += size

    def drain(self, within_s: float) -> bool:
        """Let nobody in any more, and wait until all have gone; whether they have."""
        end = time.monotonic() + within_s
        with self._changed:
            self.draining = True
            return self._changed.wait_for(lambda: not self.requests, max(0.0, end - time.monotonic()))
