"""Requests that wait for a better plan: each for as long as it asked, all of them with one look-out and one read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from planner_api.jobs.events import Events
from planner_api.plans.stored import StoredPlan
from planner_api.shared import SharedCalls

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?(?=$|[,;\s])")

Receive = Callable[[], Awaitable[Any]]


def preferred_wait(prefer: str) -> float:
    """Return N of ``wait=N`` in a ``Prefer`` header, 0 without one."""
    found = _WAIT.search(prefer.lower())
    return float(found[1]) if found else 0.0


class Waits:
    """The requests of this process that wait for better plans; ``newest`` looks into memory first."""

    def __init__(self, events: Events, newest: Callable[[str], Awaitable[StoredPlan | None]]) -> None:
        self._events = events
        self._newest = newest
        self._lookouts: SharedCalls[StoredPlan | None] = SharedCalls()

    def __len__(self) -> int:
        return len(self._lookouts)

    async def better(self, stored: StoredPlan, wait_s: float, receive: Receive) -> StoredPlan:
        """Wait for the version after ``stored`` if that is provisional; return the newest there is then.

        ``receive`` is that of a request whose body has come: a client that hangs up ends its wait.
        """
        if wait_s <= 0 or not stored.provisional:
            return stored
        key = (stored.plan_id, stored.version)
        better = asyncio.create_task(self._lookouts.get(key, lambda: self._look_out(*key)))
        gone = asyncio.create_task(_hung_up(receive))
        try:
            await asyncio.wait((better, gone), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            found = better.result() if better.done() else await self._newest(stored.plan_id)
        finally:
            better.cancel()
            gone.cancel()
        return found or stored

    async def _look_out(self, plan_id: str, version: int) -> StoredPlan | None:
        """Wait until the plan has a version above ``version`` or will get none, and read what there is then."""
        await self._events.wait(plan_id, version)
        return await self._newest(plan_id)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
