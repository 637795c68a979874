"""A planner's parts, put together once per process and started and stopped in order."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from planner_api.concurrency import Turns
from planner_api.db.engine import Database, parse_url
from planner_api.db.migrate import HEAD, SchemaError, current_revision, serves, upgrade
from planner_api.devices.quota import Quotas
from planner_api.errors import DatabaseAwayError
from planner_api.jobs.kind import Kind
from planner_api.jobs.news import build_news
from planner_api.jobs.process import JobProcess
from planner_api.jobs.queue import Queue
from planner_api.jobs.worker import Worker
from planner_api.plans.outdated import Outdated
from planner_api.plans.service import Plans
from planner_api.plans.solve import PLAN, BetterPlan, FirstPlan
from planner_api.plans.stored import build_cache
from planner_api.profiles import answering
from planner_api.profiles.fold import Fold
from planner_api.profiles.service import Profiles
from planner_api.settings import Settings
from planner_api.web.reader import Reader

KINDS: tuple[type[Kind], ...] = (Fold, Outdated, FirstPlan, BetterPlan)
LARGE_BODIES = 2
"""Bodies above ``web.body.SMALL_BYTES`` of one sender that are taken in at once."""
WARM, READS = "planner_api.plans.make:ready", "planner_api.profiles.reading"
"""What a child calls, or loads, when it starts: a worker's, and one that reads large bodies."""
PULSE_S, EMBEDDED_PULSE_S = 1.0, 10.0
"""How often a worker looks for the work of vanished ones; beside an agent it disturbs nobody's measurements."""


def prepare(database_url: str) -> None:
    """Bring a SQLite file to the newest schema; check that a PostgreSQL database, which others use too, is there.

    Raises:
        SchemaError: a PostgreSQL database that was not migrated, or any that an earlier planner wrote.
    """
    if parse_url(database_url).get_backend_name() == "sqlite":
        upgrade(database_url)
    elif not serves(found := current_revision(database_url)):
        raise SchemaError(
            f"the database is {'empty' if found is None else f'at revision {found}'}, not at {HEAD}; "
            "run: hope-planner migrate"
        )


def build_worker(
    queue: Queue,
    settings: Settings,
    count: Callable[[str, str, float], None] | None,
) -> Worker:
    """A worker as the settings want it: a child for what is quick, so that no device waits for a long solve, and others
    for everything. An embedded planner has one in all, which starts when it is needed.
    """
    kinds = [kind(queue.database, settings) for kind in KINDS]
    every = tuple(kind.name for kind in kinds)
    quick = tuple(name for name in every if name != BetterPlan.name)
    slots = [every] if settings.embedded else [quick, *[every] * settings.worker_slots]
    return Worker(
        queue,
        kinds,
        slots,
        partial(JobProcess, memory_bytes=settings.solve_memory_bytes, warm=WARM),
        tell=partial(answering.answer, queue.database),
        count=count,
        grace_s=0.0 if settings.embedded else settings.grace_s,
        pulse_s=EMBEDDED_PULSE_S if settings.embedded else PULSE_S,
        eager=not settings.embedded,
    )


class Planner:
    """The planner inside an agent's process, whose plans are final, and where nobody needs a token."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings.database_url, pool_size=settings.pool_size)
        self.quotas = Quotas(settings)
        self.large_bodies = Turns(
            "large_bodies", slots=None, each=LARGE_BODIES, waiting=32, refused=self.quotas.refused
        )
        self.reader = Reader(
            limit=settings.max_inflated_bytes,
            timeout_s=0.0 if settings.embedded else settings.read_timeout_s,
            memory_bytes=settings.read_memory_bytes,
            refused=self.quotas.refused,
            warm=READS,
        )
        self.news = build_news(self.database)
        self.queue = Queue(self.database, self.news, ttl_s=settings.lease_s)
        self.plan_cache = build_cache(settings.plan_cache_bytes)
        self.news.on(PLAN, lambda plan_id: self.plan_cache.forget(None if plan_id is None else (plan_id, None)))
        self.profiles = Profiles(self.database, settings, self.queue, self.quotas)
        self.plans = Plans(self.database, settings, self.plan_cache, self.queue, self.quotas)
        self._worker: Worker | None = None
        self._working: asyncio.Task[None] | None = None
        self._resting = 0
        self._stop_working = asyncio.Event()

    def start_worker(self, count: Callable[[str, str, float], None] | None = None) -> None:
        self._worker = build_worker(self.queue, self.settings, count)
        self._working = asyncio.create_task(self._worker.run(self._stop_working), name="worker")

    async def rest(self, resting: bool) -> None:
        """Have what its worker computes stand still, or go on once all who asked for that have ended."""
        self._resting = max(self._resting + (1 if resting else -1), 0)
        if self._worker is not None and self._resting == int(resting):
            self._worker.rest(resting)

    async def start(self) -> None:
        """Check or bring up the schema, and start the worker of an embedded planner.

        Raises:
            SchemaError: a PostgreSQL database that was not migrated.
        """
        await asyncio.to_thread(prepare, self.settings.database_url)
        if self.settings.embedded:
            self.start_worker()

    async def stop(self) -> None:
        """Finish or hand back what is under way, write down what was counted, end every child and connection."""
        self.news.end_waits()
        self._stop_working.set()
        if self._working is not None:
            await asyncio.gather(self._working, return_exceptions=True)
        await self.news.stop()
        await self.reader.kill()
        await self.profiles.stop()
        with suppress(DatabaseAwayError):  # the counts since the last time are lost, and nothing rests on them
            await self.plans.flush_counts()
        await self.database.close()
