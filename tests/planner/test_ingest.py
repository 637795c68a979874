"""Uploads under load: every one counts once, whoever folds, however many write at the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError

from hope_schema import Missing, Observations, UploadReceipt
from planner_api.db.engine import Database
from planner_api.db.tables import InboxRow, ProfileRow, ProfileVersionRow
from planner_api.errors import DatabaseAwayError
from planner_api.models.reading import describe
from planner_api.models.service import submit
from planner_api.profiles import repository
from planner_api.profiles.reading import head_of
from planner_api.profiles.service import Profiles
from planner_api.settings import Settings
from planner_api.web.body import Body
from tests import CAMPAIGN
from tests.planner.samples import FREQUENCY, SOC, chain, measure, missing_request

GRAPH = chain(12)
UPLOADS = 160 if CAMPAIGN else 64


class Ingest:
    """A database that knows the graph, one replica on it, and what that says is missing."""

    def __init__(self, database: Database, profiles: Profiles, missing: Missing) -> None:
        self.database = database
        self.profiles = profiles
        self.missing = missing

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
            await submit(database, describe(GRAPH))
            profiles = Profiles(database, Settings(database_url=url))
            await scenario(Ingest(database, profiles, await profiles.missing(missing_request(GRAPH))))
        finally:
            await database.close()

    asyncio.run(main())


def body_of(upload: Observations) -> Body:
    """An upload as it is sent."""
    return Body(upload.model_dump_json().encode(), "identity")


def test_many_writers_and_two_folders(database_url: str) -> None:
    """Eight writers on the same rows and two folders at once: no deadlock, nothing lost, nothing counted twice."""

    async def scenario(ingest: Ingest) -> None:
        replicas = ingest.profiles, Profiles(ingest.database, Settings(database_url=database_url))
        uploads = [measure(ingest.missing, f"device-{n % 16}", upload_id=f"u-{n // 2}") for n in range(UPLOADS)]
        random.Random(1).shuffle(uploads)
        done = asyncio.Event()

        async def write(part: list[Observations], profiles: Profiles) -> int:
            receipts = [await profiles.accept(head_of(upload), body_of(upload)) for upload in part]
            return sum(not receipt.duplicate for receipt in receipts)

        async def fold(profiles: Profiles) -> None:
            while not done.is_set():
                await profiles.fold_pending()
                await asyncio.sleep(0)

        folders = [asyncio.create_task(fold(profiles)) for profiles in replicas]
        fresh = await asyncio.gather(*(write(uploads[n::8], replicas[n % 2]) for n in range(8)))
        await ingest.accept(*uploads)
        done.set()
        await asyncio.gather(*folders)
        await ingest.profiles.fold_pending()
        distinct = {(upload.device_id, upload.upload_id) for upload in uploads}
        assert sum(fresh) == len(distinct)
        assert await ingest.scalars(select(ProfileRow.uploads)) == [len(distinct)]
        assert await ingest.scalars(select(InboxRow.id).where(InboxRow.folded_at.is_(None))) == []
        again = await replicas[1].missing(missing_request(GRAPH))
        assert (again.latencies, again.transfers) == ((), ())

    on(database_url, scenario)


def test_a_damaged_row_does_not_stop_the_others(database_url: str) -> None:
    """An upload that rots in the inbox is marked with its error, and those behind it are folded."""

    async def scenario(ingest: Ingest) -> None:
        await ingest.accept(*(measure(ingest.missing, name) for name in ("a", "b", "c")))
        await ingest.change(update(InboxRow).where(InboxRow.device_id == "b").values(body=b"rotten"))
        assert await ingest.profiles.fold(SOC, FREQUENCY)
        assert not await ingest.profiles.fold(SOC, FREQUENCY)
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
        await ingest.profiles.fold(SOC, FREQUENCY)
        await ingest.accept(measure(ingest.missing, "waiting"))
        past = datetime.now(UTC) - timedelta(days=31)
        await ingest.change(update(InboxRow).where(InboxRow.device_id.like("old-%")).values(folded_at=past))
        assert await ingest.profiles.prune() == 5
        assert set(await ingest.scalars(select(InboxRow.device_id))) == {"young", "waiting"}

    on(database_url, scenario)


def test_a_burst_is_folded_when_it_is_over_or_has_lasted(database_url: str) -> None:
    """Housekeeping leaves a pair alone while uploads keep coming, but never an upload that has waited for long."""

    async def scenario(ingest: Ingest) -> None:
        fold_pending = ingest.profiles.fold_pending
        await ingest.accept(*(measure(ingest.missing, "device", upload_id=f"u-{number}") for number in range(2)))
        assert await fold_pending(quiet_s=60.0, latest_s=60.0) == []
        hour_ago = datetime.now(UTC) - timedelta(hours=1)
        await ingest.change(update(InboxRow).where(InboxRow.upload_id == "u-0").values(received_at=hour_ago))
        assert await fold_pending(quiet_s=60.0, latest_s=60.0) == [(SOC, FREQUENCY)]
        await ingest.accept(measure(ingest.missing, "device", upload_id="u-2"))
        await ingest.change(update(InboxRow).values(received_at=datetime.now(UTC) - timedelta(seconds=2)))
        await fold_pending(quiet_s=1.0, latest_s=60.0)
        assert await ingest.scalars(select(InboxRow.id).where(InboxRow.folded_at.is_(None))) == []

    on(database_url, scenario)


def test_statistics_dropped_from_memory_in_the_middle_of_a_fold(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold whose remembered statistics other folds push out while its reading ends goes on and leaves no lock."""

    async def scenario(ingest: Ingest) -> None:
        profiles, bodies = ingest.profiles, repository.bodies

        async def crowded(*arguments: Any) -> Any:
            found = await bodies(*arguments)
            asyncio.get_running_loop().call_soon(profiles._folders.clear)
            return found

        for number in range(3):
            await ingest.accept(measure(ingest.missing, f"device-{number}"))
            assert await profiles.fold(SOC, FREQUENCY) == (number == 0)
            if number == 1:
                assert len(profiles._folders) == 1
                monkeypatch.setattr(repository, "bodies", crowded)
        assert await ingest.scalars(select(ProfileRow.uploads)) == [3]
        assert len(profiles._folds) == 0

    on(sqlite_url, scenario)


