"""The planner of a fleet: what an embedded one has, and with it tokens, a solve queue, probes and housekeeping."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

import structlog

from planner_api.audit import service as audit
from planner_api.console.overview import Overviews
from planner_api.devices.guard import Tokens
from planner_api.devices.reports import Reports
from planner_api.errors import DatabaseAwayError
from planner_api.ops.probes import Probes
from planner_api.plans.making import Making, Queued
from planner_api.plans.store import build_worker
from planner_api.releases.service import Releases
from planner_api.runtime import Planner
from planner_api.settings import Settings
from planner_api.solving.queue import build_queue

if TYPE_CHECKING:
    from planner_api.console.oidc import Provider

T = TypeVar("T")

log = structlog.get_logger(__name__)

FLUSH_S = 5.0
"""How often hits are written to the plans' rows."""
SWEEP_S = 30.0
"""How often plans are compared with their profiles even when no profile changed here."""
PRUNE_S = 3600.0


class Service(Planner):
    """One process's planner of a fleet, beside any number of others on the same database."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.probes = Probes(self.database, self.metrics)
        self.tokens = Tokens(self.database, self.events)
        self.overviews = Overviews(self.database)
        self.provider = _provider(settings)
        self.reports = Reports(self.database)
        self.releases = Releases(self.database, self.splits)
        self._house: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._stop_working = asyncio.Event()

    def build_making(self) -> Making:
        """A first plan at once, better ones from the queue."""
        self.queue = build_queue(self.database, self.settings, self.events)
        self.making = Queued(self.database, self.settings, self.profiles, self.queue, self.quotas)
        return self.making

    async def start(self) -> None:
        """Start as every planner does, then begin to listen, to keep house and, where nobody else does, to solve."""
        await super().start()
        await self.events.start()
        await self.tokens.start()
        await self.releases.start()
        self._house = asyncio.create_task(self._keep_house(), name="housekeeping")
        in_process = self.settings.worker_in_process
        if in_process if in_process is not None else self.database.dialect == "sqlite":
            worker = build_worker(self.database, self.settings, self.queue, self.events, self.metrics)
            self._worker = asyncio.create_task(worker.run(self._stop_working), name="worker")

    async def stop(self) -> None:
        """Finish or hand back what is being solved, then end every task and connection."""
        self._stop_working.set()
        if self._worker is not None:
            await asyncio.gather(self._worker, return_exceptions=True)
        if self._house is not None:
            self._house.cancel()
            await asyncio.gather(self._house, return_exceptions=True)
        await self.releases.stop()
        await self.tokens.stop()
        await self.overviews.stop()
        await self.events.stop()
        await super().stop()

    async def _keep_house(self) -> None:
        """Fold uploads, re-solve what rests on moved figures, write down hits, forget what is old."""
        clock = asyncio.get_running_loop().time
        due = {"flush": clock() + FLUSH_S, "sweep": clock(), "prune": clock() + PRUNE_S}
        quiet_s, latest_s = self.settings.fold_interval_s, self.settings.fold_latest_s
        while True:
            changed = await _attempt(self.profiles.fold_pending(quiet_s=quiet_s, latest_s=latest_s))
            if changed or clock() >= due["sweep"]:
                due["sweep"] = clock() + SWEEP_S
                await _attempt(self.making.resolve_outdated())
            if clock() >= due["flush"]:
                due["flush"] = clock() + FLUSH_S
                await _attempt(self.plans.flush_counts())
            if clock() >= due["prune"]:
                due["prune"] = clock() + PRUNE_S
                await _attempt(self.profiles.prune())
                await _attempt(self.quotas.prune(self.database))
                await _attempt(audit.prune(self.database, self.settings.audit_days))
            await asyncio.sleep(self.settings.fold_interval_s)


def _provider(settings: Settings) -> Provider | None:
    """Whom people may sign in with, where one is set; what that takes is installed with the extra ``oidc``."""
    if settings.oidc_issuer is None:
        return None
    from planner_api.console.oidc import Provider

    return Provider(settings)


async def _attempt(chore: Awaitable[T]) -> T | None:
    """Do a chore; whatever goes wrong with it is logged, and neither the other chores nor the next round suffer."""
    try:
        return await chore
    except DatabaseAwayError as error:
        log.warning("housekeeping_lost_database", error=error.reason)
    except Exception:
        log.exception("housekeeping_failed")
    return None
