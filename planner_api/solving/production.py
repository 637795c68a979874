"""The queue and the worker as the settings want them, on the planner's own tables."""

from __future__ import annotations

from planner_api.db.engine import Database
from planner_api.ops.metrics import Metrics
from planner_api.plans.store import RowPlanStore
from planner_api.settings import Settings
from planner_api.solving.events import Events
from planner_api.solving.jobs import ProcrastinateQueue
from planner_api.solving.lease import LeaseQueue
from planner_api.solving.queue import SolveQueue
from planner_api.solving.worker import Worker, WorkerLimits


def build_queue(database: Database, settings: Settings) -> SolveQueue:
    """The queue of this database's dialect."""
    kind = LeaseQueue if database.dialect == "sqlite" else ProcrastinateQueue
    return kind(database, ttl_s=settings.lease_s, grace_s=settings.grace_s)


def build_worker(database: Database, settings: Settings, queue: SolveQueue, events: Events, metrics: Metrics) -> Worker:
    """A worker as the settings want it."""
    limits = WorkerLimits(
        slots=settings.worker_slots,
        budget_s=settings.solve_budget_s,
        timeout_s=max(settings.solve_timeout_s, settings.solve_budget_s + 5.0),
        memory_bytes=settings.solve_memory_bytes,
    )
    return Worker(database, queue, events, RowPlanStore(database), limits=limits, metrics=metrics)
