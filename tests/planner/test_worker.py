"""Workers and the news they publish, on real databases and real child processes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text, update

from planner_api.db.engine import Database
from planner_api.db.migrate import upgrade
from planner_api.db.tables import PlanRow
from planner_api.solving.events import Events, build_events
from planner_api.solving.repository import MAX_ABANDONED
from planner_api.solving.worker import Worker, WorkerLimits
from tests.planner.postgres import Postgres
from tests.planner.solving_help import Store, build_queue, enqueue, row


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


def test_a_queued_plan_becomes_a_version_and_its_waiter_hears_of_it(database_url: str) -> None:
    """Solve, store and wake up, all the way through a child process."""

    async def scenario(setup: Setup) -> None:
        await setup.enqueue("p")
        waiter = asyncio.create_task(setup.newer("p", 1))
        async with Running(setup.worker()):
            assert await waiter == 2
        found = await row(setup.database, "p")
        assert (found.status, found.version, found.solves, found.makespan_us) == ("done", 2, 1, 3.0)
        assert setup.outcomes.seen == ["done"]

    on(database_url, scenario)


def test_two_workers_share_the_queue_without_solving_anything_twice(database_url: str) -> None:
    """Twelve plans, two workers: every plan is leased once."""

    async def scenario(setup: Setup) -> None:
        plans = [f"p{i}" for i in range(12)]
        await setup.enqueue(*plans)
        async with Running(setup.worker()), Running(setup.worker(slots=2)):
            for plan in plans:
                found = await setup.until(plan, "done")
                assert (found.attempt, found.solves, found.version) == (1, 1, 2)

    on(database_url, scenario)


def test_an_endless_solve_ends_as_failed_and_frees_its_waiters(sqlite_url: str) -> None:
    """Killed at its limit each time, it fails for good with the cause; waiters are not left hanging."""

    async def scenario(setup: Setup) -> None:
        await setup.enqueue("p")
        waiter = asyncio.create_task(setup.newer("p", 1, 90.0))
        async with Running(setup.worker("endless", timeout_s=0.3)):
            found = await setup.until("p", "failed")
            assert found.error is not None
            assert "time limit" in found.error
            assert await asyncio.wait_for(waiter, 10) is not None
        assert setup.outcomes.seen == ["retried", "retried", "failed"]

    on(sqlite_url, scenario)


def test_a_stopping_worker_hands_its_solve_to_the_next(postgres_url: str) -> None:
    """Graceful shutdown: what does not finish in time is queued again at once and solved by another worker."""

    async def scenario(setup: Setup) -> None:
        await setup.enqueue("p")
        async with Running(setup.worker("endless")) as first:
            await setup.until("p", "solving")
            await asyncio.sleep(0.3)
            first.stop.set()
            found = await setup.until("p", "queued", timeout_s=5.0)
            assert found.failures == 0
        async with Running(setup.worker()):
            await setup.until("p", "done")
        assert setup.outcomes.seen == ["handed_back", "done"]

    on(postgres_url, scenario, grace_s=0.1)


def test_a_worker_that_lost_its_lease_stores_nothing(postgres_url: str) -> None:
    """A paused worker that wakes up after another took over notices at its next renewal and drops the solve."""

    async def scenario(setup: Setup) -> None:
        await setup.enqueue("p")
        async with Running(setup.worker("slow")):
            await setup.until("p", "solving")
            async with setup.database.write() as session:
                await session.execute(
                    update(PlanRow).where(PlanRow.id == "p").values(attempt=PlanRow.attempt + 1, version=7)
                )
            deadline = time.monotonic() + 15
            while not setup.outcomes.seen:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
        found = await row(setup.database, "p")
        assert (setup.outcomes.seen, found.version, found.solves) == (["lost"], 7, 0)

    on(postgres_url, scenario, ttl_s=0.6)


def test_news_reach_other_processes(database_url: str) -> None:
    """A version published by one process reaches listeners and waiters of another, revoked tokens too."""

    async def scenario(setup: Setup) -> None:
        await setup.enqueue("p")
        elsewhere = Database(database_url)
        publisher = build_events(elsewhere)
        heard: list[tuple[str | None, int]] = []
        setup.events.on_plan(lambda plan_id, version: heard.append((plan_id, version)))
        waiter = asyncio.create_task(setup.newer("p", 1))
        await asyncio.sleep(0.3)
        async with elsewhere.write() as session:
            await session.execute(
                update(PlanRow).where(PlanRow.id == "p").values(version=2, solved_at=datetime.now(UTC))
            )
            await publisher.publish(session, "p", 2)
        assert await waiter == 2
        assert ("p", 2) in heard
        assert await setup.newer("p", 1) == 2, "a version that is there already needs no news"
        assert await setup.newer("p", 2, 0.1) is None
        await elsewhere.close()

    on(database_url, scenario)


def test_own_news_are_heard_at_commit(database_url: str) -> None:
    """A process hears at once of the versions it stores and the tokens it revokes, even while it is deaf to others."""

    async def scenario(setup: Setup) -> None:
        deaf = build_events(setup.database)
        plans: list[tuple[str | None, int]] = []
        tokens: list[str | None] = []
        deaf.on_plan(lambda plan_id, version: plans.append((plan_id, version)))
        deaf.on_token(tokens.append)
        async with setup.database.write() as session:
            await deaf.publish(session, "p", 2)
            await deaf.revoke(session, "hash")
        await asyncio.sleep(0)
        assert (plans, tokens) == ([("p", 2)], ["hash"])

    on(database_url, scenario)


def test_a_rolled_back_version_is_no_news(database_url: str) -> None:
    """Publishing belongs to the transaction."""

    async def scenario(setup: Setup) -> None:
        await setup.enqueue("p")

        async def failing() -> None:
            async with setup.database.write() as session:
                await setup.events.publish(session, "p", 2)
                raise RuntimeError("rolled back")

        waiter = asyncio.create_task(setup.newer("p", 1, 0.5))
        with pytest.raises(RuntimeError):
            await failing()
        assert await waiter is None

    on(database_url, scenario)


def test_a_database_that_goes_away_and_returns_loses_nothing() -> None:
    """PostgreSQL stops while solves run and wait; after it returns everything is solved once and waiters hear of it."""

    async def scenario(setup: Setup) -> None:
        plans = [f"p{i}" for i in range(4)]
        await setup.enqueue(*plans)
        waiter = asyncio.create_task(setup.newer("p3", 1, 90.0))
        async with Running(setup.worker("slow")):
            await setup.until("p0", "solving")
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(3.0)
            await asyncio.to_thread(server.start)
            for plan in plans:
                found = await setup.until(plan, "done", timeout_s=60.0)
                assert (found.solves, found.version) == (1, 2)
            assert await waiter == 2

    with tempfile.TemporaryDirectory(prefix="hope-pg-", ignore_cleanup_errors=True) as directory:
        server = Postgres(Path(directory) / "data", durable=False)
        server.start()
        try:
            url = server.create("hope")
            upgrade(url)
            on(url, scenario, ttl_s=2.0)
        finally:
            server.close()


def test_the_worker_command_waits_for_its_schema_and_stops_on_sigterm(postgres: Postgres) -> None:
    """Started before the migration it says so and waits; then its probe turns ready; SIGTERM ends it with status 0."""
    url = postgres.create("hope_unmigrated")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "planner_api", "worker", "--database", url, "--probe-port", str(port)]
    worker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def ready() -> int:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code
        except httpx.TransportError:
            return 0

    def until(status: int) -> None:
        deadline = time.monotonic() + 60
        while ready() != status:
            assert worker.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)

    try:
        until(503)
        upgrade(url)
        until(200)
        assert b"hope_database" in httpx.get(f"http://127.0.0.1:{port}/metrics").content
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=60)
    finally:
        worker.kill()
        postgres.drop("hope_unmigrated")
    assert worker.returncode == 0, said
    assert "hope-planner migrate" in said or "never migrated" in said
    assert all(json.loads(line)["event"] for line in said.splitlines() if line.startswith("{"))


def test_nobody_waits_for_a_plan_that_failed(database_url: str) -> None:
    """Who waits when another process stores the failure, and who comes later, is answered with what there is."""

    async def scenario(setup: Setup) -> None:
        await setup.enqueue("p")
        elsewhere = Database(database_url)
        waiter = asyncio.create_task(setup.newer("p", 1))
        await asyncio.sleep(0.2)
        async with elsewhere.write() as session:
            await session.execute(update(PlanRow).where(PlanRow.id == "p").values(status="failed"))
            await build_events(elsewhere).publish(session, "p", 0, settled=True)
        assert await waiter == 1
        assert await setup.newer("p", 1) == 1
        await elsewhere.close()

    on(database_url, scenario)


def test_news_that_nobody_understands_ends_nothing(postgres_url: str) -> None:
    """Whatever somebody else says on our channel, later news are heard."""

    async def scenario(setup: Setup) -> None:
        await setup.enqueue("p")
        waiter = asyncio.create_task(setup.newer("p", 1))
        await asyncio.sleep(0.3)
        async with setup.database.write() as session:
            for stray in ("", "plan", "plan x p", "plan 2", "token", "hello 3 p"):
                await session.execute(text("SELECT pg_notify('hope', :stray)"), {"stray": stray})
            await setup.events.publish(session, "p", 2)
        assert await waiter == 2

    on(postgres_url, scenario)


def test_news_are_heard_after_the_listener_lost_its_file(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that lost its connection looks at everything again, whatever the new connection counts from."""

    async def scenario(setup: Setup) -> None:
        await setup.enqueue("p")
        elsewhere = Database(sqlite_url)
        look = setup.events._look
        lost = asyncio.Event()

        async def lose_once(*arguments: Any) -> Any:
            if not lost.is_set():
                async with elsewhere.write() as session:
                    values = {"version": 2, "solved_at": datetime.now(UTC)}
                    await session.execute(update(PlanRow).where(PlanRow.id == "p").values(values))
                lost.set()
                raise sqlite3.OperationalError("disk I/O error")
            return await look(*arguments)

        waiter = asyncio.create_task(setup.newer("p", 1))
        await asyncio.sleep(0.2)
        monkeypatch.setattr(setup.events, "_look", lose_once)
        async with elsewhere.write() as session:
            await session.execute(update(PlanRow).where(PlanRow.id == "p").values(priority=1))
        assert await waiter == 2
        await elsewhere.close()

    on(sqlite_url, scenario)


def test_waiters_hear_of_a_plan_that_is_given_up(database_url: str) -> None:
    """A plan that outlived too many workers fails when it is reaped, and who waits for it waits no longer."""

    async def scenario(setup: Setup) -> None:
        await setup.enqueue("p")
        queue = build_queue(setup.database, setup.events)
        async with setup.database.write() as session:
            values = {
                "status": "solving",
                "attempt": 1,
                "failures": MAX_ABANDONED - 1,
                "lease_owner": "elsewhere|1|1",
                "lease_until": datetime.now(UTC) - timedelta(minutes=1),
            }
            await session.execute(update(PlanRow).where(PlanRow.id == "p").values(**values))
        waiter = asyncio.create_task(setup.newer("p", 1))
        await asyncio.sleep(0.3)
        assert not waiter.done()
        assert await queue.reap() == []
        assert await asyncio.wait_for(waiter, 5) == 1
        assert (await row(setup.database, "p")).status == "failed"

    on(database_url, scenario)
