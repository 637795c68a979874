"""Engines and sessions: reading and writing are different types, so that a reader cannot write by accident.

SQLite gets one writing connection per process (writers queue in the process instead of spinning on the
file's lock) that begins every transaction IMMEDIATE, and several readers; PostgreSQL gets two pools.
"""

import asyncio
import math
import sqlite3
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
from sqlalchemy import URL, Executable, create_engine, event, make_url
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from planner_api.db.outage import translated
from planner_api.errors import UsageError, unknown

Row = TypeVar("Row")
Heard = Callable[[str, str], None]
"""Called with the topic of some news and what it is about."""

BUSY_TIMEOUT_MS = 10_000
"""How long a SQLite writer waits for another process before it gives up."""
WAL_RETRY_S = 0.01
"""Pause between two attempts to switch a new SQLite file to its write-ahead log."""
READERS = 4
"""Reading connections per process on SQLite."""
POSTGRESQL: dict[str, Any] = {
    "pool_pre_ping": True,
    "connect_args": {"connect_timeout": 5, "keepalives_idle": 10, "tcp_user_timeout": 10_000},
}
"""What every engine on PostgreSQL is made with: a connection that was lost is replaced, and none is waited for long,
not even that to a machine that vanished without a goodbye."""


class ReadSession(AsyncSession):
    """A session for queries only; it has no way to commit."""

    async def commit(self) -> None:
        raise TypeError("a ReadSession does not commit; use Database.write()")


class WriteSession(AsyncSession):
    """A session inside one transaction, committed when its block ends and rolled back when it raises.

    Statements that change many rows leave the objects it holds as they are: nobody looks at those afterwards.
    ``heard`` tells this process what the transaction publishes, once it has committed (``jobs/news.py``).
    """

    heard: Heard | None = None

    async def touches(self, statement: Executable) -> bool:
        return (await self.execute(statement)).first() is not None


def parse_url(text: str) -> URL:
    """Return the SQLAlchemy URL of ``text`` with the driver filled in. Raises UsageError for any other database."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise UsageError(f"not a database URL: {error}; try sqlite:///file.sqlite or postgresql://host/db") from error
    backend = "postgresql" if url.drivername.split("+")[0] == "postgres" else url.get_backend_name()
    if backend == "sqlite":
        return url.set(drivername="sqlite+aiosqlite")
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    raise UsageError(f"unsupported database '{backend}'; use sqlite:///file.sqlite or postgresql://host/db")


def shown(url: URL) -> str:
    """A database as people know it: its URL without driver and password."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def sync_engine(text: str, *, writes: bool = True) -> Engine:
    """A plain engine on a database, for migrations and command-line tools; it keeps no connection open."""
    url = parse_url(text)
    if url.get_backend_name() != "sqlite":
        return create_engine(url, poolclass=NullPool, **POSTGRESQL)
    _make_parent(url)
    engine = create_engine(url.set(drivername="sqlite"), poolclass=NullPool)
    _tune_sqlite(engine, begin="BEGIN IMMEDIATE" if writes else "BEGIN")
    return engine


async def found(session: AsyncSession, table: type[Row], key: Any, what: str) -> Row:
    """The row of a table under its key. Raises NotFoundError where there is none (``what``: see ``errors.UNKNOWN``)."""
    row = await session.get(table, key)
    if row is None:
        raise unknown(what, key)
    return row


