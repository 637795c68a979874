"""The single door between the two wings: the planner's ASGI app, run inside this process.

No server to start and no other code path: the same client speaks to the same app, over httpx's ASGI transport
instead of a socket, on a SQLite file in the user's cache directory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final

import httpx
from pydantic import ValidationError

from agent_sdk.errors import InputError, PlannerUnavailableError
from agent_sdk.paths import CACHE_VARIABLE
from agent_sdk.planner.client import PlannerClient

EMBEDDED_URL: Final = "http://embedded.invalid"
"""Address that stands for the app in this process; it never reaches a network."""
BESIDE: Final = ("", "-wal", "-shm", "-journal")
"""How the names of a SQLite database's files end."""

LIBRARIES: Final = ("aiosqlite", "alembic", "httpcore", "numba", "planner_api.access")
"""Loggers behind the embedded planner. An application need not know that it has one: they speak of what went wrong,
unless it asks them for more."""


def _of_others(record: logging.LogRecord) -> bool:
    """Whether what httpx logs is of a request that really went somewhere."""
    return EMBEDDED_URL not in record.getMessage()


def _hush() -> None:
    logging.getLogger("httpx").addFilter(_of_others)
    for logger in map(logging.getLogger, LIBRARIES):
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def mend(database: Path) -> str:
    """Remove a database that is damaged, to be made anew; say so in a sentence, or nothing where it is sound."""
    if _is_sound(database):
        return ""
    with suppress(OSError):
        for end in BESIDE:
            database.with_name(database.name + end).unlink(missing_ok=True)
    return f"the embedded planner's database '{database}' was damaged and is begun anew"


def _is_sound(database: Path) -> bool:
    if not database.is_file():
        return not os.path.lexists(database)
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as opened:
            return bool(opened.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.OperationalError:  # locked, or without a right to read: nothing is wrong with what it holds
        return True
    except sqlite3.DatabaseError:
        return False


@asynccontextmanager
async def embedded_client(database: Path) -> AsyncIterator[PlannerClient]:
    """Yield a client of a planner that lives in this process and keeps its data in ``database``.

    Raises:
        PlannerUnavailableError: the ``planner`` extra is not installed, or the app could not start.
        InputError: a ``HOPE_...`` variable holds what the planner cannot use.
    """
    try:
        from sqlalchemy import URL

        from planner_api.app import create_app
        from planner_api.settings import Settings
    except ImportError as error:
        raise PlannerUnavailableError(
            f"the embedded planner is not installed ({error}); install the 'planner' extra "
            "(in a checkout: pip install '.[planner]'), or give a planner's URL"
        ) from error
    _hush()
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlannerUnavailableError(
            f"the embedded planner has no place for its database ({error}); "
            f"set {CACHE_VARIABLE} to a directory that can be written"
        ) from error
    if os.path.lexists(database) and not database.is_file():
        raise PlannerUnavailableError(f"the embedded planner's database '{database}' is no file")
    url = URL.create("sqlite", database=str(database)).render_as_string()
    try:
        settings = Settings(database_url=url, embedded=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = f"{Settings.model_config['env_prefix']}{first['loc'][0]}".upper()
        raise InputError(f"{name}={first['input']!r} cannot be used: {first['msg']}") from error
    app = create_app(settings)
    async with _lifespan(app, f"the embedded planner on '{database}'"):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with PlannerClient(EMBEDDED_URL, transport=transport, attempts=1, deadline_s=None) as client:
            # NOTE: mappers, routes and statements are built when they are first needed; that belongs to starting up.
            async with httpx.AsyncClient(transport=transport, base_url=EMBEDDED_URL) as starter:
                await starter.get("/plans/none")
            yield client


@asynccontextmanager
async def _lifespan(app: Any, name: str) -> AsyncIterator[None]:
    """Start an ASGI app and stop it again, as a server would (ASGI spec, "Lifespan protocol")."""
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    running = asyncio.create_task(app(scope, incoming.get, outgoing.put))

    async def ask(event: str) -> None:
        await incoming.put({"type": f"lifespan.{event}"})
        answer = asyncio.create_task(outgoing.get())
        await asyncio.wait({answer, running}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            message = answer.result()
        else:
            answer.cancel()
            error = running.exception()
            message = {"type": "ended", "message": str(error).splitlines()[0] if error else "the app ended"}
        if message["type"] != f"lifespan.{event}.complete":
            reason = message.get("message", "") or message["type"]
            raise PlannerUnavailableError(f"{name} failed at {event}: {reason}")

    try:
        await ask("startup")
        try:
            yield
        finally:
            await ask("shutdown")
    finally:
        running.cancel()
        # NOTE: not awaited itself, because what it failed with has been told above in one sentence.
        await asyncio.wait({running})
