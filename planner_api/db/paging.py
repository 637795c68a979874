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
    """The first ``limit`` of some rows; ``next`` is what ``follows`` says of them, None where there are no others."""

    def __init__(self, rows: Iterable[Row], limit: int, follows: Callable[[Sequence[Row]], Any]) -> None:
        found = list(islice(rows, limit + 1))
        super().__init__(found[:limit])
        self.next = follows(self) if len(found) > limit else None


async def page(
    session: AsyncSession, query: Select[Row], key: Any, after: Any, limit: int, *, newest_first: bool = False
) -> Page[Row]:
    """Rows in the order of a column that tells them apart, those behind ``after`` (None: from the first one on)."""
    if after is not None:
        query = query.where(key < after if newest_first else key > after)
    query = query.order_by(key.desc() if newest_first else key).limit(limit + 1)
    return Page(await session.scalars(query), limit, lambda some: getattr(some[-1], key.key))


async def page_at(session: AsyncSession, query: Select[*tuple[Any, ...]], offset: int, limit: int) -> Page[Any]:
    """Rows of several columns, counted in the query's own order."""
    rows = await session.execute(query.offset(offset).limit(limit + 1))
    return Page(rows, limit, lambda some: offset + len(some))


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
