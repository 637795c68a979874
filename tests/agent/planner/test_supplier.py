"""Obtaining a plan: what the planner is asked at the first start, at the next, and when there is a better one."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from agent_sdk import errors
from agent_sdk.journey.services import UNPLANNABLE
from hope_schema import Plan
from tests.agent.planner.planner_double import plan_answer, problem, small_graph, small_plan
from tests.agent.planner.supplying import ASKED_TWICE, CURRENT, MISSING_TWICE, NOTHING, RECEIPT, never, obtain


@pytest.mark.parametrize("answer", [problem(404), problem(422, UNPLANNABLE)])
def test_where_nothing_can_be_predicted_all_is_measured_first(answer: httpx.Response, tmp_path: Path) -> None:
    """An unknown model is submitted, the missing figures are measured and uploaded, and the plan is asked for."""
    receipt = {"model_hash": small_graph().model_hash, "ops": 2, "super_ops": 2, "created": True}
    obtained, paths = obtain(
        tmp_path,
        problem(404, errors.MODEL_UNKNOWN),
        httpx.Response(201, json=receipt),
        answer,
        *MISSING_TWICE,
        RECEIPT,
        plan_answer(small_plan(), cache="miss"),
    )
    assert paths == [
        "POST /plans", "POST /models", "POST /plans", *ASKED_TWICE, "POST /profiles", "POST /plans",
    ]  # fmt: skip
    assert obtained.plan == small_plan()
    assert (obtained.source, obtained.cached, obtained.profiled_signatures) == ("planner", False, 1)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_foreseen_plan_comes_before_what_is_measured(at_once: bool, tmp_path: Path) -> None:
    """A plan that rests on predictions is had at once; else a little is measured, and the plan asked for again."""
    foreseen = plan_answer(small_plan().model_copy(update={"filled": ("latency predicted",)}))
    later = () if at_once else (*MISSING_TWICE, RECEIPT, plan_answer(small_plan(), version=2))
    obtained, paths = obtain(tmp_path, foreseen, *later, at_once=at_once)
    assert paths == ["POST /plans", *(() if at_once else (*ASKED_TWICE, "POST /profiles", "POST /plans"))]
    assert (obtained.preliminary, obtained.profiled_signatures) == (at_once, 1 - at_once)
    assert obtained.cached == at_once, "the second version was solved for what was measured now"


@pytest.mark.parametrize("filled", [(), ("latency predicted",)])
def test_second_run_only_revalidates(filled: tuple[str, ...], tmp_path: Path) -> None:
    """A known model costs one conditional GET: no graph, no profiling, the plan from disk, whatever that rests on."""
    plan = small_plan().model_copy(update={"filled": filled})
    obtain(tmp_path, *([plan_answer(plan)] if filled else CURRENT), at_once=bool(filled))

    obtained, paths = obtain(tmp_path, httpx.Response(304), measure=never)
    assert paths == ["GET /plans/plan-1"]
    assert obtained.plan == plan
    assert (obtained.cached, obtained.profiled_signatures) == (True, 0)


def test_a_better_plan_is_picked_up_and_kept(tmp_path: Path) -> None:
    """Revalidation that brings a newer version replaces the copy on disk."""
    obtain(tmp_path, *CURRENT)
    newer = plan_answer(small_plan(), version=2, etag='"v2"')
    obtained, _ = obtain(tmp_path, newer)
    assert obtained.served is not None
    assert obtained.served.reply.version == 2
    asked: list[str] = []

    def unchanged(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["If-None-Match"])
        return httpx.Response(304)

    obtain(tmp_path, unchanged)
    assert asked == ['"v2"']


def test_a_planner_that_lost_its_plans_is_asked_anew(tmp_path: Path) -> None:
    """When the plan id is gone (a fresh database), the whole question is asked again."""
    obtain(tmp_path, *CURRENT)
    _, paths = obtain(tmp_path, problem(404), *CURRENT)
    assert paths == ["GET /plans/plan-1", "POST /plans", "POST /profiles/missing"]


def test_renewal_asks_anew(tmp_path: Path) -> None:
    """After drift the key is asked again although a plan is on disk."""
    obtain(tmp_path, *CURRENT)
    _, paths = obtain(tmp_path, *CURRENT, renew=True)
    assert paths == ["POST /plans", "POST /profiles/missing"]


@pytest.mark.parametrize(
    ("plan", "said"), [(small_plan(small_graph(length=3)), "for model"), (small_plan(processor="npu@7"), "npu@7")]
)
def test_a_plan_that_contradicts_the_question_is_none(plan: Plan, said: str, tmp_path: Path) -> None:
    """One of another model, or for another device: it never runs, is not kept, and the single processor answers."""
    obtained, _ = obtain(tmp_path, plan_answer(plan), NOTHING, check=None)
    assert (obtained.plan, obtained.source) == (None, "single")
    assert said in obtained.notes[0]
    assert list((tmp_path / "plans").glob("*.json")) == []


@pytest.mark.parametrize("status", [301, 307, 401, 403, 422])
def test_what_the_caller_can_mend_is_raised(status: int, tmp_path: Path) -> None:
    """A redirect or a refusal is no reason to fall back, although a plan is on disk."""
    obtain(tmp_path, *CURRENT)
    answer = httpx.Response(status, headers={"Location": "http://elsewhere"}) if status < 400 else problem(status)
    with pytest.raises(errors.PlannerStatusError, match="elsewhere" if status < 400 else str(status)):
        obtain(tmp_path, answer)


def provisional(version: int, *, etag: str = '"v1"') -> httpx.Response:
    """Return the answer with a plan for which a better one is still being solved."""
    answer = plan_answer(small_plan(), version=version, etag=etag)
    return httpx.Response(200, json={**answer.json(), "provisional": True}, headers={"ETag": etag})


def test_who_waits_is_not_put_off_with_the_provisional_copy(tmp_path: Path) -> None:
    """With a provisional plan on disk, waiting for a better one is asked for; a final one is only confirmed."""
    obtain(tmp_path, provisional(1), NOTHING)
    _, paths = obtain(tmp_path, httpx.Response(304))
    assert paths == ["GET /plans/plan-1"]
    better = plan_answer(small_plan(), version=2, etag='"v2"')
    obtained, paths = obtain(tmp_path, provisional(1), NOTHING, better, wait_s=60)
    assert paths == ["POST /plans", "POST /profiles/missing", "POST /plans"]
    assert obtained.served is not None
    assert obtained.served.reply.version == 2
    _, paths = obtain(tmp_path, httpx.Response(304), wait_s=60)
    assert paths == ["GET /plans/plan-1"]
