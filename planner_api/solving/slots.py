"""A bounded set of running handlers that a stop drains: first patiently, then by cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import structlog

log = structlog.get_logger(__name__)


class Slots:
    """At most ``count`` handlers at once, until ``stop`` is set."""

    def __init__(self, count: int, stop: asyncio.Event) -> None:
        self._count = count
        self._stop = stop
        self._running: set[asyncio.Task[None]] = set()

    async def free(self) -> bool:
        """Wait until a slot is free; False once stopped."""
        while not self._stop.is_set() and len(self._running) >= self._count:
            await self.wait(None, None)
        return not self._stop.is_set()

    def start(self, handler: Awaitable[None]) -> None:
        """Run a handler in a slot. What it raises is logged: its lease then simply expires."""
        task = asyncio.ensure_future(handler)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("solve_handler_failed", exc_info=error)

    async def wait(self, news: asyncio.Event | None, timeout_s: float | None) -> None:
        """Return when a handler ends, ``news`` or the stop is set, or the time is up."""
        events = [asyncio.ensure_future(self._stop.wait())]
        if news is not None:
            events.append(asyncio.ensure_future(news.wait()))
        try:
            await asyncio.wait([*events, *self._running], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in events:
                waiting.cancel()

    async def drain(self, grace_s: float) -> None:
        """Let running handlers end within ``grace_s`` seconds, then cancel them and wait for that."""
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
