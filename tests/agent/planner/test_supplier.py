"""Obtaining a plan through the disk cache: first run, second run, newer version, and days without a planner."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest

from agent_sdk import Agent, errors
from agent_sdk.engine import IllegalPlanError
from agent_sdk.model import read_model
from agent_sdk.obtaining import UNPLANNABLE
from agent_sdk.planner import cache as plan_cache
from agent_sdk.planner.blocking import BlockingPlanner
from agent_sdk.planner.cache import PlanCache
from agent_sdk.planner.client import PlannerClient
from agent_sdk.planner.supplier import Obtained, PlanSupplier
from agent_sdk.records import Records
from hope_schema import Job, Missing, MissingRequest, Observations, Plan, PlanRequest, Processor
from hope_schema.hashing import digest
from hope_schema.profile import LatencyColumns
from tests.agent.planner.planner_double import (
    ScriptedTransport,
    plan_answer,
    problem,
    small_graph,
    small_model,
    small_plan,
)

MODEL = read_model(small_model())
GRAPH = MODEL.graph
CPU = Processor(id="ort@0", runtime="ort", version="1", threads=1, core_class="core", resources=("cpu0",))
REQUEST = PlanRequest(jobs=(Job(model_hash=GRAPH.model_hash),), soc="soc", frequency="any", processors=("ort@0",))
MEASURABLE = MissingRequest(
    model_hash=GRAPH.model_hash, soc="soc", frequency="any", device_id="device", processors=(CPU,)
)
NOTHING_MISSING = {"profile_version": 1, "latencies": [], "transfers": [], "elsewhere": 0}
ONE_MISSING = {**NOTHING_MISSING, "latencies": [{"signature": "Relu:1", "kind": CPU.kind}]}
MISSING_TWICE = (httpx.Response(200, json=ONE_MISSING),) * 2
"""What is missing is asked once more when nobody else measures: another process may just have done it."""
ASKED_TWICE = ("POST /profiles/missing",) * 2
RECEIPT = httpx.Response(202, json={"upload_id": "upload", "rows": 1, "duplicate": False})


def observed(missing: Missing) -> Observations:
    """Pretend to have measured what is missing."""
    rows = missing.latencies
    return Observations(
        soc="soc",
        frequency="any",
        processors=(CPU,),
        latencies=LatencyColumns(
            signature=tuple(row.signature for row in rows),
            kind=tuple(row.kind for row in rows),
            us=(3.0,) * len(rows),
            spread_us=(0.1,) * len(rows),
            count=(5,) * len(rows),
        ),
        device_id="device",
        upload_id="upload",
    )


def supplier(directory: Path, transport: ScriptedTransport, attempts: int = 1) -> PlanSupplier:
    """Return a supplier whose planner is the script."""
    return PlanSupplier(
        lambda: BlockingPlanner(PlannerClient("http://planner", transport=transport, attempts=attempts)),
        "http://planner",
        directory,
    )


def anything(plan: Plan) -> None:
    """Take every plan for one that can be carried out."""


def obtain(
    directory: Path,
    *script,
    measure: Callable[[Missing], Observations | None] = observed,
    check: Callable[[Plan], object] | None = anything,
    wait_s: float | None = None,
    renew: bool = False,
    at_once: bool = False,
    attempts: int = 1,
) -> tuple[Obtained, list[str]]:
    """Obtain the plan from a scripted planner; return it and the paths that were asked."""
    transport = ScriptedTransport(*script)
    with ExitStack() as patched:
        patched.enter_context(
            patch("agent_sdk.obtaining.profile", lambda model, processors, missing, **_: measure(missing))
        )
        if check is not None:
            patched.enter_context(patch("agent_sdk.obtaining.build_program", lambda plan, *_: check(plan)))
        agent = patched.enter_context(
            Agent("http://planner", processors="ort@0", soc="soc", frequency="any", wait_s=wait_s, cache=directory)
        )
        agent._supplier = supplier(directory, transport, attempts)
        obtainer = replace(agent._opener.obtainer, supplier=agent._supplier)
        agent._opener = replace(agent._opener, obtainer=obtainer)
        obtained = agent.obtain(MODEL, renew=renew, at_once=at_once)
    assert not transport.script, "the planner was asked less often than expected"
    return obtained, [f"{request.method} {request.url.path}" for request in transport.requests]


@pytest.mark.parametrize("answer", [problem(404), problem(422, UNPLANNABLE)])
def test_where_nothing_can_be_predicted_all_is_measured_first(answer: httpx.Response, tmp_path: Path) -> None:
    """An unknown model is submitted, the missing figures are measured and uploaded, and the plan is asked for."""
    receipt = {"model_hash": GRAPH.model_hash, "ops": 2, "super_ops": 2, "created": True}
    upload = {"upload_id": "upload", "rows": 1, "duplicate": False}
    obtained, paths = obtain(
        tmp_path,
        problem(404, errors.MODEL_UNKNOWN),
        httpx.Response(201, json=receipt),
        answer,
        *MISSING_TWICE,
        httpx.Response(202, json=upload),
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


def test_a_foreseen_plan_answers_where_the_planner_goes_away(tmp_path: Path) -> None:
    """Figures that could not be sent are kept, and the plan that was there before them is used."""
    foreseen, gone = plan_answer(small_plan()), httpx.ConnectError("gone")
    obtained, _ = obtain(tmp_path, foreseen, *MISSING_TWICE, gone)
    assert (obtained.source, obtained.plan) == ("planner", small_plan())
    assert "kept and sent at the next start" in obtained.notes[-2]
    assert "the plan that it had before" in obtained.notes[-1]


def test_second_run_only_revalidates(tmp_path: Path) -> None:
    """A known model costs one conditional GET: no graph, no profiling, the plan from disk."""
    obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))

    def never(missing: Missing) -> None:
        pytest.fail("the second run measured something")

    obtained, paths = obtain(tmp_path, httpx.Response(304), measure=never)
    assert paths == ["GET /plans/plan-1"]
    assert obtained.plan == small_plan()
    assert (obtained.cached, obtained.profiled_signatures) == (True, 0)


def test_a_better_plan_is_picked_up_and_kept(tmp_path: Path) -> None:
    """Revalidation that brings a newer version replaces the copy on disk."""
    obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
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
    obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
    _, paths = obtain(tmp_path, problem(404), plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
    assert paths == ["GET /plans/plan-1", "POST /plans", "POST /profiles/missing"]


def test_renewal_asks_anew(tmp_path: Path) -> None:
    """After drift the key is asked again although a plan is on disk."""
    obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
    _, paths = obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING), renew=True)
    assert paths == ["POST /plans", "POST /profiles/missing"]


@pytest.mark.parametrize(
    "fault",
    [httpx.ConnectError("refused"), problem(503), problem(500), problem(429), httpx.Response(200, text="<html>")],
)
def test_without_a_planner_the_last_plan_is_used(tmp_path: Path, fault: httpx.Response | Exception) -> None:
    """A planner that is down, ill or not a planner leaves the last plan from disk, and the report says so."""
    obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
    obtained, _ = obtain(tmp_path, fault)
    assert obtained.plan == small_plan()
    assert obtained.source == "disk"
    assert "last plan from the disk cache" in obtained.notes[0]


def test_without_planner_and_copy_there_is_no_plan(tmp_path: Path) -> None:
    """Nothing on disk and nobody to ask: the caller is told to run a single processor, and why."""
    obtained, _ = obtain(tmp_path, httpx.ConnectError("refused"))
    assert (obtained.plan, obtained.source) == (None, "single")
    assert "refused" in obtained.notes[0]
    assert "best single processor" in obtained.notes[0]


@pytest.mark.parametrize(
    ("plan", "said"), [(small_plan(small_graph(length=3)), "for model"), (small_plan(processor="npu@7"), "npu@7")]
)
def test_a_plan_that_contradicts_the_question_is_none(plan: Plan, said: str, tmp_path: Path) -> None:
    """One of another model, or for another device: it never runs, is not kept, and the single processor answers."""
    obtained, _ = obtain(tmp_path, plan_answer(plan), httpx.Response(200, json=NOTHING_MISSING), check=None)
    assert (obtained.plan, obtained.source) == (None, "single")
    assert said in obtained.notes[0]
    assert list((tmp_path / "plans").glob("*.json")) == []


@pytest.mark.parametrize("status", [301, 307, 401, 403, 422])
def test_what_the_caller_can_mend_is_raised(status: int, tmp_path: Path) -> None:
    """A redirect or a refusal is no reason to fall back, although a plan is on disk."""
    obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
    answer = httpx.Response(status, headers={"Location": "http://elsewhere"}) if status < 400 else problem(status)
    with pytest.raises(errors.PlannerStatusError, match="elsewhere" if status < 400 else str(status)):
        obtain(tmp_path, answer)


def test_an_updated_runtime_gets_its_own_key() -> None:
    """The cache key covers runtime versions, method and planner, so none of them shares another's plan."""
    newer = Processor(**{**CPU.model_dump(), "version": "2"})
    greedy = REQUEST.model_copy(update={"method": "greedy"})
    keys = {
        PlanCache.key(REQUEST, (CPU,), "a"),
        PlanCache.key(REQUEST, (newer,), "a"),
        PlanCache.key(REQUEST, (CPU,), "b"),
        PlanCache.key(greedy, (CPU,), "a"),
    }
    assert len(keys) == 4


