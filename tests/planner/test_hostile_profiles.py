"""What devices cannot do to a profile, or to others who ask about it: chosen ids, another process's trust, hoarding."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from sqlalchemy import select, update

from hope_schema import Missing, MissingLatency
from hope_schema.base import MAX_ROWS
from planner_api.db.tables import AssignmentRow, InboxRow
from planner_api.errors import TooOftenError
from planner_api.profiles import repository, service
from planner_api.profiles.folding import Folder, estimate
from planner_api.profiles.statistics import Statistics, device_hash, ranks
from planner_api.web.principal import Principal
from tests.planner.samples import (
    FREQUENCY,
    PROCESSORS,
    SOC,
    Api,
    bearer,
    chain,
    enrol,
    enrolled,
    make_token,
    measure,
    missing_request,
    serving,
)

GRAPH = chain(6)


def test_no_id_can_be_chosen_for_its_ranks() -> None:
    """Ids that are lowest of ten thousand on a figure under one key are so under another as often as any."""
    draw = np.random.default_rng(1)
    ids = np.array([device_hash(f"device-{number}") for number in range(10_000)], dtype=np.uint64)
    name = draw.integers(0, 2**63, 50).astype(np.uint64)[:, None]
    guessed, real = Statistics().key, Statistics().key
    chosen = np.argsort(ranks(guessed, name, ids[None, :]), axis=1)[:, :20]
    places = np.argsort(np.argsort(ranks(real, name, ids[None, :]), axis=1), axis=1)
    assert 0.4 < np.take_along_axis(places, chosen, axis=1).mean() / len(ids) < 0.6
    assert Statistics.load(Statistics(real).dump()).key == real


def upload(api: Api, device: str, header: dict[str, str], count: int) -> None:
    """Say figures that nobody else says."""
    number = random.Random(device)
    rows = tuple(
        MissingLatency(signature=f"Op:{number.getrandbits(64):016x}", kind=PROCESSORS[0].kind) for _ in range(count)
    )
    assert (
        api.post("/profiles", measure(Missing(profile_version=0, latencies=rows), device), **header).status_code == 202
    )


@pytest.mark.parametrize(("accepts", "folds"), [(True, False), (False, True)])
def test_whoever_folds_believes_what_was_believed(database_url: str, accepts: bool, folds: bool) -> None:
    """An upload's share is that of the planner that accepted it, whatever the process was told that folds it."""
    with serving(database_url, works=(), tokens_required=accepts, figures_per_device=10) as api:
        upload(api, "device-1", enrolled(api, "device-1") if accepts else {}, 30)
    with serving(database_url, tokens_required=folds, figures_per_device=10) as api:
        profile = api.profile()
    assert len(profile.latencies.us) == (10 if accepts else 30)


def test_reading_a_profile_folds_nothing(database_url: str) -> None:
    """An export tells what is there; what waits goes on waiting."""
    with serving(database_url) as api:
        api.learn(GRAPH)
        version = api.profile().version
        upload(api, "device-2", {}, 5)
        assert api.client.get(f"/profiles/{SOC}/{FREQUENCY}").json()["version"] == version

        async def waiting() -> int:
            async with api.app.planner.database.read() as session:
                return len((await session.scalars(select(InboxRow.id).where(InboxRow.folded_at.is_(None)))).all())

        assert api.await_(waiting) == 1


def lease_s(api: Api, device: str) -> float:
    """How long a device has for what it was asked for."""

    async def find() -> float:
        async with api.app.planner.database.read() as session:
            row = (await session.scalars(select(AssignmentRow).where(AssignmentRow.device_id == device))).one()
            start = api.app.planner.profiles._assigned()[0]
            return float((row.expires_at - start).total_seconds())

    found: float = api.await_(find)
    return found


@pytest.mark.planner(tokens_required=True, assignment_s=600.0)
def test_who_delivers_nothing_is_waited_for_less(api: Api) -> None:
    """Each time that a device uploads nothing of what it was asked for, others are asked sooner."""
    hoarder, honest = enrolled(api, "hoarder"), enrolled(api, "honest")
    assert api.post("/models", GRAPH, **honest).status_code == 201
    for halved in range(4):
        assert api.missing(GRAPH, "hoarder", hoarder, max_items=1000).latencies
        assert 600 / 2**halved - 60 < lease_s(api, "hoarder") <= 600 / 2**halved
    assert not api.missing(GRAPH, "honest", honest, max_items=1000).latencies

    async def expire() -> None:
        async with api.app.planner.database.write() as session:
            row = select(AssignmentRow.expires_at).where(AssignmentRow.device_id == "hoarder")
            ended = (await session.scalars(row)).one()
            start = api.app.planner.profiles._assigned()[0]
            await session.execute(update(AssignmentRow).values(expires_at=ended - (ended - start)))

    api.await_(expire)
    found = api.missing(GRAPH, "honest", honest, max_items=1000)
    assert found.latencies
    assert api.upload(measure(found, "honest"), honest).status_code == 202
    other = chain(9, "other")
    api.post("/models", other, **honest)
    assert api.missing(other, "honest", honest, max_items=1000).latencies
    assert lease_s(api, "honest") > 540


