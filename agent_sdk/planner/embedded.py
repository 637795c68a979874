"""The single door between the two wings: the planner's ASGI app, run inside this process.

No server to start and no other code path: the same client speaks to the same app, over httpx's ASGI transport
instead of a socket, on a SQLite file in the user's cache directory. It starts when there is something to ask or to
tell: whether a copy is still the newest plan, its database says without it.
"""

import asyncio
import logging
import os
import sqlite3
import sys
import weakref
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final

import httpx
from anyio import move_on_after
from anyio.from_thread import start_blocking_portal
from pydantic import ValidationError

from agent_sdk.errors import InputError, PlannerUnavailableError
from agent_sdk.paths import CACHE_VARIABLE
from agent_sdk.planner.client import PlannerClient, ServedPlan

EMBEDDED_URL: Final = "http://embedded.invalid"
"""Address that stands for the app in this process; it never reaches a network."""
BESIDE: Final = ("", "-wal", "-shm", "-journal")
"""How the names of a SQLite database's files end."""

STOP_S: Final = 10.0
"""Seconds that it may take to stop; what it answered is in its database by then."""
LIBRARIES: Final = ("aiosqlite", "alembic", "httpcore", "planner_api.access")
"""Loggers behind the embedded planner. An application need not know that it has one: they speak of what went wrong,
unless it asks them for more."""

log = logging.getLogger(__name__)


def _of_others(record: logging.LogRecord) -> bool:
    """Whether what httpx logs is of a request that really went somewhere."""
    return EMBEDDED_URL not in record.getMessage()


def _hush() -> None:
    logging.getLogger("httpx").addFilter(_of_others)
    for logger in map(logging.getLogger, LIBRARIES):
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def mend(database: Path) -> str:
    """Remove a database that is damaged, to be made anew, and say so; nothing where it is sound, or has to stay."""
    if _is_sound(database):
        return ""
    try:
        _remove(database)
    except OSError:  # it stays damaged, which the planner says itself
        return ""
    return f"the embedded planner's database '{database}' was damaged and is begun anew"


def _remove(database: Path) -> None:
    for end in BESIDE:
        database.with_name(database.name + end).unlink(missing_ok=True)


def _is_sound(database: Path) -> bool:
    if not database.is_file():
        return not os.path.lexists(database)
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as opened:
            return bool(opened.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.OperationalError:  # locked, or without a right to read: nothing is wrong with what it holds
        return True
    except sqlite3.DatabaseError:  # not a database any more
        return False


def stands(database: Path, copy: ServedPlan) -> bool:
    """Whether an embedded planner would confirm a copy, as its database tells without it."""
    try:
        from planner_api.plans.standing import standing_tag
    except ImportError:  # what is said of that is said when one is started
        return False
    return copy.etag == standing_tag(database, copy.reply.plan_id)


class Door(httpx.BaseTransport):
    """The planner's ASGI app as a transport: it runs on an event loop in a thread of its own.

    Who no longer waits for an answer cancels nothing: what the app has begun, a transaction say, it ends.
    """

    def __init__(self, app: Any) -> None:
        self._app, self._planner = httpx.ASGITransport(app=app, raise_app_exceptions=False), app.planner
        self._stack = ExitStack()
        self._answering: set[asyncio.Task[Any]] = set()
        self._stopping = False
        try:
            self._portal = self._stack.enter_context(start_blocking_portal("asyncio", name="hope-planner"))
            self._portal.call(app.planner.start)
            self._stack.callback(self._stop, app.planner)
            # NOTE: mappers, routes and statements are built when they are first needed; that belongs to starting up.
            self.handle_request(httpx.Request("GET", f"{EMBEDDED_URL}/plans/none"))
        except BaseException:
            # NOTE: told of the error, the portal cancels what still runs there; without, it would wait for it for ever.
            self._stack.__exit__(*sys.exc_info())
            raise
        # NOTE: a planner that nobody closed must end before the interpreter does: the portal, finalised as late as
        # that, waits for ever for a daemon thread that runs no more.
        weakref.finalize(self, _abandon, self._stack, os.getpid())

    def _stop(self, planner: Any) -> None:
        async def stop() -> None:
            self._stopping = True
            with move_on_after(STOP_S):
                # Before the planner: an answer under way would leave a connection behind that nobody closes.
                for task in self._answering:
                    task.cancel()
                if self._answering:
                    await asyncio.wait(self._answering)
                await planner.stop()

        self._portal.call(stop)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        sent = httpx.Request(request.method, request.url, headers=request.headers, content=request.read())

        async def answer() -> httpx.Response:
            task = asyncio.current_task()
            assert task is not None
            if self._stopping:
                raise asyncio.CancelledError
            self._answering.add(task)
            try:
                response = await self._app.handle_async_request(sent)
                body = b"".join([chunk async for chunk in response.aiter_raw()])  # compressed, as over a socket
            finally:
                self._answering.discard(task)
            return httpx.Response(response.status_code, headers=response.headers, stream=httpx.ByteStream(body))

        return self._portal.call(answer)

    def rest(self, resting: bool) -> None:
        """Have what the planner computes stand still, or go on."""
        with suppress(RuntimeError):  # it was closed meanwhile
            self._portal.call(self._planner.rest, resting)

    def close(self) -> None:
        """Stop the planner and end the loop's thread, whatever is under way there. Idempotent."""
        _abandon(self._stack, os.getpid())


def _abandon(stack: ExitStack, process: int) -> None:
    """End a planner, cancelling what still runs there; in a forked child there is nothing to end."""
    if process != os.getpid():
        return
    gone = PlannerUnavailableError("the planner is closed")
    # At exit thread pools are shut already, so an embedded planner fails at its end, in whatever part of it is next;
    # nobody is left to be told, and what it answered is in its database.
    with suppress(Exception):
        stack.__exit__(type(gone), gone, None)


def embedded_client(database: Path) -> PlannerClient:
    """Return a client of a planner that lives in this process and keeps its data in ``database``.

    Raises:
        PlannerUnavailableError: the ``planner`` extra is not installed, or the app could not start.
        InputError: a ``HOPE_...`` variable holds what the planner cannot use.
    """
    try:
        from sqlalchemy import URL

        from planner_api.db.migrate import SchemaError
        from planner_api.db.outage import translated
        from planner_api.embedded import create_app
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
    try:
        with translated():
            try:
                door = Door(create_app(settings))
            except SchemaError as error:  # what it holds can be measured again
                log.warning("the embedded planner begins anew: %s", error)
                _remove(database)
                door = Door(create_app(settings))
    except Exception as error:
        reason = next(iter(str(getattr(error, "reason", error)).splitlines()), type(error).__name__)
        raise PlannerUnavailableError(f"the embedded planner on '{database}' does not start: {reason}") from error
    return PlannerClient(EMBEDDED_URL, transport=door, attempts=1, deadline_s=None, rest=door.rest)
