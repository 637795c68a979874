"""Small work of many requests in groups: they share a transaction or a query, and each is answered after its own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


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
