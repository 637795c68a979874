"""Turns that owners take."""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from planner_api.errors import TooOftenError

FORGIVEN = 10.0
"""An owner that was at work for a second comes after others for so many seconds."""
MAX_OWNERS = 10_000
"""Owners of which it is remembered what they took."""
APART_S = 0.001
"""Least seconds between two of one owner that begin: several times what the event loop works for a cached answer."""


class Turns:
    """At most ``slots`` at work at once, ``each`` of one owner; owners that wait take turns. Used from one event loop.

    Who took the least time lately comes first, then who has waited longest. So an owner with a hundred things to do,
    or a hundred owners that keep at it, delay another's first by no more than what is at work already. Of one owner
    one begins within ``APART_S``: what never waits would else run one after the other, and everybody else behind it.

    Args:
        what: the name of the quota.
        slots: at work at once; None: any number.
        each: of one owner at work at once.
        waiting: of one owner that may wait.
        refused: counts refusals, by the quota's name.
    """

    def __init__(self, what: str, *, slots: int | None, each: int, waiting: int, refused: Counter[str]) -> None:
        self._what = what
        self._slots = slots
        self._each = each
        self._most = waiting
        self._at_work: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._refused = refused
        self._forgiven_at: dict[Hashable, float] = {}
        self._begun: set[Hashable] = set()
        """Owners of which one has begun since `_next_begins` was last called."""

    @asynccontextmanager
    async def turn(self, owner: Hashable) -> AsyncIterator[None]:
        """Wait for a turn of this owner's and hold it. Raises TooOftenError when too many of its wait already."""
        queue = self._waiting.setdefault(owner, deque())
        if len(queue) >= self._most:
            self._refused[self._what] += 1
            detail = f"quota {self._what} of this caller is used up ({self._most} that wait); slow down"
            raise TooOftenError("quota-exceeded", detail, retry_after_s=5.0)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._leave(owner, granted)
            else:
                self._end(owner)
            raise
        began = time.monotonic()
        try:
            yield
        finally:
            if self._slots is not None:
                self._took(owner, began)
            self._end(owner)

    def _took(self, owner: Hashable, began: float) -> None:
        now = time.monotonic()
        if len(self._forgiven_at) >= MAX_OWNERS:
            self._forgiven_at = {owner: at for owner, at in self._forgiven_at.items() if at > now}
        self._forgiven_at[owner] = max(self._forgiven_at.get(owner, now), now) + FORGIVEN * (now - began)

    def _end(self, owner: Hashable) -> None:
        self._at_work[owner] -= 1
        if not self._at_work[owner]:
            del self._at_work[owner]
        self._grant()

    def _leave(self, owner: Hashable, granted: asyncio.Future[None]) -> None:
        queue = self._waiting.get(owner)
        if queue is not None and granted in queue:
            queue.remove(granted)
            if not queue:
                del self._waiting[owner]

    def _next_begins(self) -> None:
        self._begun.clear()
        self._grant()

    def _grant(self) -> None:
        """Give free slots away: to each owner in turn, and it then stands at the end of the line."""
        waiting = list(self._waiting.items())
        if self._forgiven_at:
            now = time.monotonic()
            waiting.sort(key=lambda item: max(now, self._forgiven_at.get(item[0], now)))
        for owner, queue in waiting:
            if self._slots is not None and self._at_work.total() >= self._slots:
                return
            if self._at_work[owner] >= self._each or owner in self._begun:
                continue
            while queue and queue[0].done():  # it was cancelled, and has not heard so yet
                queue.popleft()
            if queue:
                queue.popleft().set_result(None)
                self._at_work[owner] += 1
                if not self._begun:
                    asyncio.get_running_loop().call_later(APART_S, self._next_begins)
                self._begun.add(owner)
            if queue:
                self._waiting.move_to_end(owner)
            else:
                del self._waiting[owner]
