"""Devices take turns with large bodies, first plans and solves: nobody waits behind all that another one wants."""

from __future__ import annotations

import asyncio
import select as ready
import socket
from collections import Counter
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from planner_api.cli.serve import build_config
from planner_api.concurrency import Turns
from planner_api.db.tables import JobRow
from planner_api.errors import TooOftenError
from planner_api.jobs.kind import Lease
from planner_api.jobs.queue import take
from planner_api.jobs.wanted import Wanted, put
from planner_api.plans.solve import BETTER, FIRST
from planner_api.web.body import SMALL_BYTES
from planner_api.web.principal import Principal
from tests.planner.samples import (
    QUICK,
    Api,
    chain,
    enrolled,
    eventually,
    measure,
    plan_request,
    serving,
)
from tests.planner.wire import listening, raw, received

GRAPH = chain()


pytestmark = pytest.mark.planner(tokens_required=True)


@pytest.mark.above_databases
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
        status, headers, said = received(told)
        assert status == 429
        assert "retry-after" in headers
        assert b"quota large_bodies" in said
        body = GRAPH.model_dump_json().encode() + b" " * (SMALL_BYTES + 1)
        assert api.post("/models", body, **other).status_code == 201


def test_a_hundred_keys_wait_behind_anothers_first(api: Api) -> None:
    """A device's later keys have less priority than another device's first, those beside a solve too."""
    greedy, modest = enrolled(api, "greedy"), enrolled(api, "modest")
    api.post("/models", GRAPH, **greedy)
    api.upload(measure(api.missing(GRAPH, "greedy", greedy), "greedy"), greedy)
    for processors in (("ort@0",), ("ort@1",), ("ort@0", "ort@1")):
        assert api.post("/plans", plan_request(GRAPH, processors=processors), **greedy).status_code == 200
        if processors == ("ort@0",):
            assert api.await_(take_better, api) is not None
    assert api.post("/plans", plan_request(GRAPH), **modest).status_code == 200

    async def queue() -> list[str | None]:
        async with api.app.planner.database.read() as session:
            return list(await session.scalars(select(JobRow.asked_by).order_by(JobRow.rank)))

    order = api.await_(queue)
    assert order == ["device:greedy", "device:modest", "device:greedy", "device:greedy"]


async def take_better(api: Api) -> Lease | None:
    """Begin to solve what is first in the queue."""
    async with api.app.planner.database.write() as session:
        return await take(session, [BETTER], "a worker", 60.0)


def test_first_plans_of_many_keys_let_anothers_through(database_url: str) -> None:
    """A device that asks for many plans at once delays another's first by what is at work, and by no more."""
    with serving(database_url, works=(), tokens_required=True, first_wait_s=0.0) as api:
        greedy, modest = enrolled(api, "greedy"), enrolled(api, "modest")
        api.post("/models", GRAPH, **greedy)
        with api.working(QUICK):
            api.upload(measure(api.missing(GRAPH, "greedy", greedy), "greedy"), greedy)
        for processors in (("ort@0",), ("ort@1",), ("ort@0", "ort@1")):
            assert api.post("/plans", plan_request(GRAPH, processors=processors), **greedy).status_code == 503
        assert api.post("/plans", plan_request(GRAPH), **modest).status_code == 503

        async def order() -> list[str | None]:
            async with api.app.planner.database.write() as session:
                leases = [await take(session, [FIRST], "a worker", 60.0) for _ in range(4)]
            return [lease.asked_by for lease in leases if lease is not None]

        assert api.await_(order) == ["device:greedy", "device:modest", "device:greedy", "device:greedy"]


def test_replicas_count_a_devices_keys_together(api: Api) -> None:
    """Of two keys that a device asks two replicas for at the same moment, one has less priority."""
    greedy = enrolled(api, "greedy")
    assert api.post("/models", GRAPH, **greedy).status_code == 201
    planner, caller = api.app.planner, Principal("device", "device:greedy", "greedy")

    async def ask(plan_id: str) -> int:
        async with planner.database.write() as session:
            waiting = await planner.plans._waiting(session, caller)
            await asyncio.sleep(0.05)
            await put(session, Wanted(BETTER, plan_id, asked_by=caller.name))
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


def test_another_begins_between_two_of_one_owner() -> None:
    """Where an owner has many things ready that never wait, another's begins after the first of them."""

    async def main() -> None:
        turns, begun = Turns("things", slots=None, each=16, waiting=16, refused=Counter()), []

        async def begin(owner: str) -> None:
            async with turns.turn(owner):
                begun.append(owner)

        await asyncio.gather(*map(begin, "aaaab"))
        assert begun == ["a", "b", "a", "a", "a"]

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
