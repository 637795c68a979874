"""Uploads under load: every one counts once, whoever folds, however many write at the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import DBAPIError

from hope_schema import Missing, Observations, UploadReceipt
from planner_api.db.engine import Database
from planner_api.db.tables import InboxRow, ProfileRow, ProfileVersionRow
from planner_api.devices.quota import Quotas
from planner_api.errors import DatabaseAwayError
from planner_api.jobs import queue as jobs
from planner_api.jobs.kind import JobError
from planner_api.jobs.news import build_news
from planner_api.jobs.queue import Queue
from planner_api.jobs.worker import Worker
from planner_api.models.reading import describe
from planner_api.models.service import submit
from planner_api.profiles import answering, batch, fold, inbox, oversight, repository
from planner_api.profiles.fold import Fold
from planner_api.profiles.jobs import FOLD, key_of
from planner_api.profiles.reading import UploadHead, read_upload
from planner_api.profiles.service import Profiles
from planner_api.settings import Settings
from planner_api.web.inflate import Body
from planner_api.web.principal import Actor, Principal
from tests import CAMPAIGN
from tests.planner.in_thread import InThread, computed
from tests.planner.jobs_help import Running
from tests.planner.samples import FREQUENCY, SOC, chain, measure, missing_request

GRAPH = chain(12)
UPLOADS = 160 if CAMPAIGN else 64


class Ingest:
    """A database that knows the graph, one replica on it, and what that says is missing."""

    def __init__(self, database: Database, queue: Queue, profiles: Profiles, missing: Missing) -> None:
        self.database = database
        self.queue = queue
        self.profiles = profiles
        self.missing = missing
        self.kind = Fold(database, profiles._settings)

    def worker(self) -> Worker:
        """A worker that folds, as each of any number of replicas has one."""
        kind = Fold(self.database, self.profiles._settings)
        tell = partial(answering.answer, self.database)
        return Worker(self.queue, [kind], [(FOLD,)], InThread, tell=tell, count=None, grace_s=10.0)

    async def fold(self, soc: str = SOC) -> bool:
        """Have one batch of a profile folded as a worker does; whether there was any."""
        async with self.database.write() as session:
            await jobs.hasten(session, (FOLD, key_of(soc, FREQUENCY)), 10**6)
        lease, _ = await self.queue.next([FOLD])
        if lease is None:
            return False
        task = await self.kind.load(lease)
        prepared = None if task is None else await computed(self.kind, lease, task)
        async with self.database.write() as session:
            again = task is not None and await self.kind.store(session, lease, task, prepared)
            assert await self.queue.finish(session, lease, again=again)
        return task is not None

    async def accept(self, *uploads: Observations) -> list[UploadReceipt]:
        """Send uploads one after the other."""
        return [await self.profiles.accept(head_of(upload), body_of(upload)) for upload in uploads]

    async def change(self, statement: Any) -> None:
        """Change the stored rows directly."""
        async with self.database.write() as session:
            await session.execute(statement)

    async def scalars(self, query: Any) -> list[Any]:
        """Look at the stored rows directly."""
        async with self.database.read() as session:
            return list(await session.scalars(query))


def on(url: str, scenario: Callable[[Ingest], Awaitable[None]]) -> None:
    """Run a scenario on a database."""

    async def main() -> None:
        database = Database(url)
        try:
            await submit(database, describe(GRAPH), quotas=Quotas(Settings()))
            queue = Queue(database, build_news(database), ttl_s=6.0)
            profiles = Profiles(database, Settings(database_url=url, fold_interval_s=0.0), queue)
            await scenario(
                Ingest(
                    database,
                    queue,
                    profiles,
                    Missing.model_validate_json(await profiles.missing(missing_request(GRAPH))),
                )
            )
        finally:
            await database.close()

    asyncio.run(main())


def head_of(upload: Observations) -> UploadHead:
    """What is stored of an upload beside itself."""
    return read_upload(upload.model_dump_json().encode())


def body_of(upload: Observations) -> Body:
    """An upload as it is sent."""
    return Body(upload.model_dump_json().encode(), "identity")


def test_an_upload_whose_process_ended_before_it_queued_is_folded(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the inbox and was not acknowledged, so its device sends it again: that is a duplicate, and folded."""

    async def scenario(ingest: Ingest) -> None:
        async def away(*_: Any) -> None:
            raise DatabaseAwayError("the process ended here")

        upload = measure(ingest.missing, device_id="a", upload_id="u1")
        with monkeypatch.context() as patch:
            patch.setattr(inbox, "have", away)
            with pytest.raises(DatabaseAwayError):
                await ingest.accept(upload)
        assert not await ingest.fold()
        assert [receipt.duplicate for receipt in await ingest.accept(upload)] == [True]
        assert await ingest.fold()
        assert await ingest.scalars(select(func.count()).where(InboxRow.folded_at.is_(None))) == [0]

    on(database_url, scenario)


