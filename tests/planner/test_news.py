"""News of plans and tokens: who waits hears of them, in whatever process, and of nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text, update

from planner_api.db.engine import Database
from planner_api.db.tables import PlanRow
from planner_api.jobs.events import build_events
from planner_api.jobs.repository import MAX_ABANDONED
from tests.planner.solving_help import Setup, build_queue, on, row


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
