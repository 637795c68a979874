"""Helpers of tests of releases: a database with held plans, what devices report, and what is done to a release."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from hope_schema import (
    AuditPage,
    DeviceReport,
    MeasuredRun,
    Release,
    ReleaseRequest,
    RolloutPolicy,
)
from planner_api.devices.groups import position
from tests.planner.jobs_help import improve
from tests.planner.samples import FREQUENCY, SOC, Api, chain, plan_request, serving

GRAPH, OTHER = chain(4), chain(5, "other")
DEVICES = [f"device-{number}" for number in range(30)]
AT_ONCE: dict[str, Any] = {"stages": (0.5, 1.0), "hold_s": 0.0, "reported": 1.0}


def fill(url: str) -> None:
    """A model whose plans are held back, devices that said how long version 2 takes, and a version 3."""
    with serving(url) as running:
        running.learn(GRAPH)
        plan_id = running.plan(GRAPH).plan_id
        improve(running, plan_id)
        hold(running, GRAPH.model_hash)
        for device in DEVICES:
            report(running, device, plan_id, 2, us=100.0)
        improve(running, plan_id)


def hold(api: Api, model_hash: str, rollout: Any = "held") -> None:
    """Say how new versions of a model's plans reach devices."""
    assert api.put(f"/models/{model_hash}/rollout", RolloutPolicy(rollout=rollout)).status_code == 204


def report(
    api: Api, device: str, plan_id: str, version: int, us: float | None = None, failures: int = 0, wrong: int = 0,
    missed: int = 0,
) -> None:  # fmt: skip
    """Say what a device measured of a plan version; every run has a deadline."""
    runs = 0 if us is None else 64 - failures - wrong
    run = MeasuredRun(
        plan_id=plan_id, plan_version=version, measured_us=us, runs=runs, failures=failures, wrong=wrong, deadlines=64,
        missed=missed,
    )  # fmt: skip
    sent = DeviceReport(soc=SOC, frequency=FREQUENCY, measured=(run,))
    assert api.put(f"/devices/{device}/report", sent).status_code == 204


def begin(api: Api, model: str = GRAPH.model_hash, **more: Any) -> Release:
    """Begin a release."""
    answer = api.post("/releases", ReleaseRequest(model=model, **more))
    assert answer.status_code == 201, answer.text
    return Release.model_validate_json(answer.content)


def look(api: Api, release: Release) -> Release:
    """A release as it is now."""
    return Release.model_validate_json(api.client.get(f"/releases/{release.release_id}").content)


def act(api: Api, release: Release, verb: str) -> Any:
    """Do something to a release."""
    return api.client.post(f"/releases/{release.release_id}/{verb}")


def staged(release: Release, stage: int = 0) -> list[str]:
    """The devices that a stage takes and the one before did not."""
    before = release.stages[stage - 1] if stage else 0.0
    return [name for name in DEVICES if before <= position(name, release.release_id) < release.stages[stage]]


def plan_of(api: Api) -> str:
    """The id of the plan."""
    return str(api.post("/plans", plan_request(GRAPH)).json()["plan_id"])


def given(api: Api, device: str | None) -> set[int]:
    """The versions that a device gets, by key and by id."""
    headers = {} if device is None else {"hope-device": device}
    answer = api.post("/plans", plan_request(GRAPH), **headers)
    again = api.client.get(f"/plans/{answer.json()['plan_id']}", headers=headers)
    return {answer.json()["version"], again.json()["version"]}


def audited(api: Api, release: Release) -> list[tuple[str, str]]:
    """Who did what to a release, oldest first."""
    found = AuditPage.model_validate_json(api.client.get(f"/audit?subject={release.release_id}").content).entries
    return [(entry.actor, entry.action) for entry in reversed(found)]


def settle(api: Api) -> None:
    """Say that no plan waits to be solved."""

    async def work() -> None:
        async with api.app.planner.database.write() as session:
            await session.execute(text("DELETE FROM jobs"))

    api.await_(work)
