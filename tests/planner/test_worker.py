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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update
from sqlalchemy.exc import DatabaseError

from planner_api.db.engine import Database
from planner_api.db.migrate import upgrade
from planner_api.db.tables import JobRow
from planner_api.jobs import worker
from planner_api.jobs.kind import Lease
from planner_api.jobs.process import JobProcess
from planner_api.jobs.queue import Queue
from planner_api.jobs.wanted import Wanted, put
from tests import ENDING_WITH_TESTS
from tests.planner.jobs_help import KIND, Count, Running, Setup, on
from tests.planner.postgres import Postgres


def test_a_queued_job_is_done_once(database_url: str) -> None:
    """Queue, compute and store, all the way through a child process that asks its parent."""

    async def scenario(setup: Setup) -> None:
        await setup.put("p", "nothing", "twice")
        async with Running(setup.worker("curious")):
            await setup.until_done("p")
            await setup.until(lambda: _is(setup, "twice", 2))
        assert [await setup.count(key) for key in ("p", "nothing", "twice")] == [1, 0, 2]
        assert setup.outcomes.seen == ["done"] * 4
        assert [await setup.row(key) for key in ("p", "nothing", "twice")] == [None] * 3

    on(database_url, scenario)


async def _is(setup: Setup, key: str, count: int) -> bool:
    return await setup.count(key) == count


def test_two_workers_share_the_queue_without_doing_anything_twice(database_url: str) -> None:
    """Twelve jobs, two workers: every job is done once."""

    async def scenario(setup: Setup) -> None:
        keys = [f"p{i}" for i in range(12)]
        await setup.put(*keys)
        async with Running(setup.worker()), Running(setup.worker(slots=2)):
            await setup.until_done(*keys)
        assert [await setup.count(key) for key in keys] == [1] * 12
        assert setup.outcomes.seen == ["done"] * 12

    on(database_url, scenario)