@pytest.mark.planner(tokens_required=True, assignment_s=600.0)
def test_who_never_delivers_keeps_nothing_from_others(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often such a device asks, it ends up with no time at all: the next one is asked at once."""
    monkeypatch.setattr(service, "MOST_HALVED", 2)
    hoarder, honest = enrolled(api, "hoarder"), enrolled(api, "honest")
    assert api.post("/models", GRAPH, **honest).status_code == 201
    for _ in range(4):
        assert api.missing(GRAPH, "hoarder", hoarder, max_items=1000).latencies
    assert lease_s(api, "hoarder") <= 0
    assert api.missing(GRAPH, "honest", honest, max_items=1000).latencies


@pytest.mark.planner(tokens_required=True, assignment_s=600.0)
def test_devices_of_a_claim_hoard_no_longer_in_turn_than_one(api: Api) -> None:
    """Each device of a claim that lets its time run out shortens the next one's; another claim's keeps its own."""
    claim = make_token(api, "claim")
    names = [f"hoarder-{number}" for number in range(3)]
    tokens = [bearer(enrol(api, claim, name).json()["token"]) for name in names]
    honest = enrolled(api, "honest")
    assert api.post("/models", GRAPH, **honest).status_code == 201

    async def run_out() -> None:
        async with api.app.planner.database.write() as session:
            start = api.app.planner.profiles._assigned()[0]
            await session.execute(update(AssignmentRow).values(expires_at=start))

    for halved, (name, token) in enumerate(zip(names, tokens, strict=True)):
        assert api.missing(GRAPH, name, token, max_items=1000).latencies
        assert 600 / 2**halved - 60 < lease_s(api, name) <= 600 / 2**halved
        api.await_(run_out)
    assert api.missing(GRAPH, "honest", honest, max_items=1000).latencies
    assert lease_s(api, "honest") > 540


@pytest.mark.planner(tokens_required=True)
def test_what_was_asked_before_a_clock_went_back_keeps_nothing_from_others(api: Api) -> None:
    """An assignment that ends later than any can that is given now does not count until the clock catches up."""
    first, second = enrolled(api, "first"), enrolled(api, "second")
    assert api.post("/models", GRAPH, **first).status_code == 201
    assert api.missing(GRAPH, "first", first, max_items=1000).latencies
    assert not api.missing(GRAPH, "second", second, max_items=1000).latencies

    async def set_back() -> None:
        async with api.app.planner.database.write() as session:
            ahead = api.app.planner.profiles._assigned()[1] + timedelta(days=1)
            await session.execute(
                update(AssignmentRow).where(AssignmentRow.device_id == "first").values(expires_at=ahead)
            )

    api.await_(set_back)
    assert api.missing(GRAPH, "second", second, max_items=1000).latencies


HASHES = st.lists(st.integers(0, 6), max_size=8)


@hypothesis.given(others=HASHES, before=HASHES, unknown=HASHES)
def test_what_others_were_asked_meanwhile(others: list[int], before: list[int], unknown: list[int]) -> None:
    """Others were asked for the same meanwhile where a figure of theirs is new and one of mine."""
    packed = [np.array(each, np.uint64).tobytes() for each in (others, before, unknown)]
    assert service.meets(*packed) == any(each in unknown and each not in before for each in others)


def test_two_who_ask_for_everything_are_compared_once() -> None:
    """As many figures as there may be, asked of two devices at once, are compared without one loop in another."""
    mine, theirs = (np.arange(start, start + MAX_ROWS, dtype=np.uint64).tobytes() for start in (0, MAX_ROWS))
    assert not service.meets(theirs, b"", mine)
    assert service.meets(theirs + mine[:8], theirs, mine)


@pytest.mark.planner(tokens_required=True)
def test_an_assignment_holds_so_many_figures(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much devices are asked for, and however many of them, one question reads a bounded part of it."""
    monkeypatch.setattr(service, "MOST_ASSIGNED", 3)
    monkeypatch.setattr(repository, "HEEDED", 2)
    names = [f"device-{number}" for number in range(4)]
    tokens = {name: enrolled(api, name) for name in names}
    api.post("/models", GRAPH, **tokens[names[0]])
    for name in names:
        assert len(api.missing(GRAPH, name, tokens[name]).latencies) > 3

    async def heeded() -> bytes:
        async with api.app.planner.database.read() as session:
            (profile_id,) = set(await session.scalars(select(AssignmentRow.profile_id)))
            between = api.app.planner.profiles._assigned()
            return await repository.assigned_elsewhere(session, profile_id, "nobody", between)

    assert len(api.await_(heeded)) == 2 * 3 * 8


def test_large_questions_are_answered_by_a_child(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long to find out is found out by another process, and is the same."""
    with serving(sqlite_url) as api:
        api.learn(chain(2))
        assert api.post("/models", GRAPH).status_code == 201
        here = api.post("/profiles/missing", missing_request(GRAPH)).json()
        monkeypatch.setattr(service, "SMALL_PROFILE", -1)
        there = api.post("/profiles/missing", missing_request(GRAPH)).json()
        assert here == there
        assert there["latencies"]
        assert api.app.planner.profiles._child.pid is not None


def test_a_question_names_so_many_kinds(sqlite_url: str) -> None:
    """Kinds of processor that nobody has are not looked up by the hundred."""
    with serving(sqlite_url, works=()) as api:
        assert api.post("/models", GRAPH).status_code == 201
        many = tuple(
            PROCESSORS[0].model_copy(update={"id": f"ort@{number}", "core_class": f"c{number}"}) for number in range(65)
        )
        asked = missing_request(GRAPH).model_copy(update={"processors": many})
        assert api.post("/profiles/missing", asked).status_code == 422


def test_a_caller_asks_one_question_at_a_time(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks again meanwhile waits, up to a number of times, before anything is looked up; others do not."""
    question = missing_request(GRAPH)

    async def main(profiles: service.Profiles) -> tuple[list[int], list[bool]]:
        begun: list[int] = []
        go_on = asyncio.Event()

        async def held(soc: str, frequency: str) -> None:
            begun.append(0)
            await go_on.wait()

        with monkeypatch.context() as patch:
            patch.setattr(profiles, "folded", held)
            asked = [
                asyncio.create_task(profiles.missing(question, Principal("admin", who))) for who in ["a"] * 6 + ["b"]
            ]
            seen: list[int] = []
            async with asyncio.timeout(60.0):
                while len(begun) < 2:
                    await asyncio.sleep(0)
            for _ in range(100):  # turns of the loop in which a third one would begin
                await asyncio.sleep(0)
            seen.append(len(begun))
            go_on.set()
            answers = await asyncio.gather(*asked, return_exceptions=True)
        seen.append(len(begun))
        return seen, [isinstance(answer, TooOftenError) for answer in answers]

    with serving(sqlite_url, works=()) as api:
        assert api.post("/models", GRAPH).status_code == 201
        seen, refused = api.await_(lambda: main(api.app.planner.profiles))
    assert seen == [2, 6]
    assert refused == [False] * 5 + [True, False]


def test_what_is_computed_counts_against_its_sender(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that takes long uses up its device's rate as many requests would, and nobody else's."""
    monkeypatch.setattr("planner_api.devices.guard.COUNTS_PER_S", 1e9)
    monkeypatch.setattr(service, "SMALL_PROFILE", -1)
    with serving(sqlite_url, works=(), tokens_required=True, rate_per_token=0.001, burst_per_token=50) as api:
        asks, other = enrolled(api, "asks"), enrolled(api, "other")
        assert api.post("/models", GRAPH, **asks).status_code == 201
        assert api.missing(GRAPH, "asks", asks).latencies
        assert api.client.get("/devices/asks", headers=asks).status_code == 429
        assert api.client.get("/devices/other", headers=other).status_code == 200


def test_a_doubted_voter_stretches_nothing() -> None:
    """Of two on a figure, one that others refuse elsewhere is left out; two of whom nothing is known are both heard."""
    folder = Folder(Statistics())
    shared = [f"Op:{number:016x}" for number in range(8)]
    for name in ("a", "b", "c"):
        folder.fold([(name, said(dict.fromkeys(shared, 10.0)))])
    folder.fold([("liar", said({**dict.fromkeys(shared, 900.0), "Op:lone": 900.0, "Op:pair": 10.0}))])
    folder.fold([("a", said({"Op:lone": 10.0})), ("new", said({"Op:other": 30.0})), ("b", said({"Op:other": 10.0}))])
    votes = folder.statistics.latencies
    us = dict(zip((key[0] for key in votes.keys), estimate(votes)[0].tolist(), strict=True))
    assert us["Op:lone"] == 10.0
    assert us["Op:other"] == 20.0
    assert us["Op:pair"] == 10.0, "who is doubted and alone is another matter"


def said(us: dict[str, float]) -> dict[str, Any]:
    """An upload of these latencies."""
    columns = {"signature": list(us), "kind": ["k"] * len(us), "us": list(us.values())}
    return {"processors": [], "latencies": {**columns, "spread_us": [0.1] * len(us), "count": [5] * len(us)}}
