"""Requests that wait for a plan: each for as long as it asked, all of them with one look-out and one read."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Any

from planner_api.concurrency import SharedCalls
from planner_api.db.tables import PlanVersionRow
from planner_api.jobs.news import News
from planner_api.plans.solve import PLAN

LOOK_S = 2.0
"""A look-out that hears nothing looks by itself this often."""
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d+)\"?(?=$|[,;\s])")

Receive = Callable[[], Awaitable[Any]]


def preferred_wait(prefer: str) -> float:
    """Return N of ``wait=N`` in a ``Prefer`` header, 0 without one."""
    found = _WAIT.search(prefer.lower())
    return float(found[1]) if found else 0.0


class Waits:
    """The requests of this process that wait for plans.

    ``newest`` returns the version that is served, ``pending`` whether anybody is to make a plan, or makes it.
    """

    def __init__(
        self,
        news: News,
        newest: Callable[[str], Awaitable[PlanVersionRow | None]],
        pending: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._news = news
        self._newest = newest
        self._pending = pending
        self._lookouts: SharedCalls[PlanVersionRow | None] = SharedCalls()

    def __len__(self) -> int:
        return len(self._lookouts)

    async def first(self, plan_id: str, wait_s: float) -> PlanVersionRow | None:
        """Wait for a plan that is being made; None: it failed, or takes longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                return await self._lookouts.get((plan_id, 0), lambda: self._look_out(plan_id, 0))
        return None

    async def better(self, stored: PlanVersionRow, wait_s: float, receive: Receive) -> PlanVersionRow:
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

    async def _look_out(self, plan_id: str, version: int) -> PlanVersionRow | None:
        """Wait until the plan has a version above ``version`` or will get none; return what there is then."""
        with self._news.watching(PLAN, plan_id) as changed:
            while True:
                changed.clear()
                found = await self._newest(plan_id)
                if (found is not None and found.version > version) or self._news.stopping.is_set():
                    return found
                if not await self._pending(plan_id):
                    return await self._newest(plan_id)  # it may have come between the two looks
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_S)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
