"""How the news of a plan's new version travels: to waiting requests, and to every replica's cache.

This process hears its own news at commit. Others: on PostgreSQL by ``NOTIFY`` in the storing transaction and one
``LISTEN`` connection per process; on SQLite by one look per process at ``PRAGMA data_version`` fifty times a second,
and a query only when another process has written.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import ColumnElement, event, select, text

from planner_api.db.chunks import chunks
from planner_api.db.engine import Database, WriteSession
from planner_api.db.outage import translated
from planner_api.db.tables import PlanRow, TokenRow
from planner_api.jobs.chores import end, keep_doing

if TYPE_CHECKING:
    from psycopg import AsyncConnection

log = structlog.get_logger(__name__)

POLL_S = 0.02
"""How often SQLite is asked whether another process wrote."""
OVERLAP = timedelta(seconds=5)
"""How far back a poll looks again: rows are stamped before they commit."""
CHANNEL = "hope"
CHECK_S = 5.0
"""A silent connection to PostgreSQL is checked this often: a vanished server sends no goodbye."""
RECONNECT_S = 0.5
"""Pause before listening again after the database went away."""

PlanListener = Callable[[str | None, int], None]
"""Called with (plan id, version); (None, 0) says that news may have been missed: forget everything."""
TokenListener = Callable[[str | None], None]
"""Called with the hash of a revoked token; None says that news may have been missed."""


class Events(ABC):
    """Listeners and waiters of this process; each database brings the news of others to them in its own way."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._plan_listeners: list[PlanListener] = []
        self._token_listeners: list[TokenListener] = []
        self._waiting: dict[str, dict[asyncio.Future[int], int]] = {}
        """By plan: who waits for it, each with the version it has already."""
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def publish(self, session: WriteSession, plan_id: str, version: int, *, settled: bool = False) -> None:
        """Announce a version with the caller's transaction: nobody hears of it unless that commits.

        ``settled``: no better version will follow (the solve failed), so nobody need wait any longer.
        """
        self._after_commit(session, lambda: self._plan_changed(plan_id, version, settled))
        await self._tell_others(session, f"{'settled' if settled else 'plan'} {version} {plan_id}")

    async def revoke(self, session: WriteSession, token_hash: str) -> None:
        """Announce a revoked token with the caller's transaction."""
        self._after_commit(session, lambda: self._token_revoked(token_hash))
        await self._tell_others(session, f"token {token_hash}")

    @staticmethod
    def _after_commit(session: WriteSession, call: Callable[[], None]) -> None:
        # NOTE: through call_soon, because the hook runs inside SQLAlchemy's commit.
        loop = asyncio.get_running_loop()
        event.listen(session.sync_session, "after_commit", lambda _session: loop.call_soon(call), once=True)

    @abstractmethod
    async def _tell_others(self, session: WriteSession, news: str) -> None:
        """Let other processes hear it with the caller's transaction."""

    @abstractmethod
    async def _listen(self) -> None:
        """Bring the news of other processes until cancelled; ends with ``DatabaseAwayError`` when it cannot."""

    def on_plan(self, listener: PlanListener) -> None:
        """Call ``listener`` at each new plan version; one's own may come twice."""
        self._plan_listeners.append(listener)

    def on_token(self, listener: TokenListener) -> None:
        """Call ``listener`` at each revoked token."""
        self._token_listeners.append(listener)

    async def start(self) -> None:
        """Begin to listen to other processes; this one is heard anyway."""
        self._stopping = False
        self._task = keep_doing(self._listen, "events", every_s=RECONNECT_S)

    async def stop(self) -> None:
        """Stop listening; waiters return at once."""
        self.end_waits()
        await end(self._task)

    def end_waits(self) -> None:
        """Let every waiter return at once, and every later one too."""
        self._stopping = True
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_result(0)

    async def wait(self, plan_id: str, version: int) -> int | None:
        """Wait until the plan has a version above ``version``, or is settled with the one it has.

        Returns:
            The newest version; None when this process stops.
        """
        if self._stopping:
            return None
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(plan_id, {})
        waiting[future] = version
        try:
            # Looked up after registering: a version committed in between is seen by one or by the other.
            newest, settled = await self._look_up(plan_id)
            if newest <= version and not settled:
                newest = await future
            return None if self._stopping else newest
        finally:
            del waiting[future]
            if not waiting and self._waiting.get(plan_id) is waiting:
                del self._waiting[plan_id]

    async def _look_up(self, plan_id: str) -> tuple[int, bool]:
        """The version that is stored, and whether it is settled."""
        async with self._database.read() as session:
            query = select(PlanRow.version, PlanRow.status).where(PlanRow.id == plan_id)
            found = (await session.execute(query)).first()
        return (0, False) if found is None else (found.version, found.status == "failed")

    def _plan_changed(self, plan_id: str, version: int, settled: bool = False) -> None:
        for listener in self._plan_listeners:
            listener(plan_id, version)
        for future, above in self._waiting.get(plan_id, {}).items():
            if (settled or version > above) and not future.done():
                future.set_result(max(version, above))

    def _token_revoked(self, token_hash: str) -> None:
        for listener in self._token_listeners:
            listener(token_hash)

    async def _missed(self) -> None:
        """News may have been lost: drop what listeners cached, and look again for every waiter."""
        for plan_listener in self._plan_listeners:
            plan_listener(None, 0)
        for token_listener in self._token_listeners:
            token_listener(None)
        await self._look_again()

    async def _look_again(self, *conditions: ColumnElement[bool]) -> None:
        """Look at the plans that are waited for, where the conditions hold."""
        for ids in chunks(list(self._waiting)):
            query = select(PlanRow.id, PlanRow.version, PlanRow.status).where(PlanRow.id.in_(ids), *conditions)
            async with self._database.read() as session:
                rows = (await session.execute(query)).all()
            for plan_id, version, status in rows:
                self._plan_changed(plan_id, version, status == "failed")


