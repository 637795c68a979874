"""The contract of the queue, on real databases of both kinds."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import ColumnElement, delete, literal, update

from planner_api.db.tables import JobRow, WorkerRow
from planner_api.db.types import UtcDateTime
from planner_api.jobs import queue, workers
from planner_api.jobs.queue import MAX_ABANDONED, MAX_FAILURES
from planner_api.jobs.wanted import Wanted, now, put
from planner_api.jobs.workers import this_process
from tests.planner.jobs_help import KIND, Count, Running, Setup, on


def test_a_committed_job_is_handed_out_once(database_url: str) -> None:
    """What was queued is leased once, and gone when it has ended."""

    async def scenario(setup: Setup) -> None:
        await setup.put("a", "b", "c")
        leases = [await setup.taken() for _ in range(3)]
        assert sorted(lease.key for lease in leases) == ["a", "b", "c"]
        assert await setup.take() is None
        for lease in leases:
            assert await setup.finish(lease)
            assert not await setup.finish(lease), "it has ended already"
            assert await setup.row(lease.key) is None

    on(database_url, scenario)


def test_a_rolled_back_request_queues_nothing(database_url: str) -> None:
    """The job shares the caller's transaction: when it rolls back, no worker hears of it."""

    async def scenario(setup: Setup) -> None:
        async def failing_request() -> None:
            async with setup.database.write() as session:
                await put(session, Wanted(KIND, "ghost"))
                raise RuntimeError("the request fails after queueing")

        with pytest.raises(RuntimeError):
            await failing_request()
        assert await setup.take() is None

    on(database_url, scenario)


def test_jobs_put_together_are_each_their_own(database_url: str) -> None:
    """Of 1 500 in one call each has an id, the same when it is put again, and is what was asked for."""

    async def scenario(setup: Setup) -> None:
        async with setup.database.write() as session:
            (first,) = (await put(session, Wanted(KIND, "first"))).values()
            wanted = [
                Wanted(KIND, str(i), i % 7, float(i), first if i % 3 else None, bool(i % 2), "me" if i % 5 else None)
                for i in range(1500)
            ]
            ids = await put(session, *wanted)
            assert await put(session, *wanted) == ids
        assert len(set(ids.values())) == 1500
        for i in (700, 701):
            row = await setup.row(str(i))
            assert row is not None
            shifts = [round((moment - row.queued_at).total_seconds()) for moment in (row.rank, row.not_before)]
            found = [row.id, row.priority, *shifts, row.after, row.asked_by]
            assert found == [ids[KIND, str(i)], i % 7, -(i % 7), i, first if i % 3 else None, "me" if i % 5 else None]

    on(database_url, scenario)


def test_many_requests_at_once_queue_one_job(database_url: str) -> None:
    """Fifty racing requests for one key lead to a single lease."""

    async def scenario(setup: Setup) -> None:
        await asyncio.gather(*(setup.put("key") for _ in range(50)))
        assert (await setup.taken()).key == "key"
        assert await setup.take() is None

    on(database_url, scenario)


def test_what_is_asked_for_while_it_runs_is_done_again_where_that_matters(database_url: str) -> None:
    """A job that is under way is not queued beside itself; one whose subject changed meanwhile follows itself."""

    async def scenario(setup: Setup) -> None:
        await setup.put("same", "changed")
        leases = {lease.key: lease for lease in [await setup.taken(), await setup.taken()]}
        await setup.put("same")
        await setup.put("changed", again=True)
        assert await setup.take() is None
        for lease in leases.values():
            assert await setup.finish(lease)
        again = await setup.taken()
        assert (again.key, again.attempt) == ("changed", leases["changed"].attempt + 1)
        assert await setup.take() is None
        assert await setup.finish(again)
        assert await setup.row("changed") is None

    on(database_url, scenario)


