"""Plans in memory: bounded, never stale, authenticated and counted, on every replica."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, select

from hope_schema import Missing, MissingLatency, Plan, PlanReply, merge
from hope_schema.cutgraph import cut_graph
from planner_api.compression import loaded, zstd
from planner_api.db.tables import JobRow, PlanRow, PlanVersionRow
from planner_api.errors import DatabaseAwayError
from planner_api.jobs.kind import Lease
from planner_api.jobs.queue import take
from planner_api.jobs.wanted import Wanted, put
from planner_api.plans import outdated, service
from planner_api.plans import repository as plans
from planner_api.plans.key import REMEMBERED_BYTES, asked, keyed
from planner_api.plans.make import make
from planner_api.plans.solve import BETTER, BetterPlan
from planner_api.plans.stored import OVERHEAD_BYTES, build_cache, matches
from planner_api.profiles.jobs import FOLD, OUTDATED, key_of
from planner_api.web.errors import HttpError
from planner_api.web.stored import reads_zstd
from tests.planner.jobs_help import improve
from tests.planner.samples import (
    FREQUENCY,
    PROCESSORS,
    SOC,
    Api,
    admin_token,
    chain,
    eventually,
    measure,
    plan_request,
    serving,
)
from tests.planner.test_predictions import convolutions

GRAPH = chain()


def entry(name: str, version: int = 1, size: int = 100) -> PlanVersionRow:
    """A plan of a size."""
    return PlanVersionRow(plan_id=name, version=version, etag=f'W/"{name}-{version}"', body_zstd=bytes(size))


def test_least_recently_used_goes_first() -> None:
    """The cache holds what fits, and drops what was not asked for longest."""
    cache = build_cache(3 * (OVERHEAD_BYTES + 100))
    for name in "abc":
        cache.put((name, None), entry(name), cache.generation)
    cache.get(("a", None))
    cache.put(("d", None), entry("d"), cache.generation)
    assert [name for name in "abcd" if cache.get((name, None)) is not None] == ["a", "c", "d"]
    cache.put(("huge", None), entry("huge", size=10**6), cache.generation)
    assert [name for name in ("a", "c", "d", "huge") if cache.get((name, None)) is not None] == ["a", "c", "d"]


@given(st.lists(st.tuples(st.sampled_from("pfg"), st.sampled_from("abcde"), st.integers(1, 4)), max_size=60))
def test_what_is_served_is_never_older_than_the_last_word(steps: list[tuple[str, str, int]]) -> None:
    """Whatever happens in whatever order, a plan older than a version that was announced is not served."""
    cache = build_cache(10**6)
    announced: dict[str, int] = {}
    for step, name, version in steps:
        if step == "p" and version >= announced.get(name, 0):
            cache.put((name, None), entry(name, version), cache.generation)
        elif step == "f":
            cache.forget((name, None))
            announced[name] = max(version, announced.get(name, 0))
        found = cache.get((name, None))
        assert found is None or found.version >= announced.get(name, 0)


def test_a_plan_read_before_news_is_not_kept_after_it() -> None:
    """A reader that is slower than the announcement of a better version does not put the old one back."""
    cache = build_cache(10**6)
    generation = cache.generation
    cache.forget(("a", None))
    cache.put(("a", None), entry("a", 1), generation)
    assert cache.get(("a", None)) is None


@pytest.mark.parametrize(
    ("header", "zstd"),
    [
        ("", False),
        ("gzip", False),
        ("gzip, zstd", True),
        ("ZSTD;q=0.5, br", True),
        ("zstd;q=0, gzip;q=1.0", False),
        ("zstd;q=0.000", False),
        ("*", False),
        ("zstd;q=x", True),
        ("\xff\xfe,,;;=", False),
    ],
)
def test_a_client_that_reads_zstd_says_so(header: str, zstd: bool) -> None:
    """A plan is sent as it is stored to who names zstd and does not refuse it."""
    assert reads_zstd(header) is zstd


@pytest.mark.parametrize(
    ("header", "same"),
    [
        ('"abc"', True),
        ('W/"abc"', True),
        ('"x", W/"abc"', True),
        ("*", True),
        ('"ab"', False),
        ('"abcd"', False),
        ("", False),
        ("\xff", False),
    ],
)
def test_if_none_match(header: str, same: bool) -> None:
    """A copy is known by its tag, alone or in a list, weak or strong."""
    assert matches(header, 'W/"abc"') is same


def test_a_question_is_the_same_however_often_it_is_read() -> None:
    """Read again, or too long to be remembered, it has the key that it had at first; a wrong one stays wrong."""
    body = plan_request(chain(3)).model_dump_json().encode()
    spaced = body + b" " * REMEMBERED_BYTES
    found = [asked(body), asked(bytearray(body)), asked(spaced)]
    assert found == [keyed(plan_request(chain(3)))] * 3
    for _ in range(2):
        with pytest.raises(HttpError):
            asked(body.replace(b"makespan", b"fastness"))


def test_plans_in_memory_take_a_token_too(sqlite_url: str) -> None:
    """A cached plan is served to who holds a token, and to nobody else."""
    with serving(sqlite_url) as api:
        api.learn(GRAPH)
        wanted = api.plan(GRAPH).plan_id
    with serving(sqlite_url, tokens_required=True) as api:
        mine = {"authorization": f"Bearer {admin_token(api)}"}
        for _ in range(3):
            assert api.client.get(f"/plans/{wanted}", headers=mine).status_code == 200
            assert api.post("/plans", plan_request(GRAPH), **mine).status_code == 200
            for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eDp5"}):
                assert api.client.get(f"/plans/{wanted}", headers=wrong).status_code == 401
                assert api.post("/plans", plan_request(GRAPH), **wrong).status_code == 401


def test_hits_are_counted(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hits in memory and misses are added to the plan's row, whoever served them, and after an outage too."""
    with serving(database_url) as api:
        api.learn(GRAPH)
        wanted = api.plan(GRAPH).plan_id
        for _ in range(5):
            api.plan(GRAPH)
            api.client.get(f"/plans/{wanted}")
        planner = api.app.planner
        with monkeypatch.context() as outage:
            outage.setattr(service, "add_all", Mock(side_effect=OSError("away")))
            with pytest.raises(DatabaseAwayError):
                api.await_(planner.plans.flush_counts)
        assert api.counted() == (10, 1)