def test_a_worker_that_rests_gives_no_child_a_job(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that runs stands still, but one that is not there yet would start and compute."""
    order, run = list[str](), JobProcess.run

    async def seen(self: JobProcess, *given: Any) -> Any:
        order.append("given")
        return await run(self, *given)

    monkeypatch.setattr(JobProcess, "run", seen)

    async def scenario(setup: Setup) -> None:
        resting = setup.worker()
        resting.rest(True)
        async with Running(resting):
            await setup.put("p")
            await setup.until_running("p")
            await asyncio.sleep(0.02)
            order.append("awake")
            resting.rest(False)
            await setup.until_done("p")
        assert order == ["awake", "given"]

    on(sqlite_url, scenario)


def test_work_of_another_process_is_heard_of(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle worker that never looks by itself begins what another process queues."""
    monkeypatch.setattr(worker, "IDLE_S", 600.0)

    async def scenario(setup: Setup) -> None:
        elsewhere = Database(database_url)
        async with Running(setup.worker()):
            await setup.put("warm")
            await setup.until_done("warm")
            await asyncio.sleep(0.3)  # it is idle now
            async with elsewhere.write() as session:
                await put(session, Wanted(KIND, "heard"))
            await setup.until_done("heard")
        await elsewhere.close()

    on(database_url, scenario)


def test_an_endless_job_ends_as_failed(sqlite_url: str) -> None:
    """Killed at its limit each time, it fails for good with the cause."""

    async def scenario(setup: Setup) -> None:
        await setup.put("p")
        endless = setup.worker("endless", timeout_s=0.3)
        async with Running(endless):
            await setup.until(lambda: _is_failed(setup, "p"))
        (kind,) = endless._kinds.values()
        assert "time limit" in kind.failures[0]
        assert setup.outcomes.seen == ["retried", "retried", "failed"]

    on(sqlite_url, scenario)


async def _is_failed(setup: Setup, key: str) -> bool:
    return await setup.count(key, "failed") == 1


def test_a_worker_whose_child_does_not_start_leaves_jobs_to_others(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it takes one, the job has not failed, and a worker with a child does it."""
    monkeypatch.setattr(worker, "NO_CHILD_S", 0.02)

    async def scenario(setup: Setup) -> None:
        await setup.put("p")
        broken = setup.worker()
        for _, runner in broken._slots:
            runner._command = (sys.executable, "-c", "raise SystemExit(3)")
        async with Running(broken):
            await setup.until(lambda: _have_ended(setup, 4))
            assert {*setup.outcomes.seen} == {"handed_back"}
        async with Running(setup.worker()):
            await setup.until_done("p")
        assert setup.outcomes.seen[-1] == "done"
        assert await setup.count("p", "failed") == 0

    on(sqlite_url, scenario)


async def _have_ended(setup: Setup, many: int) -> bool:
    return len(setup.outcomes.seen) >= many


def test_a_look_that_fails_ends_no_slot(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the database says of the queue once, the next job is done."""
    monkeypatch.setattr(worker, "IDLE_S", 0.05)

    async def scenario(setup: Setup) -> None:
        look, failed = Queue.next, asyncio.Event()

        async def fail_once(queue: Queue, kinds: Sequence[str]) -> Any:
            if not failed.is_set():
                failed.set()
                raise DatabaseError("SELECT", {}, Exception("database disk image is malformed"))
            return await look(queue, kinds)

        monkeypatch.setattr(Queue, "next", fail_once)
        async with Running(setup.worker()):
            await failed.wait()
            await setup.put("p")
            await setup.until_done("p")

    on(sqlite_url, scenario)


def test_a_job_without_its_subject_fails(sqlite_url: str) -> None:
    """What it takes is gone: it is not tried again."""

    async def scenario(setup: Setup) -> None:
        await setup.put("gone")
        async with Running(setup.worker()):
            await setup.until(lambda: _is_failed(setup, "gone"))
        assert setup.outcomes.seen == ["failed"]

    on(sqlite_url, scenario)


def test_a_stopping_worker_finishes_what_ends_in_time(database_url: str) -> None:
    """Within the grace period a job that runs may end by itself."""

    async def scenario(setup: Setup) -> None:
        await setup.put("p")
        async with Running(setup.worker("held_up")) as running:
            await setup.until_running("p")
            running.stop.set()
            await asyncio.sleep(0.1)
            setup.goes_on.set()
        assert (await setup.count("p"), setup.outcomes.seen) == (1, ["done"])

    on(database_url, scenario)


def test_a_stopping_worker_hands_its_job_to_the_next(postgres_url: str) -> None:
    """Graceful shutdown: what does not finish in time waits again at once and is done by another worker."""

    async def scenario(setup: Setup) -> None:
        await setup.put("p")
        async with Running(setup.worker("endless")) as first:
            await setup.until_running("p")
            await asyncio.sleep(0.3)
            first.stop.set()
        row = await setup.row("p")
        assert row is not None
        assert (row.lease_owner, row.failures) == (None, 0)
        async with Running(setup.worker()):
            await setup.until_done("p")
        assert setup.outcomes.seen == ["handed_back", "done"]

    on(postgres_url, scenario, grace_s=0.1)


def test_a_worker_that_is_stopped_as_it_takes_a_job_hands_it_back(database_url: str) -> None:
    """However late the stop comes: a lease that nobody works under would stand until it expires."""

    async def scenario(setup: Setup) -> None:
        await setup.put("p")
        stop, take = asyncio.Event(), setup.queue.next

        async def taken(kinds: Sequence[str]) -> tuple[Lease | None, float | None]:
            found = await take(kinds)
            stop.set()
            await asyncio.sleep(0.2)  # the stop comes now: after the transaction, and before the job has begun
            return found

        setup.queue.next = taken
        await setup.worker().run(stop)
        row = await setup.row("p")
        assert row is not None
        assert (row.attempt, row.lease_owner, row.failures) == (1, None, 0)
        assert await setup.count("p") == 0

    on(database_url, scenario, grace_s=0.0)


def test_a_worker_that_lost_its_lease_stores_nothing(postgres_url: str) -> None:
    """A paused worker that wakes up after another took over notices at its next renewal and drops the job."""

    async def scenario(setup: Setup) -> None:
        await setup.put("p")
        async with Running(setup.worker("held_up")):
            await setup.until_running("p")
            async with setup.database.write() as session:
                await session.execute(update(JobRow).where(JobRow.key == "p").values(attempt=JobRow.attempt + 1))

            async def over() -> bool:
                return bool(setup.outcomes.seen)

            await setup.until(over)
        assert (setup.outcomes.seen, await setup.count("p")) == (["lost"], 0)

    on(postgres_url, scenario, ttl_s=0.6)


def test_a_worker_that_renews_too_late_goes_on(database_url: str) -> None:
    """A device that is slow, or slept: who finds its own lease expired is at the job still, and nobody else is."""

    async def scenario(setup: Setup) -> None:
        async def begun() -> bool:
            return bool(setup.queue.kept)

        await setup.put("p")
        async with Running(setup.worker("held_up")):
            await setup.until(begun)
            async with setup.database.write() as session:
                await session.execute(update(JobRow).values(lease_until=JobRow.queued_at))
            assert await setup.queue.reap({KIND: Count(setup.database)}) == []
            setup.goes_on.set()
            await setup.until_done("p")
        assert (setup.outcomes.seen, await setup.count("p"), setup.queue.kept) == (["done"], 1, set())

    on(database_url, scenario, ttl_s=600.0)


def test_a_database_that_goes_away_and_returns_loses_nothing() -> None:
    """PostgreSQL stops while jobs run and wait, and one of them ends; after it returns everything is done once."""

    async def scenario(setup: Setup) -> None:
        keys = [f"p{i}" for i in range(4)]
        await setup.put(*keys)
        async with Running(setup.worker("held_up")):
            await setup.until_running("p0")
            await asyncio.to_thread(server.stop)
            setup.goes_on.set()
            await asyncio.sleep(1.5)  # beyond the end of its lease
            await asyncio.to_thread(server.start)
            await setup.until_done(*keys)
        assert [await setup.count(key) for key in keys] == [1] * 4

    with tempfile.TemporaryDirectory(prefix="hope-pg-", ignore_cleanup_errors=True) as directory:
        server = Postgres(Path(directory) / "data", durable=False)
        server.start()
        try:
            url = server.create("hope")
            upgrade(url)
            on(url, scenario, ttl_s=1.0)
        finally:
            server.close()


def test_the_worker_command_waits_for_its_schema_and_stops_on_sigterm(postgres: Postgres) -> None:
    """Started before the migration it says so and waits; then its probe turns ready; SIGTERM ends it with status 0."""
    url = postgres.create("hope_unmigrated")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve = ["-m", "planner_api", "worker", "--database", url, "--probe-port", str(port)]
    process = subprocess.Popen([*ENDING_WITH_TESTS, sys.executable, *serve], stderr=subprocess.PIPE, text=True)

    def ready() -> int:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code
        except httpx.TransportError:
            return 0

    def until(status: int) -> None:
        deadline = time.monotonic() + 60
        while ready() != status:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)

    try:
        until(503)
        upgrade(url)
        until(200)
        assert b"hope_database" in httpx.get(f"http://127.0.0.1:{port}/metrics").content
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=180)
    finally:
        process.kill()
        postgres.drop("hope_unmigrated")
    assert process.returncode == 0, said
    assert "hope-planner migrate" in said or "never migrated" in said
    assert all(json.loads(line)["event"] for line in said.splitlines() if line.startswith("{"))
