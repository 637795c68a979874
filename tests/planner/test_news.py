"""News: who listens hears of them, in whatever process, and of nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest
from sqlalchemy import text

from planner_api.db.engine import Database
from planner_api.jobs import news as module
from planner_api.jobs.news import build_news, publish
from tests.planner.jobs_help import Setup, on

Heard = list[str | None]


def listen(setup: Setup, topic: str = "plan") -> Heard:
    """Remember the news of a topic."""
    heard: Heard = []
    setup.news.on(topic, heard.append)
    return heard


async def until(heard: Heard, *news: str | None) -> None:
    """Wait until these were heard."""
    async with asyncio.timeout(60):
        while not set(news) <= set(heard):
            await asyncio.sleep(0.01)


def test_news_reach_other_processes(database_url: str) -> None:
    """What one process says reaches listeners and watchers of another, on its topic and about its subject alone."""

    async def scenario(setup: Setup) -> None:
        heard, other = listen(setup), listen(setup, "token")
        elsewhere = Database(database_url)
        with setup.news.watching("plan", "p q") as watched, setup.news.watching("plan", "p") as unmoved:
            if database_url.startswith("postgresql"):
                await until(other, None)  # it listens from now on, and may have missed some before
            watched.clear()
            unmoved.clear()
            async with elsewhere.write() as session:
                await publish(session, "plan", "p q")
            await until(heard, "p q")
            await asyncio.wait_for(watched.wait(), 60)
            assert not unmoved.is_set()
        assert set(other) <= {None}
        assert not setup.news._watchers
        await elsewhere.close()

    on(database_url, scenario)


def test_own_news_are_heard_at_commit(database_url: str) -> None:
    """A process hears at once of what it says, even while it is deaf to others."""

    async def scenario(setup: Setup) -> None:
        deaf = build_news(setup.database)
        heard: Heard = []
        deaf.on("plan", heard.append)
        async with setup.database.write() as session:
            await publish(session, "plan", "p")
            assert heard == []
        await asyncio.sleep(0)
        assert heard == ["p"]

    on(database_url, scenario)


def test_what_is_rolled_back_is_no_news(database_url: str) -> None:
    """Publishing belongs to the transaction."""

    async def scenario(setup: Setup) -> None:
        heard = listen(setup)

        async def failing() -> None:
            async with setup.database.write() as session:
                await publish(session, "plan", "never")
                raise RuntimeError("rolled back")

        with pytest.raises(RuntimeError):
            await failing()
        async with setup.database.write() as session:
            await publish(session, "plan", "after")
        await until(heard, "after")
        assert "never" not in heard

    on(database_url, scenario)


def test_nothing_is_stale_once_it_has_started(sqlite_url: str) -> None:
    """Who has started hears nothing of what was there before; else all that it remembers since would be dropped."""

    async def scenario(setup: Setup) -> None:
        heard = listen(setup)
        elsewhere = Database(sqlite_url)
        async with elsewhere.write() as session:
            await publish(session, "plan", "after")
        await until(heard, "after")
        assert heard == ["after"]
        await elsewhere.close()

    on(sqlite_url, scenario)


def test_news_that_nobody_understands_ends_nothing(postgres_url: str) -> None:
    """Whatever somebody else says on our channel, later news are heard."""

    async def scenario(setup: Setup) -> None:
        heard = listen(setup)
        elsewhere = Database(postgres_url)
        await until(heard, None)
        async with elsewhere.write() as session:
            for stray in ("", "plan", "plan x p", "plan\x1fx\x1f2", "a\x1fb\x1fc\x1fd"):
                await session.execute(text("SELECT pg_notify('hope', :stray)"), {"stray": stray})
            await publish(session, "plan", "p")
        await until(heard, "p")
        assert "x" not in heard
        await elsewhere.close()

    on(postgres_url, scenario)


def test_who_lost_the_file_hears_that_news_were_missed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that lost its connection hears afterwards what was said meanwhile."""

    async def scenario(setup: Setup) -> None:
        heard = listen(setup)
        elsewhere = Database(sqlite_url)
        look, lost = setup.news._look, asyncio.Event()

        async def lose_once(*arguments: Any) -> Any:
            if not lost.is_set():
                lost.set()
                raise sqlite3.OperationalError("disk I/O error")
            return await look(*arguments)

        monkeypatch.setattr(setup.news, "_look", lose_once)
        async with elsewhere.write() as session:
            await publish(session, "plan", "p")
        await until(heard, "p")
        await elsewhere.close()

    on(sqlite_url, scenario)


def test_who_lags_behind_is_told_so(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old news are dropped; a process that had not read them yet knows that it missed some."""

    async def scenario(setup: Setup) -> None:
        heard = listen(setup)
        monkeypatch.setattr(module, "KEPT", 3)
        monkeypatch.setattr(module, "FORGOTTEN_AT_ONCE", 1)
        elsewhere = Database(sqlite_url)
        async with elsewhere.write() as session:
            for number in range(5):
                await publish(session, "plan", f"p{number}")
        await until(heard, None, "p4")
        assert "p0" not in heard
        await elsewhere.close()

    on(sqlite_url, scenario)
