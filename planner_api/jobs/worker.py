"""A worker: leases plans, solves each in a killable child, stores the result under the fence, reaps the dead."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog

from hope_schema import ModelGraph, PlanRequest, Profile
from planner_api.db.engine import Database, WriteSession
from planner_api.errors import DatabaseAwayError
from planner_api.jobs.chores import end, keep_doing
from planner_api.jobs.events import Events
from planner_api.jobs.process import Solved, SolveError, SolverProcess
from planner_api.jobs.queue import SolveQueue
from planner_api.jobs.repository import Lease
from planner_api.jobs.solver import ENTRY

log = structlog.get_logger(__name__)

REAP_S = 1.0
"""How often every worker looks for the work of vanished ones."""
PERSIST_S = 120.0
"""How long a worker tries to store what it found while the database is away."""
RETRY_S = 0.5

T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """What one solve needs."""

    graphs: tuple[ModelGraph, ...]
    profile: Profile
    request: PlanRequest


class PlanStore(Protocol):
    """Where tasks come from and plans go to; the plans' own service implements it."""

    async def load(self, plan_id: str) -> Task:
        """Return what to solve.

        Raises:
            LookupError: the model or the profile is gone; the solve fails for good with this message.
        """
        ...

    async def store(self, session: WriteSession, plan_id: str, solved: Solved) -> int:
        """Store an improved plan as the next version, in the given transaction, and return that version."""
        ...


class Metrics(Protocol):
    """Where ended solves are counted."""

    def solved(self, outcome: str, seconds: float) -> None:
        """Count one ended solve."""
        ...


@dataclass(frozen=True)
class WorkerLimits:
    """What one solve may use.

    Attributes:
        slots: solves at once.
        budget_s: given to the solver.
        timeout_s: after this the child is killed.
        memory_bytes: address space beyond the libraries'.
    """

    slots: int
    budget_s: float
    timeout_s: float
    memory_bytes: int


class Worker:
    """Runs until told to stop; any number of them, in any number of processes, share the queue."""

    def __init__(
        self,
        database: Database,
        queue: SolveQueue,
        events: Events,
        store: PlanStore,
        *,
        limits: WorkerLimits,
        metrics: Metrics,
        entry: str = ENTRY,
    ) -> None:
        self._database = database
        self._queue = queue
        self._events = events
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._solvers: asyncio.Queue[SolverProcess] = asyncio.Queue()
        self._all = [
            SolverProcess(timeout_s=self._limits.timeout_s, memory_bytes=self._limits.memory_bytes, entry=entry)
            for _ in range(self._limits.slots)
        ]
        for solver in self._all:
            self._solvers.put_nowait(solver)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; then finish or hand back what runs, and end every child."""
        reaper = keep_doing(self._reap, "reaper", every_s=REAP_S)
        try:
            await self._queue.work(self._handle, stop, slots=self._limits.slots)
        finally:
            await end(reaper)
            await asyncio.gather(*(solver.kill() for solver in self._all))

    async def _reap(self) -> None:
        if reaped := await self._queue.reap():
            log.warning("work_reaped", plans=reaped)

    async def _handle(self, lease: Lease) -> None:
        """Solve one leased plan and end its lease in one way or another."""
        started = time.monotonic()
        solver = await self._solvers.get()
        outcome = "lost"
        try:
            async with self._kept(lease):
                outcome = await self._solve(lease, solver)
        except asyncio.CancelledError:
            with contextlib.suppress(DatabaseAwayError, TimeoutError):
                # Shielded: the hand-back must outlive the cancellation that asks for it.
                if await asyncio.shield(asyncio.wait_for(self._queue.hand_back(lease), 5.0)):
                    outcome = "handed_back"
            raise
        finally:
            self._solvers.put_nowait(solver)
            seconds = time.monotonic() - started
            log.info("solve_ended", plan=lease.plan_id, attempt=lease.attempt, outcome=outcome, seconds=seconds)
            self._metrics.solved(outcome, seconds)

    async def _solve(self, lease: Lease, solver: SolverProcess) -> str:
        try:
            task = await self._persistently(lambda: self._store.load(lease.plan_id))
            solved = await solver.solve(task.graphs, task.profile, task.request, budget_s=self._limits.budget_s)
        except (SolveError, LookupError) as error:
            permanent, reason = getattr(error, "permanent", True), str(error)
            log.warning("solve_failed", plan=lease.plan_id, attempt=lease.attempt, error=reason[:500])
            again = await self._persistently(lambda: self._queue.fail(lease, reason, permanent=permanent))
            return {True: "retried", False: "failed", None: "lost"}[again]
        return "done" if await self._persistently(lambda: self._commit(lease, solved)) else "lost"

    async def _commit(self, lease: Lease, solved: Solved) -> bool:
        async with self._database.write() as session:
            if not await self._queue.finish(session, lease):
                return False
            version = await self._store.store(session, lease.plan_id, solved)
            await self._events.publish(session, lease.plan_id, version)
        return True

    async def _persistently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the database is there; a long outage ends in the last error, and the lease expires."""
        deadline = time.monotonic() + PERSIST_S
        while True:
            try:
                return await call()
            except DatabaseAwayError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_S)

    @contextlib.asynccontextmanager
    async def _kept(self, lease: Lease) -> AsyncIterator[None]:
        """Renew the lease while the block runs; leave the block quietly when the lease is lost."""
        body = asyncio.current_task()
        assert body is not None
        lost = False

        async def renew() -> None:
            nonlocal lost
            while True:
                await asyncio.sleep(self._queue.ttl_s / 3)
                with contextlib.suppress(DatabaseAwayError):  # the fence decides in the end
                    if not await self._queue.renew(lease):
                        lost = True
                        body.cancel()
                        return

        renewer = asyncio.create_task(renew(), name=f"renew {lease.plan_id}")
        try:
            yield
        except asyncio.CancelledError:
            if not lost or body.uncancel() > 0:
                raise
        finally:
            await end(renewer)
