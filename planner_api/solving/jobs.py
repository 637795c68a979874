"""The solve queue on PostgreSQL: procrastinate carries the jobs, the plan row stays the lock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import procrastinate
import psycopg
import structlog
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Status
from procrastinate.types import JSONDict

from planner_api.db.engine import Database, WriteSession
from planner_api.db.outage import translated
from planner_api.solving import repository
from planner_api.solving.events import Events
from planner_api.solving.queue import GRACE_S, LEASE_S, Handler, SolveQueue

log = structlog.get_logger(__name__)

QUEUE = "solve"
TASK = "solve"
ORPHAN_AFTER_S = 10.0
"""A row queued for longer without a live job gets a new one (its job was fetched by a worker that then vanished)."""
LOST = (ConnectorException, psycopg.OperationalError)
"""How procrastinate, and the driver beneath it, say that the database is away."""
RESTART_S = 0.5
"""Pause before the worker loop starts again after it lost its database."""


class ProcrastinateQueue(SolveQueue):
    """Jobs deferred on the caller's own connection, so that row and job commit together.

    A job only says which row to look at. Nothing is retried by procrastinate itself: :meth:`reap` queues the rows of
    vanished workers again and clears the jobs they left behind; a worker counts as gone after ``ttl_s`` without a
    heartbeat.
    """

    def __init__(self, database: Database, events: Events, *, ttl_s: float = LEASE_S, grace_s: float = GRACE_S) -> None:
        super().__init__(database, events, ttl_s=ttl_s, grace_s=grace_s)
        url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        # The pool waits this long for a database that went away before it gives up and the worker loop restarts.
        connector = procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=4, timeout=30.0)
        self._app = procrastinate.App(connector=connector)
        self._app.task(name=TASK, queue=QUEUE)(self._run_job)
        self._handler: Handler | None = None

    async def open(self) -> None:
        """See :class:`SolveQueue`; enqueueing alone does not need it."""
        with translated(*LOST):
            await self._app.open_async()

    async def close(self) -> None:
        """See :class:`SolveQueue`."""
        await self._app.close_async()

    async def _carry(self, session: WriteSession, plans: Sequence[tuple[str, int]]) -> None:
        if not plans:
            return
        connection = await driver_connection(session)
        for priority in sorted({priority for _plan_id, priority in plans}, reverse=True):
            deferrer = self._app.configure_task(TASK, connection=connection, priority=priority)
            tasks: list[JSONDict] = [{"plan_id": plan_id} for plan_id, at in plans if at == priority]
            with translated(*LOST):
                await deferrer.batch_defer_async(*tasks)

    async def _run_job(self, plan_id: str) -> None:
        assert self._handler is not None
        lease = await self._take(plan_id)
        if lease is not None:
            await self._handler(lease)

    async def work(self, handler: Handler, stop: asyncio.Event, *, slots: int = 1) -> None:
        """See :class:`SolveQueue`."""
        self._handler = handler
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                worker = asyncio.ensure_future(self._work_once(slots))
                await asyncio.wait({worker, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not worker.done():
                    worker.cancel()  # procrastinate's way to say: stop gracefully
                error = (await asyncio.gather(worker, return_exceptions=True))[0]
                if not stop.is_set():
                    log.warning("queue_unreachable", error=str(error)[:200])
                    await asyncio.wait({stopped}, timeout=RESTART_S)
        finally:
            stopped.cancel()

    async def _work_once(self, slots: int) -> None:
        await self._app.run_worker_async(
            queues=[QUEUE],
            concurrency=slots,
            install_signal_handlers=False,
            delete_jobs="always",
            fetch_job_polling_interval=1.0,
            update_heartbeat_interval=self.ttl_s / 3,
            stalled_worker_timeout=self.ttl_s,
            shutdown_graceful_timeout=self._grace_s,
        )

    async def reap(self) -> list[str]:
        """See :class:`SolveQueue`."""
        with translated(*LOST):
            await self._clear_stalled_jobs()
        expired = await super().reap()
        async with self._database.write() as session:
            orphans = await repository.orphans(session, QUEUE, ORPHAN_AFTER_S)
            await self._carry(session, orphans)
        return [*expired, *(plan_id for plan_id, _priority in orphans)]

    async def _clear_stalled_jobs(self) -> None:
        manager = self._app.job_manager
        for job in await manager.get_stalled_jobs(queue=QUEUE, seconds_since_heartbeat=self.ttl_s):
            try:
                await manager.finish_job(job, status=Status.FAILED, delete_job=True)
            except ConnectorException:
                log.info("stalled_job_cleared_elsewhere", job=job.id)
        await manager.prune_stalled_workers(self.ttl_s)


async def driver_connection(session: WriteSession) -> psycopg.AsyncConnection[Any]:
    """The psycopg connection under a session, inside the session's transaction."""
    pooled = await (await session.connection()).get_raw_connection()
    connection = pooled.driver_connection
    assert isinstance(connection, psycopg.AsyncConnection)
    return connection
