"""The contract of the solve queue, on real databases of both kinds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.dialects import postgresql, sqlite

from planner_api.db.engine import Database
from planner_api.db.tables import PlanRow
from planner_api.jobs import repository
from planner_api.jobs.owner import this_process
from planner_api.jobs.repository import MAX_ABANDONED, MAX_FAILURES, Lease
from tests.planner.solving_help import build_queue, enqueue, insert_plan, row

Scenario = Callable[[Database, Any], Awaitable[None]]


def on(url: str, scenario: Scenario, **options: float) -> None:
    """Run a scenario with a queue on the database."""

    async def main() -> None:
        database = Database(url)
        try:
            await scenario(database, build_queue(database, **options))
        finally:
            await database.close()

    asyncio.run(main())


class Recorder:
    """A handler that finishes what it gets and remembers it; stops the work after ``until`` leases."""

    def __init__(self, database: Database, queue: Any, until: int) -> None:
        self.database, self.queue, self.until = database, queue, until
        self.stop = asyncio.Event()
        self.leases: list[Lease] = []

    async def __call__(self, lease: Lease) -> None:
        """Finish the lease."""
        async with self.database.write() as session:
            assert await self.queue.finish(session, lease)
        self.leases.append(lease)
        if len(self.leases) >= self.until:
            self.stop.set()

    async def work(self, timeout: float = 15.0, slots: int = 1) -> None:
        """Work until enough leases came."""
        await asyncio.wait_for(self.queue.work(self, self.stop, slots=slots), timeout)


async def work_for(queue: Any, handler: Any, seconds: float) -> None:
    """Work for a while, whatever comes."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    await queue.work(handler, stop)


def test_a_committed_plan_is_solved_once(database_url: str) -> None:
    """What was enqueued is handed to exactly one handler, once, and ends as done."""

    async def scenario(database: Database, queue: Any) -> None:
        await enqueue(database, queue, "p1", "p2", "p3")
        recorder = Recorder(database, queue, until=3)
        await recorder.work(slots=2)
        assert sorted(lease.plan_id for lease in recorder.leases) == ["p1", "p2", "p3"]
        for plan_id in ("p1", "p2", "p3"):
            found = await row(database, plan_id)
            assert (found.status, found.solves, found.attempt, found.lease_owner) == ("done", 1, 1, None)

    on(database_url, scenario)


def test_a_rolled_back_request_queues_nothing(database_url: str) -> None:
    """Row and job share the caller's transaction: when it rolls back, no worker hears of either."""

    async def scenario(database: Database, queue: Any) -> None:
        async def failing_request() -> None:
            async with database.write() as session:
                await insert_plan(session, "ghost")
                assert await queue.enqueue(session, "ghost")
                raise RuntimeError("the request fails after enqueueing")

        with pytest.raises(RuntimeError):
            await failing_request()
        await enqueue(database, queue, "real")
        recorder = Recorder(database, queue, until=1)
        await recorder.work()
        assert [lease.plan_id for lease in recorder.leases] == ["real"]
        assert await queue.reap() == []

    on(database_url, scenario)


def test_enqueueing_again_is_a_no_op_until_it_is_done(database_url: str) -> None:
    """A plan that waits or runs is not queued twice; a finished one may be queued for a fresh solve."""

    async def scenario(database: Database, queue: Any) -> None:
        await enqueue(database, queue, "p")

        async def again() -> bool:
            async with database.write() as session:
                return bool(await queue.enqueue(session, "p"))

        assert not await again()
        recorder = Recorder(database, queue, until=1)
        await recorder.work()
        assert await again()
        assert not await again()
        second = Recorder(database, queue, until=1)
        await second.work()
        assert second.leases == [Lease("p", 2)]
        assert (await row(database, "p")).solves == 2

    on(database_url, scenario)


def test_priority_comes_first(database_url: str) -> None:
    """A device that waits overtakes a release's fan-out."""

    async def scenario(database: Database, queue: Any) -> None:
        async with database.write() as session:
            for plan_id, priority in (("fan-out", 0), ("device", 10)):
                await insert_plan(session, plan_id)
                await queue.enqueue(session, plan_id, priority=priority)
        recorder = Recorder(database, queue, until=2)
        await recorder.work()
        assert [lease.plan_id for lease in recorder.leases] == ["device", "fan-out"]

    on(database_url, scenario)