def test_a_better_version_reaches_every_replica(database_url: str) -> None:
    """A version stored through one replica replaces the cached one in both, with a new ETag under the same id."""
    with serving(database_url) as one, serving(database_url) as two:
        one.learn(GRAPH)
        first = one.post("/plans", plan_request(GRAPH))
        wanted = first.json()["plan_id"]
        path = f"/plans/{wanted}"
        assert two.client.get(path).json()["version"] == 1
        assert two.client.get(path).headers["etag"] == first.headers["etag"]
        assert improve(one, wanted) == 2
        for api in (one, two):
            assert eventually(lambda api=api: api.client.get(path).json()["version"] == 2)
            better = api.client.get(path, headers={"if-none-match": first.headers["etag"]})
            assert better.status_code == 200
            assert better.json()["provisional"] is False
            assert better.headers["etag"] != first.headers["etag"]
            assert api.plan(GRAPH).version == 2


def test_many_identical_requests_make_one_plan(database_url: str) -> None:
    """A burst of one key over two replicas stores one row, one version and one queued solve."""
    with serving(database_url) as one, serving(database_url) as two:
        one.learn(GRAPH)
        requests = [(api, plan_request(GRAPH)) for api in (one, two) for _ in range(20)]

        async def burst() -> list[dict[str, object]]:
            answers = await asyncio.gather(
                *(asyncio.to_thread(api.post, "/plans", request) for api, request in requests)
            )
            return [answer.json() for answer in answers]

        answers = asyncio.run(burst())
        assert {(answer["plan_id"], answer["version"]) for answer in answers} == {(answers[0]["plan_id"], 1)}

        async def rows() -> list[tuple[Any, ...]]:
            async with one.app.planner.database.read() as session:
                query = select(plans.STATUS, PlanRow.version, JobRow.kind, JobRow.attempt)
                found = await session.execute(query.join_from(PlanRow, JobRow, JobRow.key == PlanRow.id, full=True))
                return [tuple(row) for row in found]

        assert one.await_(rows) == [("queued", 1, BETTER, 0)]