class SqliteEvents(Events):
    """Other processes are heard by polling."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._since = datetime.now(UTC)
        """When the last look began, and what it saw; kept over an outage, so that nothing of it is missed."""
        self._seen: dict[str, int] = {}

    async def _tell_others(self, session: WriteSession, news: str) -> None:
        """Nothing: they find it by its row."""

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
        started, since = datetime.now(UTC), self._since - OVERLAP
        async with self._database.read() as session:
            plans = await session.execute(select(PlanRow.id, PlanRow.version).where(PlanRow.solved_at >= since))
            found = {row.id: row.version for row in plans}
            # Told before anything else is asked: thousands may wait for this.
            for plan_id, version in found.items():
                if self._seen.get(plan_id) != version:
                    self._plan_changed(plan_id, version)
            tokens = (await session.scalars(select(TokenRow.token_hash).where(TokenRow.revoked_at >= since))).all()
        for token_hash in tokens:
            self._token_revoked(token_hash)
        await self._look_again(PlanRow.status == "failed")
        self._since, self._seen = started, found


class PostgresEvents(Events):
    """``NOTIFY`` and one ``LISTEN`` connection."""

    async def _tell_others(self, session: WriteSession, news: str) -> None:
        await session.execute(text("SELECT pg_notify(:channel, :news)"), {"channel": CHANNEL, "news": news})

    async def _listen(self) -> None:
        # NOTE: imported here, because a planner on SQLite needs no psycopg.
        import psycopg

        conninfo = self._database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with translated(psycopg.OperationalError):
            connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True, connect_timeout=5)
            async with connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                await self._missed()
                await self._follow(connection)

    async def _follow(self, connection: AsyncConnection[object]) -> None:
        while True:
            async for notice in connection.notifies(timeout=CHECK_S):
                match notice.payload.split(" "):
                    case ["plan" | "settled" as kind, version, plan_id] if version.isdecimal():
                        self._plan_changed(plan_id, int(version), kind == "settled")
                    case ["token", token_hash]:
                        self._token_revoked(token_hash)
                    case _:
                        log.warning("news_not_understood", payload=notice.payload[:200])
            async with asyncio.timeout(CHECK_S):
                await connection.execute("SELECT 1")


def build_events(database: Database) -> Events:
    """The events of this database's dialect."""
    return SqliteEvents(database) if database.dialect == "sqlite" else PostgresEvents(database)