def test_a_job_waits_for_no_other_that_ends_as_it_goes_back(database_url: str) -> None:
    """Where the other one's end is not committed yet, handing back waits for that, and the job comes next."""

    async def scenario(setup: Setup) -> None:
        await setup.put("first", "other")
        leases = {lease.key: lease for lease in [await setup.taken(), await setup.taken()]}
        async with setup.database.write() as session:
            assert await setup.queue.finish(session, leases["other"])
            back = asyncio.create_task(setup.queue.hand_back(leases["first"], (KIND, "other")))
            await asyncio.wait({back}, timeout=0.3)
        assert await back
        assert (await setup.taken()).key == "first"

    on(database_url, scenario)


def test_a_lease_fits_no_later_job_of_its_key(database_url: str) -> None:
    """A worker that was paused from one job to the next of the same key changes nothing."""

    async def scenario(setup: Setup) -> None:
        await setup.put("key")
        old = await setup.taken()
        assert await setup.finish(old)
        await setup.put("key")
        new = await setup.taken()
        assert (new.id, new.attempt) != (old.id, old.attempt)
        assert not await setup.finish(old)
        assert not await setup.queue.renew(old)
        assert not await setup.queue.hand_back(old)
        assert await setup.queue.fail(Count(setup.database), old, "late", permanent=True) is None
        assert await setup.finish(new)

    on(database_url, scenario)


def test_higher_priorities_come_first_and_hastened_ones_before_them(database_url: str) -> None:
    """The order of the queue is priority, then age; asking again with a higher priority raises it, a lower one not."""

    async def scenario(setup: Setup) -> None:
        for key, priority in (("ahead", 0), ("device", 10), ("late", 10), ("raised", 0)):
            await setup.put(key, priority=priority)
        await setup.put("raised", priority=20)
        await setup.put("device", priority=1)
        assert [(await setup.taken()).key for _ in range(4)] == ["raised", "device", "late", "ahead"]

    on(database_url, scenario)


@given(
    jobs=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 2000)), min_size=2, max_size=8),
)
@settings(max_examples=10, deadline=None)
def test_low_priorities_age(sqlite_url_shared: str, jobs: list[tuple[int, int]]) -> None:
    """A job of priority p comes as if it had been queued p seconds before it was: so every job comes to its turn."""

    async def scenario(setup: Setup) -> None:
        async with setup.database.write() as session:
            await session.execute(delete(JobRow))
        for number, (priority, age_s) in enumerate(jobs):
            await setup.put(f"{number}", priority=priority)
            async with setup.database.write() as session:
                earlier = {"rank": now(session, -priority - age_s)}
                await session.execute(update(JobRow).where(JobRow.key == f"{number}").values(earlier))
        order = [int((await setup.taken()).key) for _ in jobs]
        # Seconds that lie closer together than what the loop above takes are no order.
        merits = [priority + age_s for priority, age_s in jobs]
        assert all(merits[one] >= merits[next_] - 5 for one, next_ in itertools.pairwise(order))

    on(sqlite_url_shared, scenario)


@pytest.fixture(scope="module")
def sqlite_url_shared(tmp_path_factory: pytest.TempPathFactory, sqlite_template: object) -> str:
    """A SQLite file for all examples of a property."""
    import shutil

    path = tmp_path_factory.mktemp("aging") / "hope.sqlite"
    shutil.copy(str(sqlite_template), path)
    return f"sqlite:///{path}"


def test_a_job_that_is_not_due_waits(database_url: str) -> None:
    """It is begun no sooner than it may be, and workers know when that is; hastened, it is due at once."""

    async def scenario(setup: Setup) -> None:
        began = time.monotonic()
        await setup.put("later", delay_s=0.4)
        while (found := await setup.queue.next([KIND]))[0] is None:
            assert found[1] is not None
            assert 0 < found[1] <= 0.4
            await asyncio.sleep(found[1] + 0.01)
        assert found[0].key == "later"
        assert time.monotonic() - began > 0.39
        await setup.put("hastened", delay_s=600.0)
        async with setup.database.write() as session:
            assert await queue.hasten(session, (KIND, "hastened"), 5)
        assert (await setup.taken()).key == "hastened"

    on(database_url, scenario)