def test_what_is_stored_while_a_batch_is_folded_is_folded_next(database_url: str) -> None:
    """An upload that comes after its profile's job has read the inbox has it read once more, however many come."""

    async def scenario(ingest: Ingest) -> None:
        await ingest.accept(measure(ingest.missing, device_id="a", upload_id="u1"))
        lease, _ = await ingest.queue.next([FOLD])
        assert lease is not None
        for number in range(3):
            await ingest.accept(measure(ingest.missing, device_id="a", upload_id=f"later-{number}"))
        async with ingest.database.write() as session:
            assert await ingest.queue.finish(session, lease)
        assert await ingest.fold()
        assert not await ingest.fold()
        assert await ingest.scalars(select(func.count()).where(InboxRow.folded_at.is_(None))) == [0]

    on(database_url, scenario)


def test_many_writers_and_two_folders(database_url: str) -> None:
    """Eight writers on the same rows and two folders at once: no deadlock, nothing lost, nothing counted twice."""

    async def scenario(ingest: Ingest) -> None:
        settings = Settings(database_url=database_url, fold_interval_s=0.0)
        replicas = ingest.profiles, Profiles(ingest.database, settings, ingest.queue)
        uploads = [measure(ingest.missing, f"device-{n % 16}", upload_id=f"u-{n // 2}") for n in range(UPLOADS)]
        random.Random(1).shuffle(uploads)

        async def write(part: list[Observations], profiles: Profiles) -> int:
            receipts = [await profiles.accept(head_of(upload), body_of(upload)) for upload in part]
            return sum(not receipt.duplicate for receipt in receipts)

        async with Running(ingest.worker()), Running(ingest.worker()):
            fresh = await asyncio.gather(*(write(uploads[n::8], replicas[n % 2]) for n in range(8)))
            await ingest.accept(*uploads)
            assert await ingest.queue.ended((FOLD, key_of(SOC, FREQUENCY)), timeout_s=60.0)
        distinct = {(upload.device_id, upload.upload_id) for upload in uploads}
        assert sum(fresh) == len(distinct)
        assert await ingest.scalars(select(ProfileRow.uploads)) == [len(distinct)]
        assert await ingest.scalars(select(InboxRow.id).where(InboxRow.folded_at.is_(None))) == []
        again = Missing.model_validate_json(await replicas[1].missing(missing_request(GRAPH)))
        assert (again.latencies, again.transfers) == ((), ())

    on(database_url, scenario)


def test_a_damaged_row_does_not_stop_the_others(database_url: str) -> None:
    """An upload that rots in the inbox is marked with its error, and those behind it are folded."""

    async def scenario(ingest: Ingest) -> None:
        await ingest.accept(*(measure(ingest.missing, name) for name in ("a", "b", "c")))
        await ingest.change(update(InboxRow).where(InboxRow.device_id == "b").values(body=b"rotten"))
        assert await ingest.fold()
        assert not await ingest.fold()
        found = {row.device_id: row for row in await ingest.scalars(select(InboxRow))}
        for name in ("a", "c"):
            assert (found[name].error, found[name].body) == (None, None)
        assert "zstd" in found["b"].error
        assert found["b"].body == b"rotten", "it is kept for whoever looks into it"

    on(database_url, scenario)


def test_a_failed_transaction_reaches_every_upload_of_its_group(database_url: str) -> None:
    """When the database refuses a group, each request of it fails, and the next group is stored."""

    async def scenario(ingest: Ingest) -> None:
        uploads = [measure(ingest.missing, f"device-{n}") for n in range(5)]

        async def send_at_once() -> list[Any]:
            return await asyncio.gather(*(ingest.accept(upload) for upload in uploads), return_exceptions=True)

        await ingest.change(text("ALTER TABLE inbox RENAME TO away"))
        assert all(isinstance(result, (DBAPIError, DatabaseAwayError)) for result in await send_at_once())
        await ingest.change(text("ALTER TABLE away RENAME TO inbox"))
        assert not any(receipt.duplicate for (receipt,) in await send_at_once())

    on(database_url, scenario)