class SqliteConnection(aiosqlite.Connection):
    """A connection that ends its transaction before it closes, and may be closed twice.

    A call that is cancelled half-way leaves its cursor to whoever holds the error, and SQLite keeps a closed
    connection's transaction, and its lock, for as long as a cursor of it lives. A rollback is ended all the same: a
    pool would log one that is not, and throw the connection away.
    """

    def __init__(self, database: str, **options: Any) -> None:
        super().__init__(lambda: sqlite3.connect(database, **options), iter_chunk_size=64)
        self._thread.daemon = True
        self._stopping = False
        self._stopped: asyncio.Future[Any] | None = None

    def stop(self) -> asyncio.Future[Any] | None:
        """Roll back, close and end the thread; the future is done when it has ended (None: no loop to wait in)."""
        if not self._stopping:
            self._stopping = True
            self._tx.put_nowait((None, self._roll_back))
            self._stopped = super().stop()
        return self._stopped

    async def rollback(self) -> None:
        rolling, cancelled = asyncio.ensure_future(super().rollback()), False
        while not rolling.done():
            try:
                await asyncio.shield(rolling)
            except asyncio.CancelledError:
                cancelled = True
        task = asyncio.current_task()
        if cancelled and task is not None:
            task.uncancel()  # told again, at what it waits for next; counted once
            task.cancel()
        rolling.result()

    async def close(self) -> None:
        if (stopped := self.stop()) is not None:
            await asyncio.shield(stopped)

    def _roll_back(self) -> None:
        if self._connection is not None:
            self._connection.rollback()


class Database:
    """The planner's database: ``read()`` and ``write()`` open sessions; ``close()`` ends every connection.

    Whatever in a session says that the database is away leaves it as ``DatabaseAwayError``.
    """

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        self.url = parse_url(url)
        self.dialect = self.url.get_backend_name()
        self._made: weakref.WeakSet[SqliteConnection] = weakref.WeakSet()
        self.reader, self.writer = self._engines(pool_size)
        self.heard: Heard | None = None
        """Who in this process wants to know what its transactions publish."""

    def _engines(self, pool_size: int) -> tuple[AsyncEngine, AsyncEngine]:
        if self.dialect == "sqlite":
            if self.url.database in (None, "", ":memory:"):
                raise UsageError("the planner needs a SQLite file: readers cannot see another's memory database")
            _make_parent(self.url)
            options: dict[str, Any] = {"max_overflow": 0, "connect_args": {"async_creator_fn": self._opened}}
            reader = create_async_engine(self.url, pool_size=READERS, **options)
            writer = create_async_engine(self.url, pool_size=1, pool_timeout=60, **options)
            _tune_sqlite(reader.sync_engine, begin="BEGIN")
            _tune_sqlite(writer.sync_engine, begin="BEGIN IMMEDIATE")
            return reader, writer
        options = POSTGRESQL | {"pool_size": pool_size, "max_overflow": 0, "pool_timeout": 10}
        # NOTE: readers run in autocommit: a single SELECT then costs one round trip instead of three.
        return create_async_engine(self.url, isolation_level="AUTOCOMMIT", **options), create_async_engine(
            self.url, **options
        )

    def _opened(self, database: str, **options: Any) -> SqliteConnection:
        made = SqliteConnection(database, **options)
        self._made.add(made)
        return made

    @asynccontextmanager
    async def read(self) -> AsyncIterator[ReadSession]:
        with translated():
            async with ReadSession(self.reader, expire_on_commit=False) as session:
                yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[WriteSession]:
        with translated():
            session = WriteSession(
                self.writer, expire_on_commit=False, execution_options={"synchronize_session": False}
            )
            session.heard = self.heard
            async with session, session.begin():
                yield session

    async def close(self) -> None:
        """Close every connection, those too that a cancelled call has left to end by themselves."""
        await self.reader.dispose()
        await self.writer.dispose()
        await asyncio.gather(*(one.close() for one in self._made))


def _make_parent(url: URL) -> None:
    if url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)


def _tune_sqlite(engine: Engine, *, begin: str) -> None:
    """Make SQLite a database several processes can share: WAL, waiting for locks, foreign keys, real BEGINs."""

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        # NOTE: without this the driver begins transactions by itself, lazily and never IMMEDIATE.
        connection.isolation_level = None
        for name, function in (("ln", math.log), ("exp", math.exp)):  # PostgreSQL has them, not every SQLite does
            connection.create_function(name, 1, function)
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        _switch_to_wal(cursor)
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


def _switch_to_wal(cursor: Any) -> None:
    """Make the file's journal a write-ahead log, waiting for other connections that do the same.

    Two connections that switch a new file at once both hold a read lock and want the exclusive one; SQLite
    answers one of them "database is locked" at once, without the busy timeout, because waiting would never end.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(WAL_RETRY_S)
