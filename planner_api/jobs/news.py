"""How what happened to rows travels with the transaction that did it, to every process that wants to know.

This process hears its own news at commit. Others: on PostgreSQL by ``NOTIFY`` in that transaction and one ``LISTEN``
connection per process; on SQLite by a row in ``news``, and one look per process at ``PRAGMA data_version`` fifty times
a second, and a query only when another process has written.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import delete, event, func, insert, select, text

from planner_api.db.engine import Database, WriteSession
from planner_api.db.outage import translated
from planner_api.db.tables import NewsRow
from planner_api.errors import DatabaseAwayError
from planner_api.jobs.chores import end, keep_doing

if TYPE_CHECKING:
    from psycopg import AsyncConnection

log = structlog.get_logger(__name__)

POLL_S = 0.02
"""How often SQLite is asked whether another process wrote."""
KEPT = 10_000
"""Newest rows that are kept; a process that lags behind further is told that it missed some."""
CHANNEL = "hope"
CHECK_S = 5.0
"""A silent connection to PostgreSQL is checked this often: a vanished server sends no goodbye."""
RECONNECT_S = 0.5
"""Pause before listening again after the database went away."""

FORGOTTEN_AT_ONCE = 100
"""Older rows are deleted as often as so many came anew."""

_NOTIFY = text("SELECT pg_notify(:channel, :news)")
_TELL = insert(NewsRow).returning(NewsRow.id)

Listener = Callable[[str | None], None]
"""Called with what it is about; None: news may have been missed, and whatever is remembered be stale."""
_BETWEEN = "\x1f"


async def publish(session: WriteSession, topic: str, about: str = "") -> None:
    """Say on a topic what something is about with the caller's transaction: nobody hears unless that commits."""
    heard, loop = session.heard, asyncio.get_running_loop()
    if heard is not None:
        # NOTE: through call_soon, because the hook runs inside SQLAlchemy's commit.
        hook = partial(loop.call_soon, heard, topic, about)
        event.listen(session.sync_session, "after_commit", lambda _: hook(), once=True)
    connection = await session.connection()
    if connection.dialect.name == "postgresql":
        news = _BETWEEN.join((topic, about))  # said twice in one transaction it is heard once
        await connection.execute(_NOTIFY, {"channel": CHANNEL, "news": news})
        return
    newest = (await connection.execute(_TELL, {"topic": topic, "about": about})).scalar_one()
    if newest % FORGOTTEN_AT_ONCE == 0:
        await connection.execute(delete(NewsRow).where(NewsRow.id <= newest - KEPT))


class News(ABC):
    """Listeners of this process by topic; each database brings the news of others to them in its own way."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.heard = self.heard
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)
        self._watchers: defaultdict[tuple[str, str], list[asyncio.Event]] = defaultdict(list)
        self._task: asyncio.Task[None] | None = None
        self.stopping = asyncio.Event()
        """Set when nobody should wait any longer."""

    @abstractmethod
    async def _listen(self) -> None:
        """Bring the news of other processes until cancelled; ends with ``DatabaseAwayError`` when it cannot."""

    def on(self, topic: str, listener: Listener) -> None:
        """Call ``listener`` at all news of a topic; one's own may come twice."""
        self._listeners[topic].append(listener)

    @contextmanager
    def watching(self, topic: str, about: str) -> Iterator[asyncio.Event]:
        """An event that is set by all news about something, and when news may have been missed."""
        event_, key = asyncio.Event(), (topic, about)
        self._watchers[key].append(event_)
        try:
            yield event_
        finally:
            self._watchers[key].remove(event_)
            if not self._watchers[key]:
                del self._watchers[key]

    def heard(self, topic: str, about: str) -> None:
        for listener in self._listeners.get(topic, ()):
            listener(about)
        for watcher in self._watchers.get((topic, about), ()):
            watcher.set()

    async def start(self) -> None:
        """Begin to listen to other processes; this one is heard anyway."""
        self.stopping.clear()
        self._task = keep_doing(self._listen, "news", every_s=RECONNECT_S)

    async def stop(self) -> None:
        """Stop listening; who waits for news returns at once."""
        self.end_waits()
        await end(self._task)

    def end_waits(self) -> None:
        """Let all who watch look at once, and see that this process is stopping."""
        self.stopping.set()
        for watcher in chain.from_iterable(self._watchers.values()):
            watcher.set()

    def _missed(self) -> None:
        for listener in chain.from_iterable(self._listeners.values()):
            listener(None)
        for watcher in chain.from_iterable(self._watchers.values()):
            watcher.set()


class SqliteNews(News):
    """A table, read when another process has written to the file."""

    _seen: int | None = None

    async def start(self) -> None:
        """Begin where news stand now, before anything is remembered: all of that would else be taken for stale."""
        with suppress(DatabaseAwayError):
            await self._look()
        await super().start()

    async def _listen(self) -> None:
        # NOTE: asked directly on the event loop: it reads a counter in shared memory within microseconds and never
        # waits for a lock, while the driver's thread would cost a serving process a tenth of its time.
        with translated(sqlite3.Error), closing(sqlite3.connect(self._database.url.database or "")) as connection:
            version = None
            while True:
                (found,) = connection.execute("PRAGMA data_version").fetchone()
                if found != version:
                    version = found
                    await self._look()
                await asyncio.sleep(POLL_S)

    async def _look(self) -> None:
        async with self._database.read() as session:
            if self._seen is None:
                self._seen = await session.scalar(select(func.max(NewsRow.id))) or 0
                self._missed()
                return
            query = select(NewsRow.id, NewsRow.topic, NewsRow.about).where(NewsRow.id > self._seen)
            rows = (await session.execute(query.order_by(NewsRow.id))).all()
        if rows and rows[0].id > self._seen + 1:
            self._missed()
        for row in rows:
            self._seen = row.id
            self.heard(row.topic, row.about)


class PostgresNews(News):
    """``NOTIFY`` and one ``LISTEN`` connection."""

    async def _listen(self) -> None:
        # NOTE: imported here, because a planner on SQLite needs no psycopg.
        import psycopg

        conninfo = self._database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with translated(psycopg.OperationalError):
            connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True, connect_timeout=5)
            async with connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                self._missed()
                await self._follow(connection)

    async def _follow(self, connection: AsyncConnection[object]) -> None:
        while True:
            async for notice in connection.notifies(timeout=CHECK_S):
                match notice.payload.split(_BETWEEN):
                    case [topic, about]:
                        self.heard(topic, about)
                    case _:
                        log.warning("news_not_understood", payload=notice.payload[:200])
            async with asyncio.timeout(CHECK_S):
                await connection.execute("SELECT 1")


def build_news(database: Database) -> News:
    return SqliteNews(database) if database.dialect == "sqlite" else PostgresNews(database)
