"""Small writes of many requests: they share transactions, and each is answered only after its own has committed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Gathering(Generic[Item, Result]):
    """Writes items in groups: while one transaction commits, the next group gathers. Nobody waits for a timer.

    Args:
        write: stores a group and returns one result per item.
        most: items of a group.
        weight: of an item; a group of more than one weighs ``heaviest`` at most.
        heaviest: see ``weight``.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        most: int,
        weight: Callable[[Item], int] = lambda _item: 0,
        heaviest: int = 0,
    ) -> None:
        self._write = write
        self._most = most
        self._weight = weight
        self._heaviest = heaviest
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def add(self, item: Item) -> Result:
        """Store an item with others and return its result. Raises what the database does."""
        stored: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, stored))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="gathering")
        return await stored

    async def _write_all(self) -> None:
        while self._waiting:
            group = self._take()
            try:
                results = await self._write([item for item, _ in group])
            except Exception as error:  # noqa: BLE001 - every kind of failure belongs to the requests that wait for it
                for _, stored in group:
                    if not stored.done():
                        stored.set_exception(error)
                continue
            for (_, stored), result in zip(group, results, strict=True):
                if not stored.done():
                    stored.set_result(result)

    def _take(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        weight = count = 0
        for item, _ in self._waiting[: self._most]:
            weight += self._weight(item)
            if count and weight > self._heaviest:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group