def test_a_device_that_asks_while_a_release_is_solved(database_url: str) -> None:
    """A plan that a release queued and a worker has leased gets its first version at once; the lease stays good."""
    with serving(database_url) as api:
        api.learn(GRAPH)
        request, wanted = keyed(plan_request(GRAPH))
        planner = api.app.planner

        async def lease() -> Lease | None:
            async with planner.database.write() as session:
                await plans.insert(session, wanted, request)
                await put(session, Wanted(BETTER, wanted))
            async with planner.database.write() as session:
                return await take(session, [BETTER], "worker", 60.0)

        leased = api.await_(lease)
        first = api.plan(GRAPH)
        assert (first.version, first.provisional) == (1, True)

        async def finish() -> bool:
            async with planner.database.write() as session:
                return bool(await planner.queue.finish(session, leased))

        assert api.await_(finish) is True
        assert improve(api, first.plan_id) == 2


def test_a_plan_is_solved_again_when_its_figures_moved(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small movements leave solved plans alone; one beyond the threshold queues each of them, once."""
    monkeypatch.setattr(outdated, "COMPARED_AT_ONCE", 2)
    with serving(database_url) as api:
        api.learn(GRAPH)
        for method in ("auto", "ilp", "greedy"):
            api.plan(GRAPH, method=method)
        planner, profile = api.app.planner, key_of(SOC, FREQUENCY)

        async def queued() -> int:
            assert await planner.queue.ended((FOLD, profile), (OUTDATED, profile), timeout_s=60.0)
            async with planner.database.write() as session:
                return len((await session.execute(delete(JobRow).returning(JobRow.id))).all())

        assert api.await_(queued) == 2, "better ones of the first"
        everything = api.missing(GRAPH, "nobody", max_items=0)
        assert everything.latencies == ()
        again = measure_all(api, scale=1.05)
        assert again == 8
        assert api.await_(queued) == 0
        measure_all(api, scale=1.5)
        assert api.await_(queued) == 3
        measure_all(api, scale=1.51)
        assert api.await_(queued) == 0


def test_a_plan_with_cuts_is_solved_again_when_its_parts_were_measured(database_url: str) -> None:
    """What devices say of parts and of the regions that move counts as what they say of whole ops does."""
    graph = convolutions(32, 32, size=28)
    with serving(database_url) as api:
        api.learn(graph, cost=lambda _signature, _kind: 1000.0)
        plan_id = api.plan(graph, method="codl").plan_id
        improve(api, plan_id)
        plan = PlanReply.model_validate_json(api.client.get(f"/plans/{plan_id}").content).plan
        parts = merge(cut_graph(graph, plan.jobs[0].cuts))
        planner, profile = api.app.planner, key_of(SOC, FREQUENCY)
        measured = {op.signature for op in parts} - {op.signature for op in merge(graph)}
        assert measured

        async def queued() -> list[str]:
            assert await planner.queue.ended((FOLD, profile), (OUTDATED, profile), timeout_s=60.0)
            async with planner.database.write() as session:
                return list(await session.scalars(delete(JobRow).returning(JobRow.key)))

        def asked_again(kind: str, us: float) -> bool:
            rows = tuple(MissingLatency(signature=signature, kind=kind) for signature in sorted(measured))
            said = measure(Missing(profile_version=0, latencies=rows), cost=lambda _signature, _kind: us)
            assert api.post("/profiles", said).status_code == 202
            return plan_id in api.await_(queued)

        kind = PROCESSORS[0].kind
        assert [asked_again(kind, us) for us in (900.0, 901.0, 1800.0)] == [True, False, True]


def test_a_better_plan_begins_with_the_version_before_it(database_url: str) -> None:
    """What the child is given holds that version, whole; one that cannot be read is none."""
    with serving(database_url) as api:
        api.learn(GRAPH)
        first = api.plan(GRAPH)
        planner = api.app.planner
        solving = BetterPlan(planner.database, planner.settings)
        task = api.await_(lambda: solving.load(Lease(1, 1, BETTER, first.plan_id)))
        order = task.order
        assert loaded(PlanReply, order.before).plan == first.plan
        order.before, order.budget_s = zstd(b"{}"), 0.0
        made = make(order, lambda _: msgspec.msgpack.encode({}))
        assert Plan.model_validate_json(made.plan).makespan_us > 0


def measure_all(api: Api, scale: float) -> int:
    """Upload every latency of the chain anew from the same device, scaled; return how many."""
    latencies = tuple(
        MissingLatency(signature=op.signature, kind=processor.kind) for op in merge(GRAPH) for processor in PROCESSORS
    )
    upload = measure(
        Missing(profile_version=0, latencies=latencies),
        cost=lambda signature, kind: scale * (10.0 if kind.endswith("big") else 25.0),
    )
    assert api.post("/profiles", upload).status_code == 202
    return len(latencies)
