"""What workers read and write: the problem behind a queued plan, and the improved version of it."""

from __future__ import annotations

from planner_api.db.engine import Database, WriteSession
from planner_api.errors import NotFoundError
from planner_api.jobs.events import Events
from planner_api.jobs.process import Solved
from planner_api.jobs.queue import SolveQueue
from planner_api.jobs.worker import Task, Worker, WorkerLimits
from planner_api.plans import repository
from planner_api.plans.loading import TooLargeError, load_problem
from planner_api.plans.service import store_version
from planner_api.plans.stored import serialise
from planner_api.profiles.predictions import Predictions
from planner_api.settings import Settings
from planner_api.web.metrics import Metrics


class RowPlanStore:
    """The ``PlanStore`` of a worker, on the plan rows."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._predictions = Predictions(database)

    async def load(self, plan_id: str) -> Task:
        """Return what to solve. Raises LookupError when the plan, its model or its profile is gone or too large."""
        async with self._database.read() as session:
            request = await repository.request_of(session, plan_id)
        if request is None:
            raise LookupError(f"there is no plan {plan_id}")
        try:
            graphs, profile = await load_problem(self._database, self._predictions, request)
        except (NotFoundError, TooLargeError) as error:
            raise LookupError(error.detail) from None
        return Task(graphs, profile, request)

    async def store(self, session: WriteSession, plan_id: str, solved: Solved) -> int:
        """Store an improved plan as the next version in the given transaction, and return that version.

        Raises:
            LookupError: the plan is gone.
        """
        version = await repository.next_version(session, plan_id)
        if version is None:
            raise LookupError(f"there is no plan {plan_id}")
        stored = serialise(solved.plan, plan_id=plan_id, version=version, provisional=False, solve_us=solved.solve_us)
        await store_version(session, stored, solved.plan, solved.solve_us)
        return version


def build_worker(database: Database, settings: Settings, queue: SolveQueue, events: Events, metrics: Metrics) -> Worker:
    """A worker as the settings want it, on the planner's own plans."""
    limits = WorkerLimits(
        slots=settings.worker_slots,
        budget_s=settings.solve_budget_s,
        timeout_s=max(settings.solve_timeout_s, settings.solve_budget_s + 5.0),
        memory_bytes=settings.solve_memory_bytes,
    )
    return Worker(database, queue, events, RowPlanStore(database), limits=limits, metrics=metrics)
