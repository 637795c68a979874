"""Releases of a model version under an alias: who gets it, and what it is judged by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text, update

from hope_schema import (
    AliasTarget,
    DeviceReport,
    Job,
    MeasuredRun,
    ModelGraph,
    NewModelVersion,
    ReleaseRequest,
)
from planner_api.db.tables import ModelAliasRow
from planner_api.devices.groups import position
from planner_api.web.principal import Actor
from tests.planner.releases_help import (
    DEVICES,
    GRAPH,
    OTHER,
    act,
    begin,
    fill,
    look,
    plan_of,
    report,
)
from tests.planner.samples import FREQUENCY, SOC, Api, chain, eventually

pytestmark = pytest.mark.usefixtures("looks_often")


@pytest.fixture
def database_url(copied: Callable[..., str]) -> str:
    """A database with what `fill` does."""
    return copied(fill)


def test_an_alias_moves_device_by_device(api: Api) -> None:
    """While a model version is released, a reference means the version that the device gets; then the new one."""
    api.learn(OTHER)
    for graph in (GRAPH, OTHER):
        api.post("/names/net/versions", NewModelVersion(model_hash=graph.model_hash))
    api.put("/names/net/aliases/live", AliasTarget(version=1))
    missing = api.post("/releases", ReleaseRequest(model="net:2", alias="live"))
    assert missing.json()["type"] == "urn:hope:release-without-plans"
    other_id = api.plan(OTHER).plan_id
    already = api.post("/releases", ReleaseRequest(model="net:1", alias="live"))
    assert (already.status_code, already.json()["type"]) == (409, "urn:hope:nothing-to-release")
    assert "net@live stands for version 1 already" in already.json()["detail"]
    release = begin(api, "net:2", alias="live", stages=(0.9, 1.0), hold_s=3600.0)

    def means(device: str) -> int:
        return int(api.client.get("/references/net@live", headers={"hope-device": device}).json()["version"])

    chosen = {device for device in DEVICES if position(device, release.release_id) < 0.9}
    assert {device for device in DEVICES if means(device) == 2} == chosen
    assert api.put("/names/net/aliases/live", AliasTarget(version=1)).json()["type"] == "urn:hope:release-under-way"
    assert api.post("/releases", ReleaseRequest(model="net:2", alias="live")).status_code == 409
    for device in sorted(chosen):
        report(api, device, other_id, 1, us=150.0)
    api.await_(api.app.planner.releases.steer)
    assert eventually(lambda: look(api, release).state == "rolled_back")
    assert (look(api, release).before, look(api, release).after) == (1, 2)
    assert {means(device) for device in DEVICES} == {1}
    refused = api.post("/releases", ReleaseRequest(model="net:2", alias="live"))
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:hope:nothing-to-release")
    assert "`hope-planner releases begin net:2 --alias live --again`" in refused.json()["detail"]
    again = begin(api, "net:2", alias="live", stages=(1.0,), again=True)
    act(api, again, "approve")
    assert {means(device) for device in DEVICES} == {2}
    act(api, again, "rollback")
    assert {means(device) for device in DEVICES} == {1}


def test_an_alias_that_is_pointed_elsewhere_meanwhile_is_not_released_to_itself(api: Api) -> None:
    """A release that begins while an admin lets the alias stand for its version already finds nothing to do."""
    for _ in range(2):
        api.post("/names/net/versions", NewModelVersion(model_hash=GRAPH.model_hash))
    api.put("/names/net/aliases/live", AliasTarget(version=1))
    planner, waiting = api.app.planner, text("SELECT count(*) FROM pg_locks WHERE NOT granted")

    async def begun_meanwhile() -> Any:
        async with planner.database.write() as session:
            await session.execute(update(ModelAliasRow).values(version=2))
            request = ReleaseRequest(model="net:2", alias="live")
            beginning = asyncio.create_task(planner.releases.begin(request, Actor("admin:1")))
            while planner.database.dialect == "postgresql" and not await session.scalar(waiting):
                await asyncio.sleep(0.01)
        return (await asyncio.gather(beginning, return_exceptions=True))[0]

    found = api.await_(begun_meanwhile)
    assert "stands for version 2 already" in str(found)


@pytest.mark.above_databases
def test_an_alias_is_judged_by_like_circumstances(api: Api) -> None:
    """A version that runs beside another network now takes longer than the one before did alone, and harms nobody."""
    third = chain(3, "third")
    for graph in (OTHER, third):
        api.learn(graph)
    for graph in (GRAPH, OTHER):
        api.post("/names/net/versions", NewModelVersion(model_hash=graph.model_hash))
    api.put("/names/net/aliases/live", AliasTarget(version=1))

    def joint(*graphs: ModelGraph) -> str:
        return api.plan(graphs[0], jobs=tuple(Job(model_hash=each.model_hash) for each in graphs)).plan_id

    before, after = joint(GRAPH, third), joint(OTHER, third)
    twice_before, twice_after = joint(GRAPH, GRAPH), joint(OTHER, OTHER)
    for plan_id, devices in ((before, DEVICES[:3]), (twice_before, DEVICES[15:17])):
        for device in devices:
            report(api, device, plan_id, 1, us=400.0)
            report(api, device, plan_of(api), 2, us=100.0)
    release = begin(api, "net:2", alias="live", stages=(1.0,), hold_s=3600.0)
    for device in DEVICES[:15]:
        report(api, device, after, 1, us=300.0)
    for device in DEVICES[15:17]:
        report(api, device, twice_after, 1, us=300.0)
    found = look(api, release)
    assert (found.reported, found.latency.worse, found.latency.better) == (17, 0, 5)


@pytest.mark.above_databases
def test_an_alias_is_judged_by_plans_that_were_asked_for_alike(api: Api) -> None:
    """A device that asks otherwise for the version after, with one processor say, is slower through no fault of it."""
    api.learn(OTHER)
    for graph in (GRAPH, OTHER):
        api.post("/names/net/versions", NewModelVersion(model_hash=graph.model_hash))
    api.put("/names/net/aliases/live", AliasTarget(version=1))

    def plan(graph: ModelGraph, deadline_us: float | None = None, **more: Any) -> str:
        job = Job(model_hash=graph.model_hash, deadline_us=deadline_us)
        return api.plan(graph, **{**more, "jobs": (job,)}).plan_id

    plain, otherwise = plan(GRAPH), plan(GRAPH, processors=("ort@0",))
    ways: list[dict[str, Any]] = [
        {"processors": ("ort@0",)}, {"objective": "throughput"}, {"method": "greedy"}, {"deadline_us": 900.0}
    ]  # fmt: skip
    after = [plan(OTHER, **way) for way in ways]
    *others, both, busy = DEVICES[: len(ways) + 2]
    report(api, both, otherwise, 1, us=500.0)
    for device in (*others, both, busy):
        report(api, device, plain, 2, us=100.0)
    release = begin(api, "net:2", alias="live", stages=(1.0,), hold_s=3600.0)
    for device, plan_id in zip((*others, both), (*after, after[0]), strict=True):
        report(api, device, plan_id, 1, us=300.0)
    found = look(api, release)
    assert (found.reported, found.latency.worse, found.latency.better) == (len(others) + 1, 0, 1)
    runs = [
        MeasuredRun(plan_id=each, plan_version=1, measured_us=300.0, runs=64) for each in (*after, plan(OTHER))
    ]  # fmt: skip
    sent = DeviceReport(soc=SOC, frequency=FREQUENCY, measured=tuple(runs))
    assert api.put(f"/devices/{busy}/report", sent).status_code == 204
    assert look(api, release).latency.worse == 1, "of all that it says the one counts that it can be compared by"
