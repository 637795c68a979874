"""Uploads under load: every one counts once, whoever folds, however many write at the same time."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import DBAPIError

from planner_api.db.engine import Database
from planner_api.db.tables import InboxRow, ProfileRow, ProfileVersionRow
from planner_api.http.body import Body
from planner_api.models.service import submit
from planner_api.profiles import repository
from planner_api.profiles.service import Profiles
from planner_api.settings import Settings
from tests.planner.samples import FREQUENCY, SOC, chain, measure, missing_request

GRAPH = chain(12)


async def prepared(database: Database) -> tuple[Profiles, Profiles]:
    """Two replicas on one database that knows the graph."""
    settings = Settings(database_url=str(database.url))
    await submit(database, GRAPH)
    return Profiles(database, settings), Profiles(database, settings)


def body_of(upload: object) -> Body:
    """An upload as it is sent."""
    return Body(upload.model_dump_json().encode(), "identity")  # type: ignore[attr-defined]


def test_many_writers_and_two_folders(database_url: str) -> None:
    """Eight writers on the same rows and two folders at once: no deadlock, nothing lost, nothing counted twice."""

    async def main() -> None:
        database = Database(database_url)
        one, two = await prepared(database)
        missing = await one.missing(missing_request(GRAPH))
        uploads = [measure(missing, f"device-{n % 16}", upload_id=f"u-{n // 2}") for n in range(160)]
        random.Random(1).shuffle(uploads)
        done = asyncio.Event()

        async def writer(part: list[object], profiles: Profiles) -> int:
            receipts = [await profiles.accept(upload, body_of(upload)) for upload in part]  # type: ignore[arg-type]
            return sum(not receipt.duplicate for receipt in receipts)

        async def folder(profiles: Profiles) -> None:
            while not done.is_set():
                await profiles.fold_pending()
                await asyncio.sleep(0)

        folders = [asyncio.create_task(folder(profiles)) for profiles in (one, two)]
        fresh = await asyncio.gather(*(writer(uploads[n::8], (one, two)[n % 2]) for n in range(8)))
        await writer(list(uploads), one)
        done.set()
        await asyncio.gather(*folders)
        await one.fold_pending()
        distinct = {(upload.device_id, upload.upload_id) for upload in uploads}
        assert sum(fresh) == len(distinct)
        async with database.read() as session:
            assert await session.scalar(select(ProfileRow.uploads)) == len(distinct)
            assert await session.scalar(select(func.count()).where(InboxRow.folded_at.is_(None))) == 0
        again = await two.missing(missing_request(GRAPH))
        assert (again.latencies, again.transfers) == ((), ())
        await database.close()

    asyncio.run(main())


def test_a_damaged_row_does_not_stop_the_others(database_url: str) -> None:
    """An upload that rots in the inbox is marked with its error, and those behind it are folded."""

    async def main() -> None:
        database = Database(database_url)
        profiles, _ = await prepared(database)
        missing = await profiles.missing(missing_request(GRAPH))
        for name in ("a", "b", "c"):
            upload = measure(missing, name)
            await profiles.accept(upload, body_of(upload))
        async with database.write() as session:
            await session.execute(update(InboxRow).where(InboxRow.device_id == "b").values(body=b"rotten"))
        assert await profiles.fold(SOC, FREQUENCY)
        assert not await profiles.fold(SOC, FREQUENCY)
        async with database.read() as session:
            rows = await session.execute(select(InboxRow.device_id, InboxRow.error, InboxRow.body))
        found = {device_id: (error, body) for device_id, error, body in rows}
        assert found["a"] == found["c"] == (None, None)
        assert "zstd" in found["b"][0]
        assert found["b"][1] == b"rotten", "it is kept for whoever looks into it"
        await database.close()

    asyncio.run(main())


def test_a_failed_transaction_reaches_every_upload_of_its_group(database_url: str) -> None:
    """When the database refuses a group, each request of it fails, and the next group is stored."""

    async def main() -> None:
        database = Database(database_url)
        profiles, _ = await prepared(database)
        missing = await profiles.missing(missing_request(GRAPH))
        uploads = [measure(missing, f"device-{n}") for n in range(5)]

        async def rename(old: str, new: str) -> None:
            async with database.write() as session:
                await session.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))

        await rename("inbox", "away")
        results = await asyncio.gather(
            *(profiles.accept(upload, body_of(upload)) for upload in uploads), return_exceptions=True
        )
        assert all(isinstance(result, DBAPIError) for result in results)
        await rename("away", "inbox")
        receipts = await asyncio.gather(*(profiles.accept(upload, body_of(upload)) for upload in uploads))
        assert not any(receipt.duplicate for receipt in receipts)
        await database.close()

    asyncio.run(main())


def test_old_upload_ids_are_forgotten(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folded uploads older than the memory are pruned, however many; younger and waiting ones stay."""
    monkeypatch.setattr("planner_api.profiles.service.PRUNED_AT_ONCE", 2)

    async def main() -> None:
        database = Database(database_url)
        profiles, _ = await prepared(database)
        missing = await profiles.missing(missing_request(GRAPH))
        for name in (*(f"old-{n}" for n in range(5)), "young", "waiting"):
            if name == "waiting":
                await profiles.fold(SOC, FREQUENCY)
            upload = measure(missing, name)
            await profiles.accept(upload, body_of(upload))
        async with database.write() as session:
            past = datetime.now(UTC) - timedelta(days=31)
            await session.execute(update(InboxRow).where(InboxRow.device_id.like("old-%")).values(folded_at=past))
        assert await profiles.prune() == 5
        async with database.read() as session:
            assert set(await session.scalars(select(InboxRow.device_id))) == {"young", "waiting"}
        await database.close()

    asyncio.run(main())


