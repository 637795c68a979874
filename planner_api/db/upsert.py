"""Writing rows that may be there already, one or many at once, on either database.

Many rows go to PostgreSQL in one statement, as one parameter: a statement for each costs several times as much on both
sides. In SQLite, which is called and not asked, they do not.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    String,
    TableValuedAlias,
    and_,
    bindparam,
    cast,
    column,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from planner_api.db.engine import WriteSession
from planner_api.db.tables import Base

Rows = Sequence[Mapping[str, Any]]
"""Columns by name; all rows have the same."""
Names = tuple[str, ...]


def upserting(dialect: str, table: type[Base]) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def ignoring(dialect: str, table: type[Base], key: Sequence[str]) -> postgresql.Insert | sqlite.Insert:
    return upserting(dialect, table).on_conflict_do_nothing(index_elements=list(key))


async def insert_or_ignore(
    session: WriteSession, table: type[Base], values: Mapping[str, Any], key: Sequence[str]
) -> bool:
    """Insert one row unless ``key`` is taken; return whether it was inserted. Columns left out take their default."""
    columns = [getattr(table, name) for name in key]
    insert_into = ignoring(session.get_bind().dialect.name, table, key).values(**values)
    return await session.touches(insert_into.returning(*columns))


async def put(
    session: WriteSession, table: type[Base], values: Mapping[str, Any], *, key: Names, keep: Names = ()
) -> None:
    """Insert one row, or replace the one whose ``key`` it has, but for the columns to ``keep``."""
    await (await session.connection()).run_sync(put_all, table, [values], key=key, keep=keep)


def put_all(connection: Connection, table: type[Base], rows: Rows, *, key: Names, keep: Names = ()) -> None:
    """Insert rows in their order; one whose ``key`` is there replaces that row, but for the columns to ``keep``."""
    if rows:
        statement = _put(connection.dialect.name, table, tuple(rows[0]), key, keep)
        connection.execute(statement, _parameters(connection, rows))


def add_all(connection: Connection, table: type[Base], rows: Rows, *, key: Names) -> None:
    """Add the numbers in ``rows`` to the rows of ``key``, where those are there; locks them in the order of the key."""
    if not rows:
        return
    names = tuple(rows[0])
    if connection.dialect.name == "postgresql":
        connection.execute(_lock(table, names, key), _parameters(connection, rows)).all()
        connection.execute(_add(table, names, key), _parameters(connection, rows))
    else:
        ordered = sorted(rows, key=lambda row: tuple(row[name] for name in key))
        connection.execute(_add_one(table, names, key), [{f"new_{name}": row[name] for name in row} for row in ordered])


def _parameters(connection: Connection, rows: Rows) -> Any:
    if connection.dialect.name == "postgresql":
        return {"rows": msgspec.json.encode(rows).decode()}
    return list(rows)


@cache
def _given(table: type[Base], names: Names) -> TableValuedAlias:
    """The rows of the parameter ``rows`` as PostgreSQL reads them."""
    columns = [column(name, table.__table__.c[name].type) for name in names]
    rows = cast(bindparam("rows", type_=String()), postgresql.JSON())
    return func.json_to_recordset(rows).table_valued(*columns, name="given").render_derived(with_types=True)


@cache
def _put(dialect: str, table: type[Base], names: Names, key: Names, keep: Names) -> Any:
    insert_into = upserting(dialect, table)
    if dialect == "postgresql":
        insert_into = insert_into.from_select(names, select(_given(table, names)))
    replaced = {name: insert_into.excluded[name] for name in names if name not in key and name not in keep}
    return insert_into.on_conflict_do_update(index_elements=key, set_=replaced)


@cache
def _lock(table: type[Base], names: Names, key: Names) -> Any:
    there, given = table.__table__, _given(table, names)
    same = and_(*(there.c[name] == given.c[name] for name in key))
    found = select(literal(1)).select_from(given.join(there, same)).order_by(*(there.c[name] for name in key))
    return found.with_for_update(of=there)


@cache
def _add(table: type[Base], names: Names, key: Names) -> Any:
    there, given = table.__table__, _given(table, names)
    sums = {name: there.c[name] + given.c[name] for name in names if name not in key}
    return update(table).where(*(there.c[name] == given.c[name] for name in key)).values(sums)


@cache
def _add_one(table: type[Base], names: Names, key: Names) -> Any:
    there = table.__table__
    sums = {name: there.c[name] + bindparam(f"new_{name}") for name in names if name not in key}
    return update(table).where(*(there.c[name] == bindparam(f"new_{name}") for name in key)).values(sums)
