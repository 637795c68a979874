"""Devices take turns with large bodies, first plans and solves: nobody waits behind all that another one wants."""

from __future__ import annotations

import asyncio
import select as ready
import socket
import threading
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from planner_api.cli.serve import build_config
from planner_api.db.tables import PlanRow
from planner_api.errors import TooOftenError
from planner_api.jobs.repository import take
from planner_api.locks import Turns
from planner_api.plans import repository, service
from planner_api.web.body import SMALL_BYTES
from planner_api.web.principal import Principal
from tests.planner.samples import (
    Api,
    chain,
    enrolled,
    eventually,
    measure,
    plan_request,
    serving,
)
from tests.planner.wire import listening, raw

GRAPH = chain()


pytestmark = pytest.mark.planner(tokens_required=True)


def test_large_bodies_are_taken_in_by_turns(database_url: str) -> None:
    """A device that begins many and ends none is told to return, while another one's is taken in."""
    with serving(database_url, tokens_required=True) as api, ExitStack() as open_ones:
        token, other = enrolled(api, "greedy")["authorization"], enrolled(api, "modest")
        turns = api.app.planner.large_bodies
        turns._most = 3
        port = open_ones.enter_context(listening(api, build_config(api.app, "127.0.0.1", 0)))
        begun = raw("POST", "/models", content_length="400000", authorization=token) + b" " * (SMALL_BYTES + 1)
        answers = []
        for _ in range(turns._each + turns._most + 1):
            connection = open_ones.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            connection.sendall(begun)
            answers.append(connection)
        assert eventually(lambda: api.app.planner.quotas.refused["large_bodies"] == 1)
        ((told,), _, _) = ready.select(answers, [], [], 20)
        found = told.recv(4096)
        assert found.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: " in found
        assert b"quota large_bodies" in found
        body = GRAPH.model_dump_json().encode() + b" " * (SMALL_BYTES + 1)
        assert api.post("/models", body, **other).status_code == 201


def test_a_hundred_keys_wait_behind_anothers_first(api: Api) -> None:
    """A device's later keys have less priority than another device's first, those beside a solve too."""
    greedy, modest = enrolled(api, "greedy"), enrolled(api, "modest")
    api.post("/models", GRAPH, **greedy)
    api.upload(measure(api.missing(GRAPH, "greedy", greedy), "greedy"), greedy)
    planner = api.app.planner

    async def begin() -> None:
        async with planner.database.write() as session:
            assert await take(session, "a worker", 60.0) is not None

    for processors in (("ort@0",), ("ort@1",), ("ort@0", "ort@1")):
        assert api.post("/plans", plan_request(GRAPH, processors=processors), **greedy).status_code == 200
        if processors == ("ort@0",):
            api.await_(begin)
    assert api.post("/plans", plan_request(GRAPH), **modest).status_code == 200

    async def queue() -> list[str | None]:
        async with api.app.planner.database.read() as session:
            query = select(PlanRow.asked_by).order_by(PlanRow.priority.desc(), PlanRow.queued_at)
            return list(await session.scalars(query))

    order = api.await_(queue)
    assert order == ["device:greedy", "device:modest", "device:greedy", "device:greedy"]


