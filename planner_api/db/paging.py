"""Long lists in parts: pages of rows, as messages of the contract, and chunks of which one statement takes one.

One row more than asked for is looked up, so that a page knows whether there are more behind it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import structlog
from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, Select, delete
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import Database

Row = TypeVar("Row")
Key = TypeVar("Key")
CHUNK = 500
"""Items per statement: SQLite bounds the parameters of one."""
Message = TypeVar("Message", bound=BaseModel)
log = structlog.get_logger(__name__)


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


async def prune(database: Database, column: Any, doomed: Select[Any], at_once: int) -> int:
    """Delete the rows whose column is among the ``doomed``, some in a transaction, in their order; return how many."""
    total, some = 0, doomed.limit(at_once).scalar_subquery()
    while True:
        async with database.write() as session:
            gone = delete(column.class_).where(column.in_(some)).returning(column)
            pruned = len((await session.execute(gone)).all())
        total += pruned
        if pruned < at_once:
            return total


def message_of(kind: type[Message], row: Any, **more: Any) -> Message:
    """Return a message whose fields are the row's columns of the same names, but for those that are given.

    Raises ValidationError for a value that the contract does not allow.
    """
    columns = {name: getattr(row, name) for name in kind.model_fields if name not in more}
    return kind(**columns, **more)


def messages_of(rows: Iterable[Row], make: Callable[[Row], Message]) -> tuple[Message, ...]:
    """Return the messages of a list's rows; a row that the contract does not allow is left out and said in the log."""
    made = []
    for row in rows:
        try:
            made.append(make(row))
        except ValidationError as error:
            log.error("row_unreadable", contract=error.title, causes=str(error.errors(include_url=False))[:1000])
    return tuple(made)