@pytest.mark.parametrize("damage", [b"", b"{", b'{"etag": "x"}', b"\xff\xfe"])
def test_a_damaged_copy_counts_as_absent(tmp_path: Path, damage: bytes) -> None:
    """A cut or overwritten cache file is asked for again instead of failing the run."""
    obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
    (path,) = (tmp_path / "plans").glob("*.json")
    path.write_bytes(damage)
    _, paths = obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
    assert paths == ["POST /plans", "POST /profiles/missing"]


def test_a_cache_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    """Where the cache directory cannot be made, plans are simply not kept."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    obtained, _ = obtain(blocked / "plans", plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
    assert obtained.plan == small_plan()


def test_the_cache_is_bounded_by_age_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the plan used longest ago goes first."""
    monkeypatch.setattr(plan_cache, "MAX_PLANS", 2)
    cache = PlanCache(tmp_path)
    obtain(tmp_path / "source", plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
    (path,) = (tmp_path / "source" / "plans").glob("*.json")
    served = PlanCache(path.parent).load(path.stem)
    assert served is not None
    for age, name in ((300, "a"), (200, "b")):
        cache.store(name, served)
        os.utime(tmp_path / f"{name}.json", (path.stat().st_mtime - age,) * 2)
    cache.load("a")
    cache.store("c", served)
    assert cache.load("a") is not None
    assert cache.load("b") is None


def test_measured_times_that_cannot_be_sent_are_reported_not_raised(tmp_path: Path) -> None:
    """Execution figures are a gift to the fleet: losing them never fails a run."""
    source = supplier(tmp_path, ScriptedTransport(httpx.ConnectError("refused")))
    message = source.upload(observed(Missing.model_validate(ONE_MISSING, strict=False)))
    source.close()
    assert "not sent" in message


def provisional(version: int, *, etag: str = '"v1"') -> httpx.Response:
    """Return the answer with a plan for which a better one is still being solved."""
    answer = plan_answer(small_plan(), version=version, etag=etag)
    return httpx.Response(200, json={**answer.json(), "provisional": True}, headers={"ETag": etag})


def test_who_waits_is_not_put_off_with_the_provisional_copy(tmp_path: Path) -> None:
    """With a provisional plan on disk, waiting for a better one is asked for; a final one is only confirmed."""
    obtain(tmp_path, provisional(1), httpx.Response(200, json=NOTHING_MISSING))
    _, paths = obtain(tmp_path, httpx.Response(304))
    assert paths == ["GET /plans/plan-1"]
    better = plan_answer(small_plan(), version=2, etag='"v2"')
    obtained, paths = obtain(tmp_path, provisional(1), httpx.Response(200, json=NOTHING_MISSING), better, wait_s=60)
    assert paths == ["POST /plans", "POST /profiles/missing", "POST /plans"]
    assert obtained.served is not None
    assert obtained.served.reply.version == 2
    _, paths = obtain(tmp_path, httpx.Response(304), wait_s=60)
    assert paths == ["GET /plans/plan-1"]


def never(missing: Missing) -> None:
    """Fail: nothing had to be measured."""
    pytest.fail("something was measured again")


def test_figures_that_could_not_be_sent_are_sent_at_the_next_start(tmp_path: Path) -> None:
    """A planner that goes away while the device measures costs nothing: the report counts, the disk keeps."""
    obtained, _ = obtain(tmp_path, problem(404), *MISSING_TWICE, httpx.ConnectError("gone"))
    assert (obtained.source, obtained.profiled_signatures) == ("single", 1)
    assert obtained.profiling_seconds > 0
    assert "kept and sent at the next start" in obtained.notes[-1]
    _, paths = obtain(
        tmp_path, RECEIPT, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING), measure=never
    )
    assert paths == ["POST /profiles", "POST /plans", "POST /profiles/missing"]
    _, paths = obtain(tmp_path, httpx.Response(304), measure=never)
    assert paths == ["GET /plans/plan-1"]


