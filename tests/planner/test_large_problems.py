"""Small messages that name much: what a device lists is bounded in its product too, before anything of it is made."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from datetime import timedelta
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from hope_schema import HOST, Job, TensorType
from planner_api.db.tables import PlanRow
from planner_api.jobs import queue
from planner_api.models.figures import Figures
from planner_api.plans import make, service
from planner_api.plans.solve import FIRST, FirstPlan
from planner_api.prediction import predictor
from planner_api.prediction.complete import MOST_KINDS, train
from planner_api.prediction.predictor import Predictor, Sample
from tests.planner.samples import (
    PROCESSORS,
    QUICK,
    Api,
    chain,
    enrolled,
    eventually,
    missing_request,
    plan_request,
    serving,
)
from tests.prediction.test_prediction import drawn, true_us

pytestmark = pytest.mark.above_databases

GRAPH = chain()
TYPES = tuple(TensorType(shape=(n,), dtype="float32") for n in range(4))


@pytest.fixture
def api(database_url: str) -> Iterator[Api]:
    """A planner that wants tokens, and knows the model on its SoC; a device may ask for one plan."""
    with serving(database_url) as running:
        running.learn(GRAPH)
    with serving(database_url, tokens_required=True, plan_keys_per_day=1) as running:
        yield running


@given(
    places=st.lists(st.sampled_from((HOST, "host/a", "host/b", "gpu")), max_size=6),
    ends=st.lists(st.integers(0, len(TYPES)), min_size=3, max_size=3),
)
def test_transfers_are_counted_without_listing_them(places: list[str], ends: list[int]) -> None:
    """The count is that of the list."""
    inputs, inner, outputs = (TYPES[:end] for end in ends)
    figures = Figures(signatures=("a",), inputs=inputs, inner=inner, outputs=outputs)
    assert figures.count_transfers(places) == len(list(figures.transfers(places)))


def test_a_question_about_too_many_figures_is_refused(api: Api) -> None:
    """A thousand processors in as many places: a million ways for each tensor, and nothing is kept of the question."""
    many = tuple(
        PROCESSORS[0].model_copy(update={"id": f"p{n}", "core_class": f"c{n}", "place": f"host/{n}"})
        for n in range(1000)
    )
    asked = missing_request(GRAPH).model_copy(update={"processors": many, "soc": "made-up"})
    device = enrolled(api, "device-1")
    answer = api.post("/profiles/missing", asked, **device)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:hope:too-many-figures")
    assert "at most 64 at a time" in answer.json()["detail"]
    assert api.client.get("/profiles/made-up/max", headers=device).status_code in (403, 404)


def test_a_plan_that_nobody_makes_in_time_is_made_all_the_same(database_url: str) -> None:
    """Its device is told to return, for which it pays once, and finds the plan when a worker came."""
    with serving(database_url) as api:
        api.learn(GRAPH)
    limits = {"tokens_required": True, "plan_keys_per_day": 1, "first_wait_s": 0.1}
    with serving(database_url, works=(), **limits) as api:
        device = enrolled(api, "device-1")
        for _ in range(2):
            answer = api.post("/plans", plan_request(GRAPH), **device)
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:hope:unavailable")
            assert int(answer.headers["retry-after"]) == 2
        with api.working(QUICK):
            assert eventually(lambda: api.post("/plans", plan_request(GRAPH), **device).status_code == 200)
        answer = api.post("/plans", plan_request(GRAPH), **device)
        assert (answer.status_code, answer.json()["version"], answer.json()["provisional"]) == (200, 1, True)
        assert api.post("/plans", plan_request(GRAPH, method="greedy"), **device).status_code == 429


def test_a_plan_that_is_too_large_is_told_so(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its device learns why there is none, and so does who asks again, which makes nothing anew."""
    monkeypatch.setattr(make, "MOST_PRICES", 5 * 3**2 - 1)
    plan = Mock(side_effect=AssertionError("a problem was made before it was known how large it is"))
    monkeypatch.setattr(make, "plan", plan)
    device = enrolled(api, "device-1")
    for _ in range(2):
        answer = api.post("/plans", plan_request(GRAPH), **device)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:hope:unplannable")
        assert "45 prices of moves" in answer.json()["detail"]
    monkeypatch.undo()
    assert api.post("/plans", plan_request(GRAPH), **device).status_code == 422, "nothing of its figures has moved"
    other = enrolled(api, "device-2")
    monkeypatch.setattr(make, "MOST_PRICES", 5 * 3**2)
    assert api.post("/plans", plan_request(GRAPH, method="greedy"), **other).status_code == 200, "as large as may be"


