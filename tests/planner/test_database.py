"""Sessions: what is cancelled half-way holds up nobody."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from aiosqlite import Connection
from sqlalchemy import func, select, text

from planner_api.db.engine import Database


def test_a_cancelled_write_lets_go_of_its_lock(tmp_path: Path) -> None:
    """A transaction that is cancelled with rows yet to fetch is rolled back, though its error is still held."""

    async def scenario() -> None:
        database = Database(f"sqlite:///{tmp_path}/one.sqlite")
        async with database.write() as session:
            await session.execute(text("CREATE TABLE numbers (n INTEGER)"))
            await session.execute(text("INSERT INTO numbers VALUES (1), (2)"))

        async def change() -> None:
            async with database.write() as session:
                connection = await session.connection()
                driver = (await connection.get_raw_connection()).driver_connection
                assert driver is not None
                cursor = await driver.execute("UPDATE numbers SET n = n + 1 RETURNING n")
                began.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    held.append(cursor)
                    await connection.invalidate()

        began, held = asyncio.Event(), []
        changing = asyncio.ensure_future(change())
        await began.wait()
        changing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await changing
        async with asyncio.timeout(5.0), database.write() as session:
            assert list(await session.scalars(text("SELECT n FROM numbers"))) == [1, 2]
        assert held
        await database.close()

    asyncio.run(scenario())


def test_who_is_cancelled_while_rolling_back_has_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pool keeps the connection and logs nothing, and a limit of time is still told from other cancellations."""

    async def scenario() -> None:
        database = Database(f"sqlite:///{tmp_path}/one.sqlite")
        rolling, go_on, roll_back = asyncio.Event(), asyncio.Event(), Connection.rollback

        async def slow(connection: Connection) -> None:
            rolling.set()
            await go_on.wait()
            await roll_back(connection)

        async def give_back(limit: asyncio.Timeout) -> None:
            async with limit, database.write() as session:
                used = await (await session.connection()).get_raw_connection()
                connections.append(used.driver_connection)
                raise ZeroDivisionError

        async with database.write() as session:  # the first connection rolls back as it begins
            await session.execute(text("SELECT 1"))
        connections: list[Any] = []
        for limit, told in ((asyncio.timeout(None), asyncio.CancelledError), (asyncio.timeout(60.0), TimeoutError)):
            with monkeypatch.context() as patched:
                patched.setattr(Connection, "rollback", slow)
                giving = asyncio.create_task(give_back(limit))
                await rolling.wait()
                if told is TimeoutError:
                    limit.reschedule(0.0)
                else:
                    giving.cancel()
                await asyncio.wait({giving}, timeout=0.05)
                assert not giving.done()
                go_on.set()
                with pytest.raises(told):
                    await giving
            rolling.clear()
            go_on.clear()
        assert connections[0] is connections[1]
        await database.close()

    asyncio.run(scenario())
    assert caplog.records == []


def test_closing_waits_for_what_a_cancelled_call_left_behind(tmp_path: Path) -> None:
    """A statement goes on without who began it; its thread ends before the database is closed, and so its loop's."""
    began, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        go_on.wait()

    async def scenario() -> None:
        database = Database(f"sqlite:///{tmp_path}/one.sqlite")

        async def read() -> None:
            async with database.read() as session:
                driver = (await (await session.connection()).get_raw_connection()).driver_connection
                assert driver is not None
                await driver.create_function("hold", 0, hold)
                await session.execute(text("SELECT hold()"))

        reading = asyncio.create_task(read())
        await asyncio.to_thread(began.wait)
        reading.cancel()
        closing = asyncio.create_task(database.close())
        done, _ = await asyncio.wait({closing}, timeout=0.1)
        go_on.set()
        assert not done
        await asyncio.gather(reading, closing, return_exceptions=True)

    asyncio.run(scenario())


def test_a_sqlite_without_mathematics_will_do(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is reckoned with in queries is there, whatever SQLite was built with."""
    connect = sqlite3.connect

    def plain(*given: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*given, **options)
        for name in ("ln", "exp"):
            connection.create_function(name, 1, None)
        return connection

    monkeypatch.setattr(sqlite3, "connect", plain)

    async def reckon() -> float | None:
        database = Database(sqlite_url)
        async with database.read() as session:
            found: float | None = await session.scalar(select(func.ln(func.exp(2.0))))
        await database.close()
        return found

    assert asyncio.run(reckon()) == pytest.approx(2.0)
