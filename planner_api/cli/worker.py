"""``hope-planner worker``: solve what is queued until told to stop."""

import asyncio
import contextlib
import signal
from types import SimpleNamespace
from typing import Any

import structlog
import uvicorn

from planner_api.db.engine import Database
from planner_api.db.migrate import upgrade
from planner_api.errors import UnavailableError
from planner_api.jobs.chores import end
from planner_api.jobs.news import build_news
from planner_api.jobs.queue import Queue
from planner_api.runtime import build_worker
from planner_api.service import GAUGES
from planner_api.settings import Settings
from planner_api.web.application import App, build_routes
from planner_api.web.logs import configure
from planner_api.web.metrics import Metrics
from planner_api.web.observe import Observe
from planner_api.web.probes import Probes, router
from planner_api.web.protocol import BoundedProtocol

log = structlog.get_logger(__name__)

WAIT_S = 1.0
"""Pause between two looks at a database that is not ready."""


def work(settings: Settings, *, probe_host: str = "127.0.0.1", probe_port: int | None = None) -> int:
    """Run a worker until SIGTERM or SIGINT, then finish or hand back what runs; returns the exit status.

    With ``probe_port`` it also answers ``/healthz``, ``/readyz`` and ``/metrics`` there.
    """
    configure(settings)
    asyncio.run(_work(settings, probe_host, probe_port))
    return 0


async def _work(settings: Settings, probe_host: str, probe_port: int | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    database, metrics = Database(settings.database_url, pool_size=settings.pool_size), Metrics()
    probes = Probes(database, metrics, GAUGES)
    news = build_news(database)
    worker = build_worker(Queue(database, news, ttl_s=settings.lease_s), settings, metrics.job)
    served = None if probe_port is None else asyncio.create_task(_serve_probes(probes, metrics, probe_host, probe_port))
    try:
        await _until_ready(database, probes, stop)
        log.info("worker_started", slots=settings.worker_slots, dialect=database.dialect)
        await news.start()
        await worker.run(stop)
    finally:
        await end(served)
        await news.stop()
        await database.close()
        log.info("worker_stopped")


async def _until_ready(database: Database, probes: Probes, stop: asyncio.Event) -> None:
    """Wait for a database that answers and is migrated (a SQLite file is brought up here, as ``serve`` does)."""
    if database.dialect == "sqlite":
        await asyncio.to_thread(upgrade, database.url.render_as_string(hide_password=False))
    while not stop.is_set():
        try:
            return await probes.check_ready()
        except UnavailableError as error:
            log.warning("worker_waits", reason=error.detail)
            with contextlib.suppress(TimeoutError):  # nobody stopped it: it looks again
                await asyncio.wait_for(stop.wait(), WAIT_S)


class _ProbeServer(uvicorn.Server):
    """Leaves signals to the worker: its own would end the process before solves are handed back."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


async def _serve_probes(probes: Probes, metrics: Metrics, host: str, port: int) -> None:
    """Answer what every planner answers to those who run it, and nothing else."""
    routes = build_routes([router])
    # Whoever opens this port wants the metrics, whatever ``serve`` does with them.
    asked: Any = SimpleNamespace(probes=probes, settings=SimpleNamespace(metrics=True))
    config = uvicorn.Config(
        App(asked, routes, Observe(routes, metrics.request)),
        host=host,
        port=port,
        http=BoundedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        lifespan="off",
    )
    await _ProbeServer(config).serve()