def test_uploads_that_another_process_folds_meanwhile(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold whose uploads are folded and emptied by a replica while it reads them just finds none."""

    async def scenario(ingest: Ingest) -> None:
        replica = Profiles(ingest.database, Settings(database_url=database_url))
        await ingest.accept(*(measure(ingest.missing, f"device-{number}") for number in range(3)))
        bodies = repository.bodies

        async def overtaken(*arguments: Any) -> Any:
            monkeypatch.setattr(repository, "bodies", bodies)
            assert await replica.fold(SOC, FREQUENCY)
            return await bodies(*arguments)

        monkeypatch.setattr(repository, "bodies", overtaken)
        assert not await ingest.profiles.fold(SOC, FREQUENCY)
        assert await ingest.scalars(select(ProfileRow.uploads)) == [3]
        assert await ingest.scalars(select(InboxRow.id).where(InboxRow.folded_at.is_(None))) == []
        assert await ingest.scalars(select(InboxRow.error).where(InboxRow.error.is_not(None))) == []

    on(database_url, scenario)


def test_a_fold_that_fails_holds_up_no_other(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault with one profile is logged; the others are folded, and its own lock is free again."""

    async def scenario(ingest: Ingest) -> None:
        profiles = ingest.profiles
        await ingest.accept(*(measure(ingest.missing, soc=soc) for soc in ("cursed", "sound")))
        fold_batch = profiles._fold_batch

        async def faulty(soc: str, frequency: str) -> bool | None:
            if soc == "cursed":
                raise ZeroDivisionError
            return await fold_batch(soc, frequency)

        monkeypatch.setattr(profiles, "_fold_batch", faulty)
        assert await profiles.fold_pending() == [("sound", FREQUENCY)]
        assert len(profiles._folds) == 0

    on(sqlite_url, scenario)


def test_a_version_that_a_solve_may_be_using_stays(sqlite_url: str) -> None:
    """Versions no plan rests on are dropped only when they are old: a running solve may rest on any younger one."""

    async def scenario(ingest: Ingest) -> None:
        version = ProfileVersionRow.version

        async def move(scale: float) -> list[int]:
            await ingest.accept(measure(ingest.missing, cost=lambda _signature, _kind: scale))
            await ingest.profiles.fold(SOC, FREQUENCY)
            return await ingest.scalars(select(version).order_by(version))

        assert [await move(scale) for scale in (1.0, 2.0, 3.0)][-1] == [1, 2, 3]
        old = datetime.now(UTC) - timedelta(hours=2)
        await ingest.change(update(ProfileVersionRow).where(version < 3).values(created_at=old))
        assert await move(4.0) == [3, 4]

    on(sqlite_url, scenario)
