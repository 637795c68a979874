"""Long lists in parts: pages of rows, and chunks of which one statement takes one.

One row more than asked for is looked up, so that a page knows whether there are more behind it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Select
from sqlalchemy.ext.asyncio import AsyncSession

Row = TypeVar("Row")
Key = TypeVar("Key")

CHUNK = 500
"""Items per statement: SQLite bounds the parameters of one."""


def chunks(items: Sequence[Row], size: int = CHUNK) -> Iterator[Sequence[Row]]:
    """The items in their order, at most ``size`` at once."""
    return (items[start : start + size] for start in range(0, len(items), size))


def rows_among(
    connection: Connection, query: Select[*tuple[Any, ...]], column: Any, keys: Sequence[Any]
) -> Iterator[Any]:
    """The rows of a query whose column is one of these keys."""
    for some in chunks(keys):
        yield from connection.execute(query.where(column.in_(some)))


class Page(list[Row]):
    """The first ``limit`` of some rows."""

    def __init__(self, rows: Iterable[Row], limit: int) -> None:
        found = list(islice(rows, limit + 1))
        super().__init__(found[:limit])
        self._more = len(found) > limit

    def next(self, key: Callable[[Row], Key]) -> Key | None:
        """Return the key of the last row, behind which the next page begins; None when this is the last one."""
        return key(self[-1]) if self._more else None

    def next_offset(self, offset: int) -> int | None:
        """Return the offset of the next page of rows that are counted; None when this is the last one."""
        return offset + len(self) if self._more else None


async def page(session: AsyncSession, query: Select[Row], limit: int) -> Page[Row]:
    return Page(await session.scalars(query.limit(limit + 1)), limit)


async def page_of_rows(session: AsyncSession, query: Select[*tuple[Any, ...]], limit: int) -> Page[Any]:
    return Page(await session.execute(query.limit(limit + 1)), limit)