@pytest.mark.parametrize("by", [timedelta(minutes=-11), timedelta(days=1)], ids=["passed", "set_back"])
def test_a_shortage_that_has_passed_is_forgotten(api: Api, monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """A plan for which memory was short is told so at first, and made for who asks once that may have passed."""
    monkeypatch.setattr(queue, "RETRY_S", 0.0)
    device = enrolled(api, "device-1")
    short = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(make, "plan", short)
    for _ in range(2):
        answer = api.post("/plans", plan_request(GRAPH), **device)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:hope:unavailable")
        assert "No space left on device" in answer.json()["detail"]
        assert 500 < int(answer.headers["retry-after"]) <= 600
    assert short.call_count == queue.MAX_FAILURES, "it is not tried again meanwhile"
    monkeypatch.undo()

    async def later() -> None:
        async with api.app.planner.database.write() as session:
            retry_at = await session.scalar(select(PlanRow.retry_at))
            await session.execute(update(PlanRow).values(retry_at=retry_at + by))

    api.await_(later)
    assert api.post("/plans", plan_request(GRAPH), **device).status_code == 200


def test_a_plan_at_which_workers_vanish_is_not_asked_for_again(database_url: str) -> None:
    """What ended the processes of ten workers is no shortage that passes: it would end the next ten."""
    with serving(database_url) as api:
        api.learn(GRAPH)
        api.profile()
    with serving(database_url, works=(), first_wait_s=0.1) as api:
        assert api.post("/plans", plan_request(GRAPH)).status_code == 503
        planner = api.app.planner
        kinds = {FIRST: FirstPlan(planner.database, planner.settings)}

        async def vanish() -> None:
            for _ in range(queue.MAX_ABANDONED):
                async with planner.database.write() as session:
                    assert await queue.take(session, [FIRST], "another-machine|1|1", ttl_s=0.0)
                await planner.queue.reap(kinds)

        api.await_(vanish)
        answer = api.post("/plans", plan_request(GRAPH))
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:hope:unplannable")
        assert "vanished" in answer.json()["detail"]


def test_jobs_that_are_too_many_together_are_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of more ops than a plan may hold are not even queued."""
    monkeypatch.setattr(service, "MAX_OPS", 3 * len(GRAPH.ops))
    device = enrolled(api, "device-1")
    jobs = (Job(model_hash=GRAPH.model_hash),) * 4
    answer = api.post("/plans", plan_request(GRAPH, jobs=jobs), **device)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:hope:unplannable")
    assert "have 16" in answer.json()["detail"]
    monkeypatch.undo()
    assert api.post("/plans", plan_request(GRAPH, jobs=jobs), **device).status_code == 200


def test_predictions_take_a_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many ops are predicted in parts, which changes nothing, and of many kinds of processor those known best."""
    ops = drawn(seed=1, count=50)
    known = [Sample(op, true_us(op)) for op in ops[:30]]
    whole = Predictor(known)(ops)
    monkeypatch.setattr(predictor, "AT_ONCE", 7)
    parts = Predictor(known)(ops)
    assert [one.us for one in parts] == pytest.approx([one.us for one in whole])
    assert [one.spread for one in parts] == pytest.approx([one.spread for one in whole])
    found = train({f"kind-{n}": known[: 20 + n % 2] for n in range(MOST_KINDS + 9)}, {})
    assert len(found) == MOST_KINDS