def test_priority_outlives_failures_and_hand_backs(database_url: str) -> None:
    """A solve that returns to the queue keeps its place before the fan-out; one that is asked for gets such a place."""

    async def scenario(database: Database, queue: Any) -> None:
        async with database.write() as session:
            for plan_id, priority in (("asked for", 0), ("fan-out", 0), ("device", 10)):
                await insert_plan(session, plan_id)
                await queue.enqueue(session, plan_id, priority=priority)
        handed: list[str] = []
        stop = asyncio.Event()

        async def handler(lease: Lease) -> None:
            handed.append(lease.plan_id)
            if len(handed) == 1:
                assert await queue.fail(lease, "crashed", permanent=False)
            elif len(handed) == 2:
                assert await queue.hand_back(lease)
                async with database.write() as session:
                    assert await queue.hasten(session, "asked for", priority=11)
                    assert not await queue.hasten(session, "asked for", priority=11)
            else:
                async with database.write() as session:
                    assert await queue.finish(session, lease)
                    assert not await queue.hasten(session, lease.plan_id, priority=99)
                if len(handed) == 5:
                    stop.set()

        await asyncio.wait_for(queue.work(handler, stop), 20)
        assert handed == ["device", "device", "asked for", "device", "fan-out"]

    on(database_url, scenario)


def test_work_of_a_vanished_worker_is_done_by_another(database_url: str) -> None:
    """A lease whose holder vanished expires, is reaped and solved again; the fence refuses the first holder."""

    async def scenario(database: Database, queue: Any) -> None:
        await enqueue(database, queue, "p")
        async with database.write() as session:
            vanished = await repository.take(session, "another-machine|1|1", ttl_s=0.0)
        assert vanished is not None
        assert await queue.reap() == ["p"]
        assert await queue.reap() == []
        recorder = Recorder(database, queue, until=1)
        await recorder.work()
        assert recorder.leases == [Lease("p", vanished.attempt + 1)]
        async with database.write() as session:
            assert not await queue.finish(session, vanished)
        assert not await queue.renew(vanished)
        assert not await queue.hand_back(vanished)
        assert await queue.fail(vanished, "late", permanent=True) is None
        found = await row(database, "p")
        assert (found.status, found.solves, found.error) == ("done", 1, None)

    on(database_url, scenario)


def test_a_dead_process_of_this_machine_is_reaped_before_its_lease_expires(database_url: str) -> None:
    """A local worker's death is seen at once, so a restart need not wait for the lease."""

    async def scenario(database: Database, queue: Any) -> None:
        await enqueue(database, queue, "dead")
        await enqueue(database, queue, "alive")
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from planner_api.jobs.owner import this_process; print(this_process())",
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await child.communicate()
        async with database.write() as session:
            await repository.take(session, printed.decode().strip(), ttl_s=600.0)
            await repository.take(session, this_process(), ttl_s=600.0)
        assert await queue.reap() == ["dead"]
        assert (await row(database, "alive")).status == "solving"

    on(database_url, scenario)


def test_renewal_keeps_the_reaper_away(database_url: str) -> None:
    """A lease that is renewed in time outlives its first term."""

    async def scenario(database: Database, queue: Any) -> None:
        await enqueue(database, queue, "p")
        async with database.write() as session:
            lease = await repository.take(session, "another-machine|1|1", ttl_s=0.0)
        assert lease is not None
        assert await queue.renew(lease)
        assert await queue.reap() == []

    on(database_url, scenario)


def test_a_poisonous_job_fails_with_its_error_stored(database_url: str) -> None:
    """After its last allowed failure a plan is failed, keeps the cause, and is handed to nobody again."""

    async def scenario(database: Database, queue: Any) -> None:
        await enqueue(database, queue, "poison")
        seen: list[bool | None] = []
        stop = asyncio.Event()

        async def handler(lease: Lease) -> None:
            seen.append(await queue.fail(lease, f"died the {lease.attempt}. time", permanent=False))
            if not seen[-1]:
                stop.set()

        await asyncio.wait_for(queue.work(handler, stop), 20)
        assert seen == [True] * (MAX_FAILURES - 1) + [False]
        found = await row(database, "poison")
        assert (found.status, found.error, found.failures) == ("failed", "died the 3. time", MAX_FAILURES)
        handed: list[Lease] = []

        async def nobody(lease: Lease) -> None:
            handed.append(lease)

        await work_for(queue, nobody, 0.7)
        assert handed == []

    on(database_url, scenario)