def test_what_was_measured_is_told_when_the_planner_goes_away_afterwards(tmp_path: Path) -> None:
    """A planner that fails between upload and plan leaves the number of measured signatures right."""
    gone = httpx.ConnectError("gone")
    obtained, _ = obtain(tmp_path, problem(404), *MISSING_TWICE, RECEIPT, gone)
    assert (obtained.source, obtained.profiled_signatures) == ("single", 1)


def test_kept_figures_that_the_planner_refuses_are_dropped(tmp_path: Path) -> None:
    """Figures that the planner will never take cost one note, not every start."""
    obtain(tmp_path, problem(404), *MISSING_TWICE, httpx.ConnectError("gone"))
    obtained, _ = obtain(
        tmp_path, problem(422), plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING), measure=never
    )
    assert "dropped" in obtained.notes[-1]
    obtained, paths = obtain(tmp_path, httpx.Response(304))
    assert paths == ["GET /plans/plan-1"]
    assert obtained.notes == ()


def test_kept_figures_that_a_planner_chokes_on_do_not_keep_it_from_planning(tmp_path: Path) -> None:
    """A planner that fails on an upload from an earlier start is asked for its plan all the same."""
    obtain(tmp_path, problem(404), *MISSING_TWICE, httpx.ConnectError("gone"))
    obtained, _ = obtain(
        tmp_path, problem(500), plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING), measure=never
    )
    assert obtained.source == "planner"
    assert "kept on" in obtained.notes[-1]
    _, paths = obtain(tmp_path, RECEIPT, httpx.Response(304))
    assert paths == ["POST /profiles", "GET /plans/plan-1"]


