"""The news on PostgreSQL: ``NOTIFY`` in the storing transaction, one ``LISTEN`` connection per process."""

from __future__ import annotations

import asyncio

import psycopg
import structlog
from psycopg import sql
from sqlalchemy import text

from planner_api.db.engine import WriteSession
from planner_api.db.outage import translated
from planner_api.solving.events import Events

log = structlog.get_logger(__name__)

CHANNEL = "hope"
CHECK_S = 5.0
"""A silent connection is checked this often: a vanished server sends no goodbye."""


class PostgresEvents(Events):
    """``NOTIFY`` and one ``LISTEN`` connection."""

    async def _tell_others(self, session: WriteSession, news: str) -> None:
        await session.execute(text("SELECT pg_notify(:channel, :news)"), {"channel": CHANNEL, "news": news})

    async def _listen(self) -> None:
        conninfo = self._database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with translated(psycopg.OperationalError):
            connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True, connect_timeout=5)
            async with connection:
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
                await self._missed()
                await self._follow(connection)

    async def _follow(self, connection: psycopg.AsyncConnection[object]) -> None:
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