def test_a_refused_problem_fails_at_once(database_url: str) -> None:
    """A permanent failure is not tried again."""

    async def scenario(database: Database, queue: Any) -> None:
        await enqueue(database, queue, "p")
        async with database.write() as session:
            lease = await repository.take(session, "me", 60.0)
        assert lease is not None
        assert await queue.fail(lease, "no processor supports op 'x'", permanent=True) is False
        assert (await row(database, "p")).status == "failed"

    on(database_url, scenario)


def test_a_job_that_takes_every_worker_down_ends_as_failed(database_url: str) -> None:
    """Abandoned too often, a plan stops circling."""

    async def scenario(database: Database, queue: Any) -> None:
        await enqueue(database, queue, "p")
        for _ in range(MAX_ABANDONED):
            async with database.write() as session:
                assert await repository.take(session, "another-machine|1|1", 0.0) is not None
            await queue.reap()
        found = await row(database, "p")
        assert found.status == "failed"
        assert found.error is not None
        assert "vanished" in found.error

    on(database_url, scenario)


def test_a_stop_finishes_what_runs(database_url: str) -> None:
    """Within the grace period a running handler may end by itself."""

    async def scenario(database: Database, queue: Any) -> None:
        await enqueue(database, queue, "p")
        stop = asyncio.Event()

        async def handler(lease: Lease) -> None:
            stop.set()
            await asyncio.sleep(0.3)
            async with database.write() as session:
                assert await queue.finish(session, lease)

        await asyncio.wait_for(queue.work(handler, stop), 15)
        assert (await row(database, "p")).status == "done"

    on(database_url, scenario, grace_s=10.0)


def test_a_stop_hands_back_what_does_not_end(database_url: str) -> None:
    """After the grace period handlers are cancelled; what they hand back is solved by the next worker."""

    async def scenario(database: Database, queue: Any) -> None:
        await enqueue(database, queue, "p")
        stop = asyncio.Event()

        async def handler(lease: Lease) -> None:
            stop.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                assert await queue.hand_back(lease)
                raise

        await asyncio.wait_for(queue.work(handler, stop), 15)
        found = await row(database, "p")
        assert (found.status, found.failures) == ("queued", 0)
        recorder = Recorder(database, queue, until=1)
        await recorder.work()
        assert recorder.leases == [Lease("p", 2)]

    on(database_url, scenario, grace_s=0.1)


def test_many_requests_at_once_queue_one_solve(database_url: str) -> None:
    """Fifty racing requests for one key, each inserting or losing, lead to a single lease."""

    async def scenario(database: Database, queue: Any) -> None:
        async with database.write() as session:
            await insert_plan(session, "other")
        insert = (sqlite if database.dialect == "sqlite" else postgresql).insert
        template = await row(database, "other")
        columns = {
            name: getattr(template, name)
            for name in ("model_hash", "soc", "frequency", "method", "objective", "jobs", "created_at")
        }

        async def request() -> bool:
            async with database.write() as session:
                fresh = await session.execute(
                    insert(PlanRow)
                    .values(id="key", **columns)
                    .on_conflict_do_nothing()
                    .returning(PlanRow.id)
                    .execution_options(synchronize_session=False)
                )
                return fresh.first() is not None and await queue.enqueue(session, "key")

        won = await asyncio.gather(*(request() for _ in range(50)))
        assert sum(won) == 1
        recorder = Recorder(database, queue, until=1)
        await recorder.work()
        await work_for(queue, recorder, 0.7)
        assert recorder.leases == [Lease("key", 1)]

    on(database_url, scenario)


def test_workers_that_look_at_once_take_different_plans(database_url: str) -> None:
    """However many look at the same moment, none waits for another's lease, and no plan is leased twice."""

    async def scenario(database: Database, queue: Any) -> None:
        plans = [f"p{number}" for number in range(8)]
        await enqueue(database, queue, *plans)
        leases = await asyncio.gather(*(queue._next() for _ in plans))
        assert sorted(lease.plan_id for lease in leases) == plans
        assert await queue._next() is None

    on(database_url, scenario)


def test_a_row_on_its_way_elsewhere_is_left_alone(database_url: str) -> None:
    """A row that someone else finished in the meantime is handed to nobody."""

    async def scenario(database: Database, queue: Any) -> None:
        await enqueue(database, queue, "p")
        async with database.write() as session:
            await session.execute(update(PlanRow).where(PlanRow.id == "p").values(status="done"))
        handed: list[Lease] = []

        async def handler(lease: Lease) -> None:
            handed.append(lease)

        await work_for(queue, handler, 0.7)
        assert handed == []

    on(database_url, scenario)
