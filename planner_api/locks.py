"""Locks by key, e.g. one per plan that is being made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class _Counted(asyncio.Lock):
    """A lock that knows how many hold it or wait for it."""

    users = 0


class KeyedLock:
    """One lock per key, kept only while somebody holds it or waits for it. Used from one event loop."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, _Counted] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def alone(self, key: Hashable) -> AsyncIterator[None]:
        """Let one task at a time into the block of a key."""
        lock = self._locks.setdefault(key, _Counted())
        lock.users += 1
        try:
            async with lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[key]
