"""A tiny model, profile and plan rows for tests of the solve queue, and processes that work on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select, update

from hope_schema import Job, ModelGraph, Op, PlanRequest, Processor, Profile, Tensor
from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import ModelRow, PlanRow
from planner_api.jobs.events import Events, build_events
from planner_api.jobs.process import Solved
from planner_api.jobs.queue import SolveQueue
from planner_api.jobs.worker import Task, Worker, WorkerLimits
from planner_api.plans.repository import find
from planner_api.plans.store import RowPlanStore
from tests.planner.samples import Api

GRAPH = ModelGraph(
    name="chain",
    tensors=tuple(Tensor(name=f"t{i}", shape=(1, 4), dtype="float32") for i in range(4)),
    ops=tuple(Op(type="Relu", inputs=(f"t{i}",), outputs=(f"t{i + 1}",)) for i in range(3)),
    inputs=("t0",),
    outputs=("t3",),
)
PROCESSOR = Processor(id="cpu", runtime="ort", version="1", threads=1, core_class="big", resources=("cpu0",))
PROFILE = Profile(soc="soc", frequency="max", processors=(PROCESSOR,), version=1)
REQUEST = PlanRequest(jobs=(Job(model_hash="a" * 64),), soc="soc", frequency="max")
TASK = Task((GRAPH,), PROFILE, REQUEST)


def build_queue(
    database: Database, events: Events | None = None, *, ttl_s: float = 6.0, grace_s: float = 20.0
) -> SolveQueue:
    """A queue as each process has one."""
    return SolveQueue(database, events or build_events(database), ttl_s=ttl_s, grace_s=grace_s)


async def insert_plan(session: WriteSession, plan_id: str) -> None:
    """Insert a plan row as a first request does, and the model under it."""
    if await session.get(ModelRow, REQUEST.model_hash) is None:
        model = ModelRow(
            hash=REQUEST.model_hash,
            name="chain",
            ops=3,
            super_ops=3,
            graph_zstd=b"",
            figures_zstd=b"",
            graph_digest="0" * 64,
            created_at=datetime.now(UTC),
        )
        session.add(model)
        await session.flush()
    session.add(
        PlanRow(
            id=plan_id,
            model_hash=REQUEST.model_hash,
            jobs=[{"model_hash": REQUEST.model_hash}],
            soc="soc",
            frequency="max",
            method="auto",
            objective="latency",
            created_at=datetime.now(UTC),
            version=1,
        )
    )
    await session.flush()


async def enqueue(database: Database, queue: Any, *plan_ids: str) -> None:
    """Insert and queue plans, all in one transaction."""
    async with database.write() as session:
        for plan_id in plan_ids:
            await insert_plan(session, plan_id)
            await queue.enqueue(session, plan_id)


async def row(database: Database, plan_id: str) -> PlanRow:
    """The plan row as it stands."""
    async with database.read() as session:
        return (await session.scalars(select(PlanRow).where(PlanRow.id == plan_id))).one()


@dataclass
class Store:
    """A plan store that only counts versions."""

    task: Task = TASK

    async def load(self, plan_id: str) -> Task:
        """The same small problem for every plan."""
        return self.task

    async def store(self, session: WriteSession, plan_id: str, solved: Solved) -> int:
        """Raise the version."""
        query = (
            update(PlanRow)
            .where(PlanRow.id == plan_id)
            .values(version=PlanRow.version + 1, solved_at=datetime.now(UTC))
            .returning(PlanRow.version)
            .execution_options(synchronize_session=False)
        )
        return int((await session.execute(query)).scalar_one())


def improve(api: Api, wanted: str) -> int:
    """Store a better version of a plan as a worker does."""

    async def work() -> int:
        planner = api.app.planner
        assert planner.events is not None
        store = RowPlanStore(planner.database)
        task = await store.load(wanted)
        async with planner.database.read() as session:
            stored = await find(session, wanted)
        assert stored is not None
        reply = stored.reply()
        assert task.request.model_hash == reply.plan.model_hash
        async with planner.database.write() as session:
            version = await store.store(session, wanted, Solved(reply.plan, 1234.5))
            await planner.events.publish(session, wanted, version)
        return version

    return int(api.await_(work))


@dataclass
class Outcomes:
    """Remembers how solves ended."""

    seen: list[str] = field(default_factory=list)

    def solved(self, outcome: str, seconds: float) -> None:
        """See ``Metrics``."""
        self.seen.append(outcome)


@dataclass
class Setup:
    """One process's worth of planner: database, queue, events, and workers on demand."""

    database: Database
    events: Events
    outcomes: Outcomes
    ttl_s: float = 6.0
    grace_s: float = 10.0

    def worker(self, entry: str = "honest", timeout_s: float = 20.0, slots: int = 1) -> Worker:
        """A worker with a queue of its own, as another process would have."""
        return Worker(
            self.database,
            build_queue(self.database, self.events, ttl_s=self.ttl_s, grace_s=self.grace_s),
            self.events,
            Store(),
            limits=WorkerLimits(slots=slots, budget_s=1.0, timeout_s=timeout_s, memory_bytes=512 * 2**20),
            metrics=self.outcomes,
            entry=f"tests.planner.entries:{entry}",
        )

    async def enqueue(self, *plan_ids: str) -> None:
        """Insert and queue plans."""
        await enqueue(self.database, build_queue(self.database), *plan_ids)

    async def newer(self, plan_id: str, version: int, timeout_s: float = 20.0) -> int | None:
        """The version after this one, None when none came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.events.wait(plan_id, version)
        except TimeoutError:
            return None

    async def until(self, plan_id: str, status: str, timeout_s: float = 90.0) -> PlanRow:
        """Wait until the plan has the status."""
        deadline = time.monotonic() + timeout_s
        while (found := await row(self.database, plan_id)).status != status:
            assert time.monotonic() < deadline, f"{plan_id} is {found.status}, not {status}; error: {found.error}"
            await asyncio.sleep(0.05)
        return found


def on(url: str, scenario: Callable[[Setup], Awaitable[None]], **options: float) -> None:
    """Run a scenario on the database."""

    async def main() -> None:
        database = Database(url)
        events = build_events(database)
        await events.start()
        try:
            await scenario(Setup(database, events, Outcomes(), **options))
        finally:
            await events.stop()
            await database.close()

    asyncio.run(main())


class Running:
    """A worker that runs while the block does."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.stop = asyncio.Event()

    async def __aenter__(self) -> Running:
        self.task = asyncio.create_task(self._worker.run(self.stop))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 30)
