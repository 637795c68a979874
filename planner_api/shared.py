"""Calls that many want at once: one runs, and everybody gets its outcome."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Call(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting = 0
        self.until = float("inf")


class SharedCalls(Generic[T]):
    """One call per key at a time. Used from one event loop.

    A call that nobody waits for any more is cancelled.

    Args:
        keep_s: how long an outcome, a failure too, is told to who comes after the call has ended.
    """

    def __init__(self, *, keep_s: float = 0.0) -> None:
        self._keep_s = keep_s
        self._calls: dict[Hashable, _Call[T]] = {}

    def __len__(self) -> int:
        return sum(call.waiting for call in self._calls.values())

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the outcome of the call under way, or make one; raise what it raises."""
        call = self._calls.get(key)
        if call is None or time.monotonic() >= call.until:
            call = self._calls[key] = _Call(asyncio.create_task(make()))
            call.task.add_done_callback(partial(self._ended, key, call))
        call.waiting += 1
        try:
            return await asyncio.shield(call.task)
        finally:
            call.waiting -= 1
            if not call.waiting and not call.task.done():
                call.task.cancel()
                self._drop(key, call)

    def _ended(self, key: Hashable, call: _Call[T], _task: asyncio.Task[T]) -> None:
        if self._keep_s:
            call.until = time.monotonic() + self._keep_s
        else:
            self._drop(key, call)

    def _drop(self, key: Hashable, call: _Call[T]) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]
