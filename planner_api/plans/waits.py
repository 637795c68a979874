"""Requests that wait for a better plan: each for as long as it asked, all of them with one look-out and one read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from planner_api.plans.stored import StoredPlan

if TYPE_CHECKING:
    from planner_api.solving.events import Events

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?(?=$|[,;\s])")


def preferred_wait(prefer: str) -> float:
    """Return N of ``wait=N`` in a ``Prefer`` header, 0 without one."""
    found = _WAIT.search(prefer.lower())
    return float(found[1]) if found else 0.0


@contextmanager
def hang_up(receive: Callable[[], Awaitable[Any]]) -> Iterator[asyncio.Future[None]]:
    """While the block lasts, watch a request whose body has come; the future is done when its client hangs up."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    watching = asyncio.ensure_future(disconnected())
    try:
        yield watching
    finally:
        watching.cancel()


class Crowd:
    """Who waits for the version after one of a plan, and the task that looks out for it on their behalf."""

    def __init__(self, lookout: asyncio.Task[StoredPlan | None]) -> None:
        self.lookout = lookout
        self.waiting: set[asyncio.Future[StoredPlan | None]] = set()

    def tell(self) -> None:
        """Let everybody go with what the look-out saw, or with what went wrong with it."""
        error = None if self.lookout.cancelled() else self.lookout.exception()
        found = None if self.lookout.cancelled() or error is not None else self.lookout.result()
        for future in self.waiting:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(found)


class Waits:
    """The requests of this process that wait for better plans.

    Args:
        events: where the news of a version arrives.
        newest: returns the newest version of a plan, from memory if it is there.
        longest_s: the longest wait that is granted.
    """

    def __init__(
        self, events: Events, newest: Callable[[str], Awaitable[StoredPlan | None]], *, longest_s: float
    ) -> None:
        self._events = events
        self.newest = newest
        self.longest_s = longest_s
        self._crowds: dict[tuple[str, int], Crowd] = {}

    def __len__(self) -> int:
        return sum(len(crowd.waiting) for crowd in self._crowds.values())

    async def better(self, stored: StoredPlan, wait_s: float, hung_up: asyncio.Future[Any] | None = None) -> StoredPlan:
        """Wait for the version after ``stored`` if that is provisional; return the newest there is then.

        Args:
            stored: what there is now.
            wait_s: how long to wait at most; bounded by ``longest_s``.
            hung_up: done when nobody wants the answer any more, which ends the wait.
        """
        wait_s = min(wait_s, self.longest_s)
        if wait_s <= 0 or not stored.provisional:
            return stored
        loop = asyncio.get_running_loop()
        future: asyncio.Future[StoredPlan | None] = loop.create_future()
        timer = loop.call_later(wait_s, _give_up, future)
        if hung_up is not None:
            hung_up.add_done_callback(lambda _: _give_up(future))
        key = (stored.plan_id, stored.version)
        crowd = self._crowds.get(key) or self._gather(key)
        crowd.waiting.add(future)
        try:
            found = await future
        finally:
            timer.cancel()
            crowd.waiting.discard(future)
            if not crowd.waiting:
                self._dissolve(key, crowd)
        return found or await self.newest(stored.plan_id) or stored

    def _gather(self, key: tuple[str, int]) -> Crowd:
        crowd = self._crowds[key] = Crowd(asyncio.create_task(self._look_out(*key)))

        def ended(_lookout: object) -> None:
            self._dissolve(key, crowd)
            crowd.tell()

        crowd.lookout.add_done_callback(ended)
        return crowd

    def _dissolve(self, key: tuple[str, int], crowd: Crowd) -> None:
        crowd.lookout.cancel()
        if self._crowds.get(key) is crowd:
            del self._crowds[key]

    async def _look_out(self, plan_id: str, version: int) -> StoredPlan | None:
        """Wait until the plan has a version above ``version`` or will get none, and read what there is then."""
        await self._events.wait(plan_id, version)
        return await self.newest(plan_id)


def _give_up(future: asyncio.Future[StoredPlan | None]) -> None:
    if not future.done():
        future.set_result(None)
