"""Work that many want at once: turns that owners take, calls that are shared, small work done in groups."""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from planner_api.errors import TooOftenError

FORGIVEN = 10.0
"""An owner that was at work for a second comes after others for so many seconds."""
MAX_OWNERS = 10_000
"""Owners of which it is remembered what they took."""
APART_S = 0.001
"""Least seconds between two of one owner that begin: several times what the event loop works for a cached answer."""
T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")


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


class Gathering(Generic[Item, Result]):
    """Does items in groups: while one group is done, the next gathers. Who comes alone waits for nobody.

    Args:
        work: does a group and returns one result per item.
        most: items of a group.
        weight: of an item; a group of more than one weighs ``heaviest`` at most.
        heaviest: see ``weight``.
        apart_s: seconds from the beginning of a group of several to that of the next, unless ``most`` wait: for items
            that are in no hurry, and cheaper the more of them come together.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        most: int,
        weight: Callable[[Item], int] = lambda _item: 0,
        heaviest: int = 0,
        apart_s: float = 0.0,
    ) -> None:
        self._work = work
        self._most = most
        self._weight = weight
        self._heaviest = heaviest
        self._apart_s = apart_s
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def add(self, item: Item) -> Result:
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work_all(), name="gathering")
        return await done

    async def _work_all(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._waiting:
            next_at = clock() + self._apart_s
            group = self._take()
            await self._do(group)
            if self._apart_s and len(group) > 1 and len(self._waiting) < self._most:
                await asyncio.sleep(max(0.0, next_at - clock()))

    async def _do(self, group: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._work([item for item, _ in group])
        except Exception as error:  # noqa: BLE001 - every kind of failure belongs to the requests that wait for it
            for _, done in group:
                if not done.done():
                    done.set_exception(error)
            return
        for (_, done), result in zip(group, results, strict=True):
            if not done.done():
                done.set_result(result)

    def _take(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        weight = count = 0
        for item, _ in self._waiting[: self._most]:
            weight += self._weight(item)
            if count and weight > self._heaviest:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group
