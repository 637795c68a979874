"""The planner of a fleet: what an embedded one has, and with it tokens, probes and housekeeping."""

import asyncio
import ctypes
import sys
from contextlib import suppress
from functools import partial

from planner_api.console.oidc import Provider
from planner_api.console.overview import Overviews
from planner_api.devices import audit, reports
from planner_api.devices.guard import Tokens
from planner_api.errors import DatabaseAwayError
from planner_api.jobs import workers
from planner_api.jobs.chores import end, keep_doing
from planner_api.plans.repository import count_by_status
from planner_api.profiles import oversight
from planner_api.profiles.inbox import count_waiting
from planner_api.rollout import counting
from planner_api.rollout.repository import count_by_state
from planner_api.rollout.service import Releases
from planner_api.rollout.splits import Splits
from planner_api.runtime import Planner
from planner_api.settings import Settings
from planner_api.web.metrics import Gauge, Metrics
from planner_api.web.probes import Probes
from planner_api.web.rate import RateLimit

FLUSH_S = 5.0
"""How often hits are written to the plans' rows."""
SEEN_S = 30.0
"""How often it is written down which devices were seen."""
LOOK_S = 1.0
"""How often a process looks for what other processes did to releases, and whether one wants to be steered."""
PRUNE_S = 3600.0
TRIM_S = 60.0
"""How often free memory is given back."""
GAUGES = (
    Gauge("plans", "status", count_by_status),
    Gauge("releases", "state", count_by_state),
    Gauge("inbox", "state", count_waiting),
    Gauge("jobs", "state", workers.count_by_state),
    Gauge("workers", "state", workers.count_looking),
)
"""What the metrics page asks the database for."""


class Service(Planner):
    """One process's planner of a fleet, beside any number of others on the same database."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.metrics = Metrics()
        self.metrics.refused = self.quotas.refused
        self.probes = Probes(self.database, self.metrics, GAUGES)
        self.tokens = Tokens(self.database, self.news)
        self.per_claim = RateLimit(settings.rate_per_claim, settings.burst_per_claim)
        self.overviews = Overviews(self.database)
        self.provider = Provider(settings) if settings.oidc_issuer is not None else None
        self.reports = reports.gathering(self.database, counting.listen)
        self.splits = Splits(self.database, self.plan_cache, self.news)
        self.plans.choose = self.splits.plan_version
        self.releases = Releases(self.database, self.splits)
        self.forget_device = oversight.forget_device
        self._chores: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start as every planner does, then begin to listen, to keep house and, where nobody else does, to solve."""
        await super().start()
        await self.news.start()
        await self.splits.look()
        quotas = partial(self.quotas.prune, self.database)
        entries = partial(audit.prune, self.database, self.settings.audit_days)
        self._chores = [
            keep_doing(self.plans.flush_counts, "counts", every_s=FLUSH_S, first_s=FLUSH_S),
            keep_doing(self.tokens.flush, "devices_seen", every_s=SEEN_S, first_s=SEEN_S),
            keep_doing(self.releases.look, "releases", every_s=LOOK_S, first_s=LOOK_S),
            keep_doing(give_back, "memory", every_s=TRIM_S, first_s=TRIM_S),
            keep_doing(self.profiles.prune, "prune_inbox", every_s=PRUNE_S, first_s=PRUNE_S),
            keep_doing(quotas, "prune_quotas", every_s=PRUNE_S, first_s=PRUNE_S),
            keep_doing(entries, "prune_audit", every_s=PRUNE_S, first_s=PRUNE_S),
        ]
        in_process = self.settings.worker_in_process
        if in_process if in_process is not None else self.database.dialect == "sqlite":
            self.start_worker(self.metrics.job)

    async def stop(self) -> None:
        await end(*self._chores)
        with suppress(DatabaseAwayError):
            await self.tokens.flush()
        await self.overviews.stop()
        await super().stop()


async def give_back() -> None:
    """Return free memory, where the C library can: glibc keeps what many small pieces were freed of."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        await asyncio.to_thread(trim, 0)
