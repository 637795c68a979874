"""The disk cache: days without a planner, and copies that are damaged, old or of no use."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import httpx
import pytest

from agent_sdk.errors import IllegalPlanError
from agent_sdk.planner import supplier
from agent_sdk.planner.client import ServedPlan
from agent_sdk.planner.supplier import PlanSupplier
from agent_sdk.records import Records
from hope_schema import MissingRequest, Plan, PlanRequest, Processor
from tests.agent.planner.planner_double import REQUEST, plan_answer, problem, small_plan
from tests.agent.planner.supplying import CPU, CURRENT, MODEL, NOTHING, obtain


@pytest.mark.parametrize(
    "fault",
    [httpx.ConnectError("refused"), problem(503), problem(500), problem(429), httpx.Response(200, text="<html>")],
)
def test_without_a_planner_the_last_plan_is_used(tmp_path: Path, fault: httpx.Response | Exception) -> None:
    """A planner that is down, ill or not a planner leaves the last plan from disk, and the report says so."""
    obtain(tmp_path, *CURRENT)
    obtained, _ = obtain(tmp_path, fault)
    assert obtained.plan == small_plan()
    assert obtained.source == "disk"
    assert "last plan from the disk cache" in obtained.notes[0]


def test_without_planner_and_copy_there_is_no_plan(tmp_path: Path) -> None:
    """Nothing on disk and nobody to ask: the caller is told to run a single processor, and why."""
    obtained, _ = obtain(tmp_path, httpx.ConnectError("refused"))
    assert (obtained.plan, obtained.source) == (None, "single")
    assert "refused" in obtained.notes[0]
    assert "the fastest single processor" in obtained.notes[0]


def test_an_updated_runtime_gets_its_own_key(tmp_path: Path) -> None:
    """The cache key covers runtime versions, method and planner, so none of them shares another's plan."""
    newer = Processor(**{**CPU.model_dump(), "version": "2"})
    greedy = REQUEST.model_copy(update={"method": "greedy"})

    def key(request: PlanRequest, processor: Processor, planner: str) -> str:
        measurable = MissingRequest(
            model_hash=request.jobs[0].model_hash,
            soc="soc",
            frequency="any",
            device_id="device",
            processors=(processor,),
        )
        return PlanSupplier(pytest.fail, planner, tmp_path).question(MODEL.graph, request, measurable).key

    keys = {key(REQUEST, CPU, "a"), key(REQUEST, newer, "a"), key(REQUEST, CPU, "b"), key(greedy, CPU, "a")}
    assert len(keys) == 4


@pytest.mark.parametrize("damage", [b"", b"{", b'{"etag": "x"}', b"\xff\xfe"])
def test_a_damaged_copy_counts_as_absent(tmp_path: Path, damage: bytes) -> None:
    """A cut or overwritten cache file is asked for again instead of failing the run."""
    obtain(tmp_path, *CURRENT)
    (path,) = (tmp_path / "plans").glob("*.json")
    path.write_bytes(damage)
    _, paths = obtain(tmp_path, *CURRENT)
    assert paths == ["POST /plans", "POST /profiles/missing"]


def test_a_kept_tag_that_cannot_be_sent_is_no_tag(tmp_path: Path) -> None:
    """A copy whose tag no request can carry is damaged: with it, every start would take the planner for away."""
    obtain(tmp_path, *CURRENT)
    (path,) = (tmp_path / "plans").glob("*.json")
    kept = json.loads(path.read_bytes())
    path.write_text(json.dumps(kept | {"etag": "v\r\nX-Other: 1"}))
    _, paths = obtain(tmp_path, *CURRENT)
    assert paths == ["POST /plans", "POST /profiles/missing"]


def test_a_cache_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    """Where the cache directory cannot be made, plans are simply not kept."""
    (tmp_path / "plans").write_text("in the way")
    obtained, _ = obtain(tmp_path, *CURRENT)
    assert obtained.plan == small_plan()


def test_a_cache_that_may_only_be_read_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a plan's time of use cannot be written down, the plan is used all the same."""
    obtain(tmp_path, *CURRENT)

    def refuse(path: Path) -> None:
        raise PermissionError(f"{path} may only be read")

    monkeypatch.setattr(os, "utime", refuse)
    obtained, _ = obtain(tmp_path, httpx.ConnectError("refused"))
    assert (obtained.plan, obtained.source) == (small_plan(), "disk")


def test_the_cache_is_bounded_by_age_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the plan used longest ago goes first."""
    monkeypatch.setattr(supplier, "MAX_PLANS", 2)
    obtain(tmp_path, *CURRENT)
    (path,) = (tmp_path / "plans").glob("*.json")
    plans = Records(path.parent, ServedPlan, 2)
    served = plans.get(path.stem)
    assert served is not None
    path.unlink()
    for age, name in ((300, "a"), (200, "b")):
        plans.keep(name, served)
        os.utime(path.with_name(f"{name}.json"), (time.time() - age,) * 2)
    plans.get("a")
    obtain(tmp_path, *CURRENT)
    assert plans.get("a") is not None
    assert plans.get("b") is None


def test_an_illegal_plan_is_no_plan(tmp_path: Path) -> None:
    """A plan that cannot be carried out is neither kept nor returned: the last good one is used, and it is said."""

    def illegal(plan: Plan) -> None:
        if plan.makespan_us == 7:
            raise IllegalPlanError("the order cannot run")

    bad = plan_answer(small_plan().model_copy(update={"makespan_us": 7.0}), version=2, etag='"v2"')
    obtained, _ = obtain(tmp_path, bad, NOTHING, check=illegal)
    assert (obtained.plan, obtained.source) == (None, "single")
    assert "the order cannot run" in obtained.notes[0]
    assert list((tmp_path / "plans").glob("*.json")) == []
    obtain(tmp_path, *CURRENT, check=illegal)
    obtained, _ = obtain(tmp_path, bad, check=illegal)
    assert (obtained.plan, obtained.source) == (small_plan(), "disk")
    obtained, _ = obtain(tmp_path, httpx.Response(304), check=illegal)
    assert (obtained.plan, obtained.notes) == (small_plan(), ())


def test_an_illegal_copy_on_disk_is_asked_for_anew(tmp_path: Path) -> None:
    """A copy that cannot be carried out is not confirmed by the planner but replaced."""

    def illegal(plan: Plan) -> None:
        raise IllegalPlanError("the order cannot run")

    obtain(tmp_path, *CURRENT)
    _, paths = obtain(tmp_path, *CURRENT, check=illegal)
    assert paths == ["POST /plans", "POST /profiles/missing"]
    assert list((tmp_path / "plans").glob("*.json")) == []