@pytest.mark.parametrize("answer", [problem(404), httpx.Response(429, headers={"Retry-After": "20"}), problem(503)])
def test_kept_figures_cost_a_start_no_more_than_a_note(answer: httpx.Response, tmp_path: Path) -> None:
    """Whatever the planner says of an upload from an earlier start, a plan that is current is confirmed at once."""
    obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
    figures = observed(Missing.model_validate(ONE_MISSING, strict=False))
    Records(tmp_path / "unsent" / digest("http://planner")[:32], Observations, 1).keep("kept", figures)
    obtained, paths = obtain(tmp_path, answer, httpx.Response(304), measure=never, attempts=4)
    assert paths == ["POST /profiles", "GET /plans/plan-1"]
    assert obtained.source == "planner"
    assert "kept on" in obtained.notes[-1]


def test_figures_that_can_neither_be_sent_nor_kept_are_said_to_be_lost(tmp_path: Path) -> None:
    """Without a planner and without a disk, nobody is promised that the figures will be sent later."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    obtained, _ = obtain(blocked / "plans", problem(404), *MISSING_TWICE, httpx.ConnectError("gone"))
    assert "neither be sent nor kept" in obtained.notes[-1]


def test_figures_are_kept_whoever_tidies_up_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may send and remove a file of the same folder while the oldest are looked for."""
    unsent = Records(tmp_path, Observations, 1)
    figures = observed(Missing.model_validate(ONE_MISSING, strict=False))
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda here, pattern: [*glob(here, pattern), here / "gone.json"])
    assert unsent.keep("kept", figures)


