"""A planner's parts, put together once per process and started and stopped in order."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from planner_api.db.engine import Database, parse_url
from planner_api.db.migrate import HEAD, SchemaError, current_revision, serves, upgrade
from planner_api.devices.quota import Quotas
from planner_api.errors import DatabaseAwayError
from planner_api.jobs.events import build_events
from planner_api.locks import Turns
from planner_api.plans.cache import PlanCache
from planner_api.plans.making import InCall, Making
from planner_api.plans.service import Plans
from planner_api.profiles.service import Profiles
from planner_api.settings import Settings
from planner_api.web.reader import Reader

LARGE_BODIES = 16
"""Bodies above ``http.body.SMALL_BYTES`` that are taken in at once."""


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


class Planner:
    """The planner inside an agent's process: plans are made in the call, and nobody needs a token."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings.database_url, pool_size=settings.pool_size)
        self.quotas = Quotas(settings)
        self.large_bodies = Turns("large_bodies", slots=LARGE_BODIES, each=2, waiting=32, refused=self.quotas.refused)
        self.reader = Reader(
            limit=settings.max_inflated_bytes,
            timeout_s=0.0 if settings.embedded else settings.read_timeout_s,
            memory_bytes=settings.read_memory_bytes,
            refused=self.quotas.refused,
        )
        self.events = build_events(self.database)
        self.plan_cache = PlanCache(settings.plan_cache_bytes)
        self.events.on_plan(self.plan_cache.forget)
        self.profiles = Profiles(self.database, settings, self.quotas)
        self.plans = Plans(self.database, self.profiles, self.plan_cache, self.events, self.build_making())

    def build_making(self) -> Making:
        """How this planner's plans come to be."""
        return InCall(self.database, self.settings, self.profiles)

    async def start(self) -> None:
        """Check or bring up the schema.

        Raises:
            SchemaError: a PostgreSQL database that was not migrated.
        """
        await asyncio.to_thread(prepare, self.settings.database_url)

    async def stop(self) -> None:
        """Write down what was counted and end every child and connection."""
        await self.reader.kill()
        with suppress(DatabaseAwayError):  # the counts since the last time are lost, and nothing rests on them
            await self.plans.flush_counts()
        await self.database.close()
