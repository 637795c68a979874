"""A whole planner in one file: every row of every table of ours, as lines of JSON under gzip.

What was written from one kind of database can be read into the other. Workers then find the plans that wait, and those
whose lease has run out, by themselves. The console's sessions are not in it: whoever signed out since would be signed
in again. Nor is what refers to another row of its own table, which may come after it: behind which job one waits.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, LargeBinary, Table, func, insert, inspect, select, text

from planner_api.db.engine import sync_engine
from planner_api.db.migrate import HEAD, current_revision, upgrade
from planner_api.db.tables import AuditRow, Base, ConsoleSessionRow
from planner_api.db.types import UtcDateTime
from planner_api.errors import UsageError

FORMAT = "hope-planner backup 1"
BATCH = 500
"""Rows written at once."""
LEFT_OUT = frozenset({ConsoleSessionRow.__tablename__})
MAX_LINE = 256 * 2**20
"""Characters of a row's line, which is as large as a model or a plan may be and then some."""


def write(url: str, path: Path) -> int:
    """Write every row of a database, as it stands at one moment, into a file that must not exist yet; return how many.

    Raises:
        UsageError: the file exists, or the database is not at this program's revision.
    """
    _check_revision(url)
    partial = path.with_name(path.name + ".partial")
    if path.exists():
        raise UsageError(f"{path} exists already")
    rows = 0
    try:
        with gzip.open(partial, "wb") as out, _snapshot(url) as connection:

            def say(line: dict[str, Any]) -> None:
                out.write(msgspec.json.encode(line) + b"\n")

            say({"format": FORMAT, "revision": HEAD})
            for table in (each for each in Base.metadata.sorted_tables if each.name not in LEFT_OUT):
                say({"table": str(table.name)})
                columns = [
                    each for each in table.columns if not any(key.references(table) for key in each.foreign_keys)
                ]
                for row in connection.execution_options(yield_per=BATCH).execute(select(*columns)).mappings():
                    say({str(name): value for name, value in row.items()})
                    rows += 1
            say({"rows": rows})
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    return rows


def read(url: str, path: Path, actor: str | None = None) -> int:
    """Fill an empty database from a file, in one transaction; return the number of rows.

    Where ``actor`` is said, the audit log says who did it, when, and of how many rows.

    Raises:
        UsageError: the database has rows already; the file is none of these, was cut short, or is of another revision.
    """
    rows = _rows(path)
    begin = list(islice(rows, 1))  # what is no backup is refused before a file is made for it
    upgrade(url)
    _check_revision(url)
    count = 0
    with sync_engine(url).begin() as connection:
        for table in Base.metadata.sorted_tables:
            if connection.execute(select(func.count()).select_from(table)).scalar_one():
                raise UsageError(f"the database is not empty: table {table.name} has rows; restore into a new one")
        for name, group in groupby(chain(begin, rows), key=itemgetter(0)):
            while some := [row for _, row in islice(group, BATCH)]:
                connection.execute(insert(Base.metadata.tables[name]), some)
                count += len(some)
        _advance_sequences(connection)
        if actor is not None:
            entry = {"at": datetime.now(UTC), "actor": actor, "action": "planner.restore", "subject": path.name}
            connection.execute(insert(AuditRow), {**entry, "detail": {"rows": str(count)}})
    return count


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The file's rows, each with its table's name. Raises UsageError: it is damaged, cut short, or goes on."""
    table: Table | None = None
    rows, lines = 0, _lines(path)
    for line in lines:
        match line:
            case {"table": str(name), **rest} if not rest:
                if (table := Base.metadata.tables.get(name)) is None:
                    raise UsageError(f"{path} names a table {name}, which this planner does not have")
            case {"rows": int(said), **rest} if not rest:
                if said == rows and next(lines, None) is None:
                    return
                break
            case _ if table is None or not line.keys() <= set(table.columns.keys()):
                raise UsageError(f"{path} has a row that fits no table")
            case _:
                rows += 1
                try:
                    yield table.name, {name: _restored(table, name, value) for name, value in line.items()}
                except msgspec.ValidationError as error:
                    raise UsageError(f"{path} is damaged: {error}") from None
    raise UsageError(f"{path} was cut short, or goes on after its end: nothing was restored")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The file's lines after its head. Raises UsageError: it is no backup, or of another revision."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            head = json.loads(file.readline(MAX_LINE))
            if not isinstance(head, dict) or head.get("format") != FORMAT:
                raise UsageError(f"{path} is no backup of a planner")
            if head.get("revision") != HEAD:
                raise UsageError(
                    f"{path} was written at revision {head.get('revision')}, this planner is at {HEAD}: "
                    "restore it with the program that wrote it, then migrate"
                )
            while line := file.readline(MAX_LINE):
                found = json.loads(line)
                if not isinstance(found, dict):
                    raise UsageError(f"{path} is damaged")
                yield found
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise UsageError(f"{path} is damaged, or no backup: {error}") from None


@contextmanager
def _snapshot(url: str) -> Iterator[Connection]:
    """A connection that sees one moment, however long it reads, and keeps nobody from writing."""
    with sync_engine(url, writes=False).connect() as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        yield connection


def _check_revision(url: str) -> None:
    if (found := current_revision(url)) != HEAD:
        raise UsageError(f"the database is at revision {found}, this program at {HEAD}; run: hope-planner migrate")


def _restored(table: Table, name: str, value: Any) -> Any:
    """What JSON says of a column's value, in which bytes are in base 64 and times in ISO 8601."""
    match table.columns[name].type:
        case LargeBinary():
            return msgspec.convert(value, bytes | None)
        case UtcDateTime():
            return msgspec.convert(value, datetime | None)
    return value


def _advance_sequences(connection: Connection) -> None:
    """PostgreSQL numbers what comes next after what was restored; SQLite does so by itself."""
    if connection.dialect.name != "postgresql":
        return
    for table in Base.metadata.sorted_tables:
        for column in inspect(connection).get_columns(table.name):
            if "nextval" in str(column.get("default")) or column.get("identity"):
                name = column["name"]
                connection.execute(
                    text(
                        f"SELECT setval(pg_get_serial_sequence('{table.name}', '{name}'), "
                        f"coalesce((SELECT max({name}) FROM {table.name}), 0) + 1, false)"
                    )
                )