def test_first_plans_are_made_in_turns(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one device's first plan is being made its others wait, and another device's is made beside it."""
    greedy = enrolled(api, "greedy")
    api.post("/models", GRAPH, **greedy)
    api.upload(measure(api.missing(GRAPH, "greedy", greedy), "greedy"), greedy)
    begun: list[tuple[str, ...] | None] = []
    over = threading.Event()
    solve = service._solve

    def slowly(graphs: Any, profile: Any, request: Any, budget_s: float) -> Any:
        begun.append(request.processors)
        assert over.wait(20)
        return solve(graphs, profile, request, budget_s)

    monkeypatch.setattr(service, "_solve", slowly)

    async def begun_are(count: int) -> None:
        async with asyncio.timeout(20):
            while len(begun) < count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # for whoever should wait and does not
        assert len(begun) == count

    async def ask_for(name: str, processors: tuple[str, ...] | None) -> None:
        request, caller = plan_request(GRAPH, processors=processors), Principal("device", f"device:{name}", name)
        await api.app.planner.plans.plan(request, caller)

    async def main() -> None:
        async with asyncio.TaskGroup() as asking:
            for processors in (("ort@0",), ("ort@1",), ("ort@0", "ort@1")):
                asking.create_task(ask_for("greedy", processors))
            await begun_are(1)
            asking.create_task(ask_for("modest", None))
            await begun_are(2)
            over.set()

    api.await_(main)
    assert (len(begun), begun[1]) == (4, None)


def test_replicas_count_a_devices_keys_together(api: Api) -> None:
    """Of two keys that a device asks two replicas for at the same moment, one has less priority."""
    greedy = enrolled(api, "greedy")
    assert api.post("/models", GRAPH, **greedy).status_code == 201
    planner = api.app.planner
    making = planner.making

    async def ask(plan_id: str) -> int:
        async with planner.database.write() as session:
            waiting = await making.waiting(session, Principal("device", "device:greedy", "greedy"))
            await asyncio.sleep(0.05)
            asked_at = datetime.now(UTC)
            await repository.insert(session, plan_id, plan_request(GRAPH), asked_at, asked_by="device:greedy")
            await making.improve(session, plan_id, waiting, fresh=True)
        return int(waiting)

    async def both() -> list[int]:
        return sorted(await asyncio.gather(ask("p-1"), ask("p-2")))

    assert api.await_(both) == [0, 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=40), st.integers(1, 3))
@settings(max_examples=40)
def test_turns_are_taken(jobs: list[tuple[int, int]], slots: int) -> None:
    """Never more at work than allowed, never two of one owner, and all come to their turn."""

    async def main() -> None:
        turns = Turns("things", slots=slots, each=1, waiting=100, refused=Counter())
        running: list[int] = []
        started: list[int] = []

        async def job(owner: int, rounds: int) -> None:
            async with turns.turn(owner):
                assert owner not in running
                running.append(owner)
                started.append(owner)
                assert len(running) <= slots
                for _ in range(rounds):
                    await asyncio.sleep(0)
                running.remove(owner)

        await asyncio.gather(*(job(owner, rounds) for owner, rounds in jobs))
        assert len(started) == len(jobs)
        assert not turns._waiting
        assert not turns._at_work

    asyncio.run(main())


def test_who_gives_up_as_a_turn_ends_holds_nobody_up() -> None:
    """Who is cancelled at the moment when it would get its turn leaves it to the next, and the line stays whole."""

    async def main() -> None:
        turns = Turns("things", slots=1, each=1, waiting=2, refused=Counter())
        over = asyncio.Event()

        async def work() -> None:
            async with turns.turn("a"):
                await over.wait()

        tasks = [asyncio.create_task(work()), *(asyncio.create_task(_hold(turns, owner)) for owner in "bc")]
        await asyncio.sleep(0)
        over.set()
        tasks[1].cancel()
        async with asyncio.timeout(10):
            found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in found] == [type(None), asyncio.CancelledError, type(None)]
        assert not turns._waiting
        assert not turns._at_work

    asyncio.run(main())


def test_too_many_that_wait_are_refused() -> None:
    """Beyond its line an owner is told to return, which is counted, while another still gets its turn."""
    refused: Counter[str] = Counter()

    async def main() -> None:
        turns = Turns("things", slots=1, each=1, waiting=2, refused=refused)
        async with turns.turn("a"):
            waiting = [asyncio.create_task(_hold(turns, "a")) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(TooOftenError, match="quota things"):
                await _hold(turns, "a")
            assert refused == {"things": 1}
            other = asyncio.create_task(_hold(turns, "b"))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting, other)

    asyncio.run(main())


async def _hold(turns: Turns, owner: str) -> None:
    async with turns.turn(owner):
        await asyncio.sleep(0)
