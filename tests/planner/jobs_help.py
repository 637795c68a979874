"""A kind of job that knows no plan, for tests of the queue, its workers and its news; and better plans on demand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sqlalchemy import select

from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import JobRow, UsageRow
from planner_api.devices import repository as usage
from planner_api.jobs.kind import JobError, Kind, Lease, Task
from planner_api.jobs.news import News, build_news
from planner_api.jobs.process import JobProcess
from planner_api.jobs.queue import Queue, take
from planner_api.jobs.wanted import Wanted, put
from planner_api.jobs.worker import Worker
from planner_api.plans.solve import BETTER, BetterPlan
from tests.planner.in_thread import computed
from tests.planner.samples import Api

KIND = "count"


class Count(Kind):
    """Counts how often each key was done, and keeps why one failed."""

    name: ClassVar[str] = KIND

    def __init__(
        self, database: Database, entry: str = "honest", timeout_s: float = 20.0, answering: asyncio.Event | None = None
    ) -> None:
        self.database = database
        self.function = f"tests.planner.entries:{entry}"
        self.timeout_s = timeout_s
        self.answering = answering
        self.failures: list[str] = []
        self.told: list[bytes] = []

    async def load(self, lease: Lease) -> Task | None:
        """The key; nothing of one that is called so."""
        if lease.key == "gone":
            raise JobError("it is gone", permanent=True)
        return None if lease.key == "nothing" else Task(lease.key.encode(), timeout_s=self.timeout_s)

    async def tell(self, question: bytes) -> bytes:
        """Say it twice, once questions are answered."""
        self.told.append(question)
        if self.answering is not None:
            await self.answering.wait()
        return question * 2

    async def store(self, session: WriteSession, lease: Lease, task: Task, prepared: bytes) -> bool:
        """Count it; a key that begins with "twice" is done once more."""
        assert prepared == lease.key.encode()
        return await usage.use(session, lease.key, "done", "", 1) < 2 and lease.key.startswith("twice")

    async def failed(
        self, session: WriteSession, lease: Lease, task: Task | None, error: str, *, permanent: bool
    ) -> None:
        """Remember why."""
        self.failures.append(error)
        await usage.use(session, lease.key, "failed", "", 1)


@dataclass
class Outcomes:
    """Remembers how jobs ended."""

    seen: list[str] = field(default_factory=list)

    def job(self, kind: str, outcome: str, seconds: float) -> None:
        """See ``Metrics``."""
        self.seen.append(outcome)


@dataclass
class Setup:
    """One process's planner: database, news, queue, and workers on demand; ``goes_on`` ends jobs that are held up."""

    database: Database
    news: News
    queue: Queue
    outcomes: Outcomes
    grace_s: float = 10.0
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    def worker(self, entry: str = "honest", timeout_s: float = 90.0, slots: int = 1) -> Worker:
        """A worker with children, as another process would have."""
        kind = Count(self.database, entry, timeout_s, self.goes_on if entry == "held_up" else None)
        return Worker(
            self.queue,
            [kind],
            [(KIND,)] * slots,
            lambda: JobProcess(memory_bytes=512 * 2**20),
            tell=kind.tell,
            count=self.outcomes.job,
            grace_s=self.grace_s,
        )

    async def put(self, *keys: str, priority: int = 0, again: bool = False, delay_s: float = 0.0) -> None:
        """Queue jobs, all in one transaction."""
        async with self.database.write() as session:
            await put(session, *(Wanted(KIND, key, priority, delay_s, again=again) for key in keys))

    async def take(self, owner: str = "me", ttl_s: float = 60.0, kinds: Sequence[str] = (KIND,)) -> Lease | None:
        """Lease the first job."""
        async with self.database.write() as session:
            return await take(session, kinds, owner, ttl_s)

    async def taken(self, owner: str = "me", ttl_s: float = 60.0) -> Lease:
        """Lease the first job, which is there."""
        lease = await self.take(owner, ttl_s)
        assert lease is not None
        return lease

    async def finish(self, lease: Lease) -> bool:
        """End a job."""
        async with self.database.write() as session:
            return await self.queue.finish(session, lease)

    async def row(self, key: str) -> JobRow | None:
        """The job as it stands; None when it has ended."""
        async with self.database.read() as session:
            return (await session.scalars(select(JobRow).where(JobRow.key == key))).first()

    async def count(self, key: str, what: str = "done") -> int:
        """How often a key was done, or failed for good."""
        async with self.database.read() as session:
            query = select(UsageRow.used).where(UsageRow.owner == key, UsageRow.quota == what)
            return await session.scalar(query) or 0

    async def until(self, check: Callable[[], Awaitable[bool]], timeout_s: float = 90.0) -> None:
        """Wait until something is true."""
        deadline = time.monotonic() + timeout_s
        while not await check():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    async def until_done(self, *keys: str, timeout_s: float = 90.0) -> None:
        """Wait until each key was done."""

        async def done() -> bool:
            return all([await self.count(key) for key in keys])

        await self.until(done, timeout_s)

    async def until_running(self, key: str) -> None:
        """Wait until somebody is at a job."""

        async def running() -> bool:
            found = await self.row(key)
            return found is not None and found.lease_owner is not None

        await self.until(running)


def on(url: str, scenario: Callable[[Setup], Awaitable[None]], *, ttl_s: float = 6.0, grace_s: float = 10.0) -> None:
    """Run a scenario on the database."""

    async def main() -> None:
        database = Database(url)
        news = build_news(database)
        await news.start()
        try:
            await scenario(Setup(database, news, Queue(database, news, ttl_s=ttl_s), Outcomes(), grace_s))
        finally:
            await news.stop()
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


def improve(api: Api, wanted: str) -> int:
    """Make a better version of a plan as a worker does; return its number."""
    return _solve(api, wanted)[1]


def solve_one(api: Api) -> str:
    """Make the better plan that is the first in the queue as a worker does; return its id."""
    return _solve(api, None)[0]


def _solve(api: Api, wanted: str | None) -> tuple[str, int]:
    async def work() -> tuple[str, int]:
        planner = api.app.planner
        kind = BetterPlan(planner.database, planner.settings.model_copy(update={"solve_budget_s": 0.05}))
        async with planner.database.write() as session:
            if wanted is not None:
                await put(session, Wanted(BETTER, wanted, priority=10**6))
            lease = await take(session, [BETTER], "test", 60.0)
        assert lease is not None
        assert wanted in (None, lease.key)
        task = await kind.load(lease)
        assert task is not None
        prepared = await computed(kind, lease, task)
        async with planner.database.write() as session:
            await kind.store(session, lease, task, prepared)
            assert await planner.queue.finish(session, lease)
        return lease.key, task.order.version + 1

    found: tuple[str, int] = api.await_(work)
    return found