def test_old_upload_ids_are_forgotten(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folded uploads older than the memory are pruned, however many; younger and waiting ones stay."""
    monkeypatch.setattr("planner_api.profiles.service.PRUNED_AT_ONCE", 2)

    async def scenario(ingest: Ingest) -> None:
        await ingest.accept(*(measure(ingest.missing, name) for name in (*(f"old-{n}" for n in range(5)), "young")))
        await ingest.fold()
        await ingest.accept(measure(ingest.missing, "waiting"))
        past = datetime.now(UTC) - timedelta(days=31)
        await ingest.change(update(InboxRow).where(InboxRow.device_id.like("old-%")).values(folded_at=past))
        assert await ingest.profiles.prune() == 5
        assert set(await ingest.scalars(select(InboxRow.device_id))) == {"young", "waiting"}

    on(database_url, scenario)


def test_one_upload_after_the_other_holds_up_nobody(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many come meanwhile, a job folds one batch and then stands behind what others have waited for."""
    monkeypatch.setattr(fold, "BATCH_UPLOADS", 2)

    async def scenario(ingest: Ingest) -> None:
        await ingest.accept(*(measure(ingest.missing, f"device-{number}") for number in range(5)))
        await ingest.accept(measure(ingest.missing, soc="other"))
        waiting = select(func.count()).where(InboxRow.folded_at.is_(None))
        lease, _ = await ingest.queue.next([FOLD])
        assert lease is not None
        await ingest.queue.hand_back(lease)
        assert lease.key == key_of(SOC, FREQUENCY)
        assert await ingest.fold()
        assert await ingest.scalars(waiting) == [4], "one batch"
        lease, _ = await ingest.queue.next([FOLD])
        assert lease is not None
        assert lease.key == key_of("other", FREQUENCY), "the rest of the first waits behind it"
        rest, _ = await ingest.queue.next([FOLD])
        assert rest is not None, "and it does wait"
        assert rest.key == key_of(SOC, FREQUENCY)

    on(database_url, scenario)


def test_an_upload_that_comes_while_its_profile_is_folded_is_folded_after(database_url: str) -> None:
    """What a running job has not read is not forgotten when it ends."""

    async def scenario(ingest: Ingest) -> None:
        await ingest.accept(measure(ingest.missing, "first"))
        load = ingest.kind.load

        async def late(lease: Any) -> Any:
            found = await load(lease)
            await ingest.accept(measure(ingest.missing, "late"))
            return found

        ingest.kind.load = late  # type: ignore[method-assign]
        assert await ingest.fold()
        ingest.kind.load = load  # type: ignore[method-assign]
        assert await ingest.scalars(select(InboxRow.device_id).where(InboxRow.folded_at.is_(None))) == ["late"]
        assert await ingest.fold()
        assert await ingest.scalars(select(ProfileRow.uploads)) == [2]

    on(database_url, scenario)


def test_what_is_taken_back_while_a_fold_computes_is_forgotten_by_the_next(database_url: str) -> None:
    """Only folds write a profile: the one under way knows nothing of it, and another one follows."""

    async def scenario(ingest: Ingest) -> None:
        await ingest.accept(measure(ingest.missing, "kept"))
        assert await ingest.fold()
        await ingest.accept(measure(ingest.missing, "late"))
        prepare = ingest.kind.prepare

        async def overtaken(*arguments: Any) -> Any:
            await oversight.forget(ingest.database, SOC, FREQUENCY, "kept", Actor("admin:1"))
            return await prepare(*arguments)

        ingest.kind.prepare = overtaken  # type: ignore[method-assign]
        assert await ingest.fold()
        ingest.kind.prepare = prepare  # type: ignore[method-assign]
        assert await ingest.fold()
        votes = await oversight.votes(ingest.database, SOC, FREQUENCY, device_id=None, offset=0, limit=1000)
        assert {vote.device_id for vote in votes.votes} == {"late"}

    on(database_url, scenario)


def test_an_upload_that_kills_children_is_left_out(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches shrink until one upload alone is to blame; it keeps its cause, and all others are folded."""
    monkeypatch.setattr(jobs, "RETRY_S", 0.0)
    run = InThread.run

    async def deadly(self: InThread, function: str, order: fold.FoldOrder, *more: Any) -> Any:
        if any(upload.device_id == "deadly" for upload in order.uploads):
            raise JobError("the child process died", permanent=False)
        return await run(self, function, order, *more)

    monkeypatch.setattr(InThread, "run", deadly)

    async def scenario(ingest: Ingest) -> None:
        await ingest.accept(*(measure(ingest.missing, name) for name in ("a", "deadly", "b", "c")))
        async with Running(ingest.worker()):
            assert await ingest.queue.ended((FOLD, key_of(SOC, FREQUENCY)), timeout_s=60.0)
        found = {row.device_id: row for row in await ingest.scalars(select(InboxRow))}
        assert {name for name, row in found.items() if row.error} == {"deadly"}
        assert "died" in found["deadly"].error
        assert all(row.folded_at for row in found.values())
        assert await ingest.scalars(select(ProfileRow.uploads)) == [3]

    on(sqlite_url, scenario)


def test_uploads_wait_while_their_profile_cannot_be_read(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is left out for statistics that are damaged, or a later release's; all are folded once those can be read."""
    load = batch.Statistics.load

    def unreadable(data: bytes | None) -> Any:
        return load(None if data is None else data[:-9])

    async def scenario(ingest: Ingest) -> None:
        key = FOLD, key_of(SOC, FREQUENCY)
        async with Running(ingest.worker()):
            await ingest.accept(measure(ingest.missing, "first"))
            assert await ingest.queue.ended(key, timeout_s=60.0)
            with monkeypatch.context() as damaged:
                damaged.setattr(batch.Statistics, "load", unreadable)
                await ingest.accept(*(measure(ingest.missing, name) for name in ("a", "b")))
                assert await ingest.queue.ended(key, timeout_s=60.0)
            rows = await ingest.scalars(select(InboxRow))
            assert [row.device_id for row in rows if row.folded_at is None] == ["a", "b"]
            await ingest.accept(measure(ingest.missing, "c"))
            assert await ingest.queue.ended(key, timeout_s=60.0)
        rows = await ingest.scalars(select(InboxRow))
        assert all(row.folded_at and row.error is None for row in rows)
        assert await ingest.scalars(select(ProfileRow.uploads)) == [4]

    on(sqlite_url, scenario)


def test_what_devices_of_one_soc_ask_is_read_once(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty devices that ask at once load the statistics once, and no more than a few profiles stay in memory."""
    reads = []
    statistics = repository.statistics

    async def counted(session: Any, profile_id: int) -> bytes | None:
        reads.append(profile_id)
        return await statistics(session, profile_id)

    async def scenario(ingest: Ingest) -> None:
        socs = [f"soc-{number}" for number in range(2)]
        for soc in socs:
            await ingest.accept(measure(ingest.missing, soc=soc))
            await ingest.fold(soc)
        monkeypatch.setattr(repository, "statistics", counted)

        async def ask(soc: str, number: int) -> None:
            caller = Principal("device", f"device:d{number}", f"d{number}")
            asked = missing_request(GRAPH, f"d{number}").model_copy(update={"soc": soc})
            await ingest.profiles.missing(asked, caller)

        await asyncio.gather(*(ask(socs[0], number) for number in range(50)))
        assert len(reads) == 1

    on(sqlite_url, scenario)


def test_a_version_that_a_solve_may_be_using_stays(sqlite_url: str) -> None:
    """Versions no plan rests on are dropped only when they are old: a running solve may rest on any younger one."""

    async def scenario(ingest: Ingest) -> None:
        version = ProfileVersionRow.version

        async def move(scale: float) -> list[int]:
            await ingest.accept(measure(ingest.missing, cost=lambda _signature, _kind: scale))
            await ingest.fold()
            return await ingest.scalars(select(version).order_by(version))

        assert [await move(scale) for scale in (1.0, 2.0, 3.0)][-1] == [1, 2, 3]
        old = datetime.now(UTC) - timedelta(hours=2)
        await ingest.change(update(ProfileVersionRow).where(version < 3).values(created_at=old))
        assert await move(4.0) == [3, 4]

    on(sqlite_url, scenario)