def test_a_burst_is_folded_when_it_is_over_or_has_lasted(database_url: str) -> None:
    """Housekeeping leaves a pair alone while uploads keep coming, but never an upload that has waited for long."""

    async def main() -> None:
        database = Database(database_url)
        profiles, _ = await prepared(database)
        missing = await profiles.missing(missing_request(GRAPH))
        for number in range(2):
            upload = measure(missing, "device", upload_id=f"u-{number}")
            await profiles.accept(upload, body_of(upload))
        assert await profiles.fold_pending(quiet_s=60.0, latest_s=60.0) == []
        hour_ago = datetime.now(UTC) - timedelta(hours=1)
        async with database.write() as session:
            await session.execute(update(InboxRow).where(InboxRow.upload_id == "u-0").values(received_at=hour_ago))
        assert await profiles.fold_pending(quiet_s=60.0, latest_s=60.0) == [(SOC, FREQUENCY)]
        upload = measure(missing, "device", upload_id="u-2")
        await profiles.accept(upload, body_of(upload))
        async with database.write() as session:
            await session.execute(update(InboxRow).values(received_at=datetime.now(UTC) - timedelta(seconds=2)))
        await profiles.fold_pending(quiet_s=1.0, latest_s=60.0)
        async with database.read() as session:
            waiting = await session.scalar(select(func.count()).where(InboxRow.folded_at.is_(None)))
        assert waiting == 0
        await database.close()

    asyncio.run(main())


def test_statistics_dropped_from_memory_in_the_middle_of_a_fold(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold whose remembered statistics other folds push out while its reading ends goes on and leaves no lock."""

    async def main() -> None:
        database = Database(sqlite_url)
        profiles, _ = await prepared(database)
        missing = await profiles.missing(missing_request(GRAPH))
        bodies = repository.bodies

        async def crowded(*arguments: Any) -> Any:
            found = await bodies(*arguments)
            asyncio.get_running_loop().call_soon(profiles._folders.clear)
            return found

        for number in range(3):
            upload = measure(missing, f"device-{number}")
            await profiles.accept(upload, body_of(upload))
            assert await profiles.fold(SOC, FREQUENCY) == (number == 0)
            if number == 1:
                assert len(profiles._folders) == 1
                monkeypatch.setattr(repository, "bodies", crowded)
        async with database.read() as session:
            assert await session.scalar(select(ProfileRow.uploads)) == 3
        assert len(profiles._locks) == 0
        await database.close()

    asyncio.run(main())


def test_a_fold_that_fails_holds_up_no_other(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault with one profile is logged; the others are folded, and its own lock is free again."""

    async def main() -> None:
        database = Database(sqlite_url)
        profiles, _ = await prepared(database)
        missing = await profiles.missing(missing_request(GRAPH))
        for soc in ("cursed", "sound"):
            upload = measure(missing, soc=soc)
            await profiles.accept(upload, body_of(upload))
        fold_batch = profiles._fold_batch

        async def faulty(soc: str, frequency: str) -> bool | None:
            if soc == "cursed":
                raise ZeroDivisionError
            return await fold_batch(soc, frequency)

        monkeypatch.setattr(profiles, "_fold_batch", faulty)
        assert await profiles.fold_pending() == [("sound", FREQUENCY)]
        assert len(profiles._locks) == 0
        await database.close()

    asyncio.run(main())


def test_a_version_that_a_solve_may_be_using_stays(sqlite_url: str) -> None:
    """Versions no plan rests on are dropped only when they are old: a running solve may rest on any younger one."""

    async def main() -> None:
        database = Database(sqlite_url)
        profiles, _ = await prepared(database)
        missing = await profiles.missing(missing_request(GRAPH))

        async def versions() -> list[int]:
            async with database.read() as session:
                return sorted(await session.scalars(select(ProfileVersionRow.version)))

        async def move(scale: float) -> None:
            upload = measure(missing, cost=lambda _signature, _kind: scale)
            await profiles.accept(upload, body_of(upload))
            await profiles.fold(SOC, FREQUENCY)

        for scale in (1.0, 2.0, 3.0):
            await move(scale)
        assert await versions() == [1, 2, 3]
        async with database.write() as session:
            old = datetime.now(UTC) - timedelta(hours=2)
            await session.execute(update(ProfileVersionRow).where(ProfileVersionRow.version < 3).values(created_at=old))
        await move(4.0)
        assert await versions() == [3, 4]
        await database.close()

    asyncio.run(main())
