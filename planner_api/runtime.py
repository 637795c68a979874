"""The planner's parts, put together once per process and started and stopped in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import structlog

from planner_api.db.engine import Database, parse_url
from planner_api.db.migrate import HEAD, current_revision, upgrade
from planner_api.db.outage import AWAY
from planner_api.http.reader import Reader
from planner_api.locks import Turns
from planner_api.ops.metrics import Metrics
from planner_api.plans.cache import PlanCache
from planner_api.plans.service import Plans
from planner_api.profiles.service import Profiles
from planner_api.settings import Settings

if TYPE_CHECKING:
    from planner_api.devices.guard import Tokens
    from planner_api.plans.front import PlanFront
    from planner_api.solving.events import Events
    from planner_api.solving.queue import SolveQueue

T = TypeVar("T")

log = structlog.get_logger(__name__)

FLUSH_S = 5.0
"""How often hits are written to the plans' rows."""
SWEEP_S = 30.0
"""How often plans are compared with their profiles even when no profile changed here."""
PRUNE_S = 3600.0
LARGE_BODIES = 16
"""Bodies above ``http.body.SMALL_BYTES`` that are taken in at once."""


class SchemaError(RuntimeError):
    """The database is not at the schema this planner needs; the message says what to run."""


def prepare(database_url: str) -> None:
    """Bring a SQLite file to the newest schema; check that a PostgreSQL database, which others use too, is there.

    Raises:
        SchemaError: a PostgreSQL database that was not migrated.
    """
    if parse_url(database_url).get_backend_name() == "sqlite":
        upgrade(database_url)
    elif (found := current_revision(database_url)) != HEAD:
        raise SchemaError(
            f"the database is {'empty' if found is None else f'at revision {found}'}, not at {HEAD}; "
            "run: hope-planner migrate"
        )


class Planner:
    """One process's planner.

    In embedded mode there is no queue, no news to listen to and no token: plans are solved in the call.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings.database_url, pool_size=settings.pool_size)
        self.plan_cache = PlanCache(settings.plan_cache_bytes)
        self.profiles = Profiles(self.database, settings)
        self.queue: SolveQueue | None = None
        self.events: Events | None = None
        self.tokens: Tokens | None = None
        self.metrics = Metrics()
        self.large_bodies = Turns("large bodies", slots=LARGE_BODIES, each=2, waiting=32)
        self.reader = Reader(
            limit=settings.max_inflated_bytes,
            timeout_s=0.0 if settings.embedded else settings.read_timeout_s,
            memory_bytes=settings.read_memory_bytes,
        )
        self.front: PlanFront | None = None
        if not settings.embedded:
            # NOTE: imported here, because an agent with the planner inside needs none of it.
            from planner_api.devices.guard import Tokens
            from planner_api.ops.probes import Probes
            from planner_api.solving.news import build_events
            from planner_api.solving.production import build_queue

            self.probes = Probes(self.database, self.metrics)
            self.events = build_events(self.database)
            self.queue = build_queue(self.database, settings)
            self.tokens = Tokens(self.database, self.events)
            self.events.on_plan(self.plan_cache.forget)
        self.plans = Plans(self.database, settings, self.profiles, self.plan_cache, self.queue, self.events)
        self._tasks: list[asyncio.Task[None]] = []
        self._worker: asyncio.Task[None] | None = None
        self._stop_working = asyncio.Event()

    async def start(self) -> None:
        """Check or bring up the schema, then begin to listen and to keep house.

        Raises:
            SchemaError: a PostgreSQL database that was not migrated.
        """
        await asyncio.to_thread(prepare, self.settings.database_url)
        if self.events is None or self.queue is None or self.tokens is None:
            return
        await self.events.start()
        await self.queue.open()
        await self.tokens.start()
        self._tasks = [asyncio.create_task(self._keep_house(), name="housekeeping")]
        in_process = self.settings.worker_in_process
        if in_process if in_process is not None else self.database.dialect == "sqlite":
            from planner_api.solving.production import build_worker

            worker = build_worker(self.database, self.settings, self.queue, self.events, self.metrics)
            self._worker = asyncio.create_task(worker.run(self._stop_working), name="worker")

    def end_waits(self) -> None:
        """Answer requests that wait for a better plan at once: this process is about to stop."""
        if self.events is not None:
            self.events.end_waits()

    async def stop(self) -> None:
        """Finish or hand back what is being solved, then end every task and connection."""
        self._stop_working.set()
        if self._worker is not None:
            await asyncio.gather(self._worker, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.reader.stop()
        with suppress(*AWAY):
            await self.plans.flush_counts()
        if self.events is not None and self.queue is not None and self.tokens is not None:
            await self.tokens.stop()
            await self.queue.close()
            await self.events.stop()
        await self.database.close()

    async def _keep_house(self) -> None:
        """Fold uploads, re-solve what rests on moved figures, write down hits, forget old upload ids."""
        clock = asyncio.get_running_loop().time
        due = {"flush": clock() + FLUSH_S, "sweep": clock(), "prune": clock() + PRUNE_S}
        quiet_s, latest_s = self.settings.fold_interval_s, self.settings.fold_latest_s
        while True:
            changed = await _attempt(self.profiles.fold_pending(quiet_s=quiet_s, latest_s=latest_s))
            if changed or clock() >= due["sweep"]:
                due["sweep"] = clock() + SWEEP_S
                await _attempt(self.plans.resolve_outdated())
            if clock() >= due["flush"]:
                due["flush"] = clock() + FLUSH_S
                await _attempt(self.plans.flush_counts())
            if clock() >= due["prune"]:
                due["prune"] = clock() + PRUNE_S
                await _attempt(self.profiles.prune())
            await asyncio.sleep(self.settings.fold_interval_s)


async def _attempt(chore: Awaitable[T]) -> T | None:
    """Do a chore; whatever goes wrong with it is logged, and neither the other chores nor the next round suffer."""
    try:
        return await chore
    except AWAY as error:
        log.warning("housekeeping_lost_database", error=str(error)[:200])
    except Exception:
        log.exception("housekeeping_failed")
    return None
