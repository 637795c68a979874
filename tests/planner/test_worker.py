"""Workers, on real databases and in real child processes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from sqlalchemy import update

from planner_api.db.migrate import upgrade
from planner_api.db.tables import PlanRow
from tests.planner.postgres import Postgres
from tests.planner.solving_help import Running, Setup, on, row


def test_a_queued_plan_becomes_a_version_and_its_waiter_hears_of_it(database_url: str) -> None:
    """Solve, store and wake up, all the way through a child process."""

    async def scenario(setup: Setup) -> None:
        await setup.enqueue("p")
        waiter = asyncio.create_task(setup.newer("p", 1))
        async with Running(setup.worker()):
            assert await waiter == 2
        found = await row(setup.database, "p")
        assert (found.status, found.version, found.solves) == ("done", 2, 1)
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