def test_kept_figures_are_bounded_and_whole(tmp_path: Path) -> None:
    """A long time without a planner keeps the newest uploads only, and a damaged file counts as none."""
    unsent = Records(tmp_path, Observations, 2)
    figures = observed(Missing.model_validate(ONE_MISSING, strict=False))
    for age, name in ((300, "a"), (200, "b"), (100, "c")):
        before = set(tmp_path.iterdir())
        unsent.keep(name, figures.model_copy(update={"upload_id": name}))
        (new,) = set(tmp_path.iterdir()) - before
        os.utime(new, (new.stat().st_mtime - age,) * 2)
    assert {kept.upload_id for kept in unsent.all()} == {"b", "c"}
    new.write_bytes(b"{")
    assert {kept.upload_id for kept in unsent.all()} == {"b"}
    assert not new.exists()


def test_an_illegal_plan_is_no_plan(tmp_path: Path) -> None:
    """A plan that cannot be carried out is neither kept nor returned: the last good one is used, and it is said."""

    def illegal(plan: Plan) -> None:
        if plan.makespan_us == 7:
            raise IllegalPlanError("the order cannot run")

    bad = plan_answer(small_plan().model_copy(update={"makespan_us": 7.0}), version=2, etag='"v2"')
    obtained, _ = obtain(tmp_path, bad, httpx.Response(200, json=NOTHING_MISSING), check=illegal)
    assert (obtained.plan, obtained.source) == (None, "single")
    assert "the order cannot run" in obtained.notes[0]
    assert list((tmp_path / "plans").glob("*.json")) == []
    obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING), check=illegal)
    obtained, _ = obtain(tmp_path, bad, check=illegal)
    assert (obtained.plan, obtained.source) == (small_plan(), "disk")
    obtained, _ = obtain(tmp_path, httpx.Response(304), check=illegal)
    assert (obtained.plan, obtained.notes) == (small_plan(), ())


def test_an_illegal_copy_on_disk_is_asked_for_anew(tmp_path: Path) -> None:
    """A copy that cannot be carried out is not confirmed by the planner but replaced."""

    def illegal(plan: Plan) -> None:
        raise IllegalPlanError("the order cannot run")

    obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))
    _, paths = obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING), check=illegal)
    assert paths == ["POST /plans", "POST /profiles/missing"]
    assert list((tmp_path / "plans").glob("*.json")) == []


def test_a_cache_that_may_only_be_read_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a plan's time of use cannot be written down, the plan is used all the same."""
    obtain(tmp_path, plan_answer(small_plan()), httpx.Response(200, json=NOTHING_MISSING))

    def refuse(path: Path) -> None:
        raise PermissionError(f"{path} may only be read")

    monkeypatch.setattr(os, "utime", refuse)
    obtained, _ = obtain(tmp_path, httpx.ConnectError("refused"))
    assert (obtained.plan, obtained.source) == (small_plan(), "disk")
