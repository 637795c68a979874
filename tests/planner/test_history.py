"""Every version of a plan can be read, listed and compared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from hope_schema import Cause, Plan, PlanDiff, PlanHistory, PlannedJob, PlanReply, Step
from planner_api.db.tables import PlanRow, PlanVersionRow
from planner_api.plans import solve
from planner_api.plans.history import moves
from tests.planner.jobs_help import improve
from tests.planner.releases_help import hold
from tests.planner.samples import Api, chain

GRAPH = chain()


@pytest.fixture
def api(api: Api) -> Api:
    """A planner that can plan the graph."""
    api.learn(GRAPH)
    return api


def versions(api: Api, plan_id: str) -> PlanHistory:
    """The versions of a plan."""
    answer = api.client.get(f"/plans/{plan_id}/versions")
    assert answer.status_code == 200, answer.text
    return PlanHistory.model_validate_json(answer.content)


def serve(api: Api, plan_id: str, version: int | None) -> None:
    """Let devices get another version."""

    async def change() -> None:
        async with api.app.planner.database.write() as session:
            await session.execute(update(PlanRow).where(PlanRow.id == plan_id).values(served_version=version))
        api.app.planner.plan_cache.forget((plan_id, None))

    api.await_(change)


def test_a_version_before_is_still_there(api: Api) -> None:
    """Each version answers under its number with its own bytes and tag; the newest is what is served."""
    first = api.plan(GRAPH)
    plan_id = first.plan_id
    tag = api.client.get(f"/plans/{plan_id}").headers["etag"]
    assert improve(api, plan_id) == 2
    assert api.client.get(f"/plans/{plan_id}").json()["version"] == 2
    old = api.client.get(f"/plans/{plan_id}?version=1")
    assert (PlanReply.model_validate_json(old.content), old.headers["etag"]) == (first, tag)
    same = api.client.get(f"/plans/{plan_id}?version=1", headers={"if-none-match": tag})
    assert same.status_code == 304
    listed = versions(api, plan_id).versions
    assert [(each.version, each.served, each.provisional) for each in listed] == [(2, True, False), (1, False, True)]
    assert listed[1].makespan_us == first.plan.makespan_us
    assert listed[1].profile_version == first.plan.profile_version
    assert (listed[0].results.reports, listed[0].results.measured_us) == (0, None)
    missing = api.client.get(f"/plans/{plan_id}?version=3")
    assert (missing.status_code, missing.json()["type"]) == (404, "urn:hope:version-unknown")
    assert api.client.get("/plans/p-none/versions").json()["type"] == "urn:hope:plan-unknown"


def test_what_is_served_can_be_an_older_version(api: Api) -> None:
    """A plan that was taken back is served at its version before, by id and by key; the history says which."""
    plan_id = api.plan(GRAPH).plan_id
    improve(api, plan_id)
    serve(api, plan_id, 1)
    assert api.client.get(f"/plans/{plan_id}").json()["version"] == 1
    assert api.plan(GRAPH).version == 1
    assert [each.version for each in versions(api, plan_id).versions if each.served] == [1]
    hold(api, GRAPH.model_hash)
    improve(api, plan_id)
    assert api.plan(GRAPH).version == 1, "nor does a still newer version that waits change that"
    serve(api, plan_id, None)
    assert api.plan(GRAPH).version == 3


def test_so_many_versions_are_kept(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ones, and the one that is served however old it is."""
    monkeypatch.setattr(solve, "KEPT_VERSIONS", kept_versions := 4)
    plan_id = api.plan(GRAPH).plan_id
    improve(api, plan_id)
    hold(api, GRAPH.model_hash)
    for _ in range(kept_versions + 2):
        newest = improve(api, plan_id)
    kept = [each.version for each in versions(api, plan_id).versions]
    assert kept == [*range(newest, newest - kept_versions, -1), 2]
    assert api.plan(GRAPH).version == 2


def test_two_versions_are_compared(api: Api) -> None:
    """Promised and measured times beside each other, and which ops moved; unknown versions are 404."""
    plan_id = api.plan(GRAPH).plan_id
    improve(api, plan_id)

    async def measured() -> None:
        async with api.app.planner.database.write() as session:
            for version, factor in ((1, 1.0), (2, 3.0)):
                row = await session.scalar(
                    select(PlanVersionRow).where(PlanVersionRow.plan_id == plan_id, PlanVersionRow.version == version)
                )
                assert row is not None
                row.reports = row.timed = 2
                row.log_sum, row.log_squares, row.runs = 2.0 * factor, 2.0 * factor**2, 10

    api.await_(measured)
    found = PlanDiff.model_validate_json(api.client.get(f"/plans/{plan_id}/diff").content)
    assert (found.before.version, found.after.version) == (1, 2)
    assert found.measured == pytest.approx(2.718281828**2)
    assert found.before.results.spread == pytest.approx(0.0)
    assert found.predicted == pytest.approx(found.after.makespan_us / found.before.makespan_us)
    assert found.unmoved + len(found.moved) == len(GRAPH.ops)
    back = PlanDiff.model_validate_json(api.client.get(f"/plans/{plan_id}/diff?before=2&after=1").content)
    assert (back.before, back.after) == (found.after, found.before)
    assert api.client.get(f"/plans/{plan_id}/diff?after=9").json()["type"] == "urn:hope:version-unknown"
    assert api.client.get(f"/plans/{plan_id}/diff?other=p-none").json()["type"] == "urn:hope:plan-unknown"


def drawn_plan(data: Any, ops: list[str]) -> Plan:
    """A legal plan of some ops, each on one of three processors."""
    chosen = [data.draw(st.sampled_from(("a", "b", "c"))) for _ in ops]
    steps = tuple(
        Step(id=i, ops=(op,), dtype="float32", processor=where, start_us=i, finish_us=i + 1, cause=Cause.FASTER)
        for i, (op, where) in enumerate(zip(ops, chosen, strict=True))
    )
    return Plan(
        jobs=(PlannedJob(model_hash="a" * 64, finish_us=1.0),),
        soc="soc",
        frequency="max",
        processors=("a", "b", "c"),
        steps=steps,
        order=tuple(range(len(steps))),
        makespan_us=1.0,
        lower_bound_us=1.0,
        gap=0.0,
        method="test",
        bound_method="test",
        profile_version=1,
    )


@settings(max_examples=50)
@given(
    st.data(),
    st.lists(st.sampled_from("uvwxyz"), unique=True, min_size=1),
    st.lists(st.sampled_from("uvwxyz"), unique=True, min_size=1),
)
def test_every_op_is_told_of_once(data: Any, before_ops: list[str], after_ops: list[str]) -> None:
    """Each op moved, stayed, or is in one plan only, and a moved one names where it really was and is."""
    before, after = drawn_plan(data, before_ops), drawn_plan(data, after_ops)
    found = moves(before, after)
    was = {step.ops[0]: step.processor for step in before.steps}
    now = {step.ops[0]: step.processor for step in after.steps}
    assert {each.ops[0]: (each.before, each.after) for each in found["moved"]} == {
        op: (was[op], now[op]) for op in was.keys() & now.keys() if was[op] != now[op]
    }
    assert found["unmoved"] == sum(was[op] == now[op] for op in was.keys() & now.keys())
    assert (set(found["only_before"]), set(found["only_after"])) == (was.keys() - now.keys(), now.keys() - was.keys())
