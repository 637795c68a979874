"""Who is let in: so many requests and so many bytes at once, and nobody any more once the server drains."""

from __future__ import annotations

import threading
import time
from typing import Final

from agent_sdk.errors import RefusedError

LOOK_S: Final = 0.01
"""How often who drains looks whether all have gone."""


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
        self.lock = threading.Lock()

    def drain(self, within_s: float) -> bool:
        """Let nobody in any more, and wait until all have gone; whether they have."""
        end = time.monotonic() + within_s
        with self.lock:
            self.draining = True
        while self.requests and time.monotonic() < end:
            time.sleep(LOOK_S)
        return not self.requests


class Room:
    """What one request takes up, as long as the block lasts. Entering it raises RefusedError where nobody is let in."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._taken = 0

    def __enter__(self) -> Room:
        every = self._admission
        with every.lock:
            if every.draining:
                raise RefusedError(503, "the server is being stopped and takes no requests any more")
            if every.requests >= every.most:
                raise RefusedError(503, f"{every.requests} requests are under way, the most that this server takes")
            every.requests += 1
        return self

    def take(self, size: int) -> None:
        """Take so many bytes more. Raises RefusedError where they are not there."""
        every = self._admission
        if size > every.memory:
            raise RefusedError(413, f"the request takes {size} bytes, and this server holds {every.memory} at most")
        with every.lock:
            if every.held + size > every.memory:
                free = every.memory - every.held
                raise RefusedError(503, f"the request takes {size} bytes, and {free} are free at the moment")
            every.held += size
        self._taken += size

    def __exit__(self, *_: object) -> None:
        every = self._admission
        with every.lock:
            every.requests -= 1
            every.held -= self._taken