def test_a_job_waits_for_the_one_that_it_rests_on(database_url: str) -> None:
    """It is not begun before; asked for while that runs it waits for the run after, asked for before it for this."""

    async def scenario(setup: Setup) -> None:
        async def rest(key: str) -> None:
            async with setup.database.write() as session:
                ids = await put(session, Wanted(KIND, "base", again=True))
                await put(session, Wanted("other", key, after=ids[KIND, "base"]))

        await rest("before")
        base = await setup.taken()
        assert await setup.take(kinds=["other"]) is None
        await rest("meanwhile")
        assert await setup.finish(base)
        first = await setup.take(kinds=["other"])
        assert first is not None
        assert first.key == "before"
        assert await setup.take(kinds=["other"]) is None
        assert await setup.finish(await setup.taken())
        second = await setup.take(kinds=["other"])
        assert second is not None
        assert second.key == "meanwhile"

    on(database_url, scenario)


def test_a_failed_job_waits_before_its_next_try(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pause is longer than the one before, whoever asks for it meanwhile; after the last the cause is kept."""
    monkeypatch.setattr(queue, "RETRY_S", 300.0)
    monkeypatch.setattr(queue, "RETRY_MOST_S", 900.0)

    async def scenario(setup: Setup) -> None:
        kind, pauses = Count(setup.database), []
        await setup.put("poison")
        for attempt in range(MAX_FAILURES):
            lease = await setup.taken()
            again = await setup.queue.fail(kind, lease, f"died the {attempt + 1}. time", permanent=False)
            assert again is (attempt + 1 < MAX_FAILURES)
            if again:
                await setup.put("poison", priority=99)
                assert await setup.take() is None
                row = await setup.row("poison")
                assert row is not None
                assert row.error == f"died the {attempt + 1}. time"
                _, due_in_s = await setup.queue.next([KIND])
                pauses.append(due_in_s)
                async with setup.database.write() as session:
                    await session.execute(update(JobRow).values(not_before=JobRow.queued_at))
        assert pauses == [pytest.approx(300.0 * 2**failures, abs=60.0) for failures in range(MAX_FAILURES - 1)]
        assert (kind.failures, await setup.count("poison", "failed")) == (["died the 3. time"], 1)
        assert await setup.row("poison") is None

    on(database_url, scenario)


def test_a_refused_job_fails_at_once(database_url: str) -> None:
    """A permanent failure is not tried again."""

    async def scenario(setup: Setup) -> None:
        await setup.put("p")
        kind = Count(setup.database)
        assert await setup.queue.fail(kind, await setup.taken(), "it cannot be", permanent=True) is False
        assert (kind.failures, await setup.row("p")) == (["it cannot be"], None)

    on(database_url, scenario)


def test_the_work_of_a_vanished_machine_is_taken_over(database_url: str) -> None:
    """An expired lease is reaped, a renewed one is not, and who held it is fenced off."""

    async def scenario(setup: Setup) -> None:
        kinds = {KIND: Count(setup.database)}
        await setup.put("p")
        vanished = await setup.taken("another-machine|1|1", ttl_s=0.0)
        assert await setup.queue.renew(vanished)
        assert await setup.queue.reap(kinds) == []
        async with setup.database.write() as session:
            await session.execute(update(JobRow).values(lease_until=now(session, -1.0)))
        assert await setup.queue.reap(kinds) == ["p"]
        lease = await setup.taken()
        assert (lease.attempt, lease.failures) == (vanished.attempt + 1, 1)
        assert not await setup.finish(vanished)
        assert await setup.finish(lease)

    on(database_url, scenario)


def test_a_dead_process_of_this_machine_is_reaped_before_its_lease_expires(database_url: str) -> None:
    """A local worker's death is seen at once, so a restart need not wait for the lease."""

    async def scenario(setup: Setup) -> None:
        await setup.put("dead", priority=1)
        await setup.put("alive")
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from planner_api.jobs.workers import this_process; print(this_process())",
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await child.communicate()
        await setup.taken(printed.decode().strip(), ttl_s=600.0)
        await setup.taken(this_process(), ttl_s=600.0)
        assert await setup.queue.reap({KIND: Count(setup.database)}) == ["dead"]
        row = await setup.row("alive")
        assert row is not None
        assert row.lease_owner == this_process()

    on(database_url, scenario)


def test_a_job_that_takes_every_worker_down_ends_as_failed(database_url: str) -> None:
    """Abandoned too often, a job stops circling."""

    async def scenario(setup: Setup) -> None:
        kind = Count(setup.database)
        await setup.put("p")
        for _ in range(MAX_ABANDONED):
            await setup.taken("another-machine|1|1", ttl_s=0.0)
            await setup.queue.reap({KIND: kind})
        assert await setup.row("p") is None
        assert "vanished" in kind.failures[0]

    on(database_url, scenario)


def test_workers_that_look_at_once_take_different_jobs(database_url: str) -> None:
    """However many look at the same moment, none waits for another's lease, and no job is leased twice."""

    async def scenario(setup: Setup) -> None:
        keys = [f"p{number}" for number in range(8)]
        await setup.put(*keys)
        found = await asyncio.gather(*(setup.queue.next([KIND]) for _ in keys))
        assert sorted(lease.key for lease, _ in found if lease is not None) == keys

    on(database_url, scenario)


def test_who_waits_for_a_job_hears_of_its_end(database_url: str) -> None:
    """Waiting hastens it and ends with it; of a job that is not there nobody waits, nor for ever."""

    async def scenario(setup: Setup) -> None:
        assert await setup.queue.ended((KIND, "nobody's"), timeout_s=5.0)
        await setup.put("slow", delay_s=600.0)
        assert not await setup.queue.ended((KIND, "slow"), timeout_s=0.2)
        async with Running(setup.worker()):
            assert await setup.queue.ended((KIND, "slow"), timeout_s=90.0)
        assert await setup.count("slow") == 1

    on(database_url, scenario)


def test_it_is_known_who_works(database_url: str) -> None:
    """A worker is listed while it runs, with when it last looked and what it is at, and no longer when it has ended."""

    async def scenario(setup: Setup) -> None:
        async def working() -> bool:
            async with setup.database.read() as session:
                found = await workers.workers(session)
            return [(seen.owner, seen.slots, seen.busy) for seen in found] == [(this_process(), 1, 1)]

        await setup.put("p")
        async with setup.database.write() as session:
            await workers.looked(session, "long-gone|1|1", 1)
            await session.execute(update(WorkerRow).values(looked_at=now(session, -2 * 86_400.0)))
        async with Running(setup.worker("held_up")):
            await setup.until(working)
            setup.goes_on.set()
        async with setup.database.read() as session:
            assert await workers.workers(session) == []
            assert await workers.count_looking(session) == {"looking": 0}

    on(database_url, scenario)


def test_a_clock_that_was_set_back_holds_nothing_up(database_url: str) -> None:
    """What was queued, or leased by a host that has vanished, before a clock went back a day is done now."""

    async def scenario(setup: Setup) -> None:
        async def postpone(**columns: ColumnElement[datetime]) -> None:
            async with setup.database.write() as session:
                await session.execute(update(JobRow).values(columns))

        def ahead() -> ColumnElement[datetime]:
            return literal(datetime.now(UTC) + timedelta(days=1), UtcDateTime())

        await setup.put("waits")
        await postpone(queued_at=ahead(), not_before=ahead(), rank=ahead())
        assert (await setup.taken()).key == "waits"
        await postpone(lease_until=ahead(), started_at=ahead())
        assert await setup.queue.reap({KIND: Count(setup.database)}) == ["waits"]

    on(database_url, scenario)
