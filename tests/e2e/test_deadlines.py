"""Missed deadlines, from runs of an agent to the planner's pages in a browser and to the end of a release."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from agent_sdk import Agent, Session
from agent_sdk.planner import field
from agent_sdk.planner.field import SAMPLE
from agent_sdk.scheduling.member import JOINTLY
from agent_sdk.scheduling.policies import Planned
from agent_sdk.scheduling.together import Together
from hope_schema import MeasuredRun
from tests.agent.models import chain_model
from tests.browser import chromium
from tests.e2e.test_remote_planner import served

LATEST_S = 60.0
"""By when what happens by itself has happened, on a busy machine."""
OTHERS = [f"phone-{number}" for number in range(24)]
"""Devices that say the same as the one that runs."""


def network(name: str, end: int) -> bytes:
    """A small one, called so."""
    made = chain_model(4, 8, end)
    made.graph.name = name
    return made.SerializeToString()


def run(agent: Agent, session: Session, deadline_ms: float) -> None:
    """As many runs with a deadline as are told at once; then tell them, for the whole fleet."""
    feed = dict(session.draw())
    for _ in range(SAMPLE):
        agent.submit(session, feed, deadline_ms=deadline_ms).result(LATEST_S)
    telling, told = agent._services.field, list[MeasuredRun]()
    assert telling is not None
    telling._send = told.extend  # type: ignore[assignment]
    telling.tell()
    assert told
    for device in (agent.device_id, *OTHERS):
        assert agent._supplier.tell(device, agent.soc, told) == ""


def test_misses_reach_the_pages_and_end_a_release(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version whose runs miss their deadlines is taken back for that; a device, each model and a joint plan have a
    page that says how many are missed of each.
    """
    monkeypatch.setattr(Together, "faster", True)
    monkeypatch.setattr(field, "LOOK_S", 1e6)  # told when this test says so
    with (
        served(tmp_path) as url,
        httpx.Client(base_url=url, timeout=LATEST_S) as api,
        Agent(url, processors="ort@0", planner_timeout_s=LATEST_S, wait_s=LATEST_S) as agent,
    ):
        before, after = (agent.load(network(name, end), background=False) for name, end in (("one", 12), ("two", 16)))
        hashes = [session.latest.model.graph.model_hash for session in (before, after)]
        run(agent, before, 60_000.0)
        for model in hashes:
            assert api.post("/names/keyboard/versions", json={"model_hash": model}).status_code == 201
        assert api.put("/names/keyboard/aliases/production", json={"version": 1}).is_success
        asked = {"model": "keyboard:2", "alias": "production", "stages": [1.0], "hold_s": 3600.0, "tolerance": 10.0}
        release = api.post("/releases", json=asked).json()["release_id"]
        run(agent, after, 0.001)
        end = time.monotonic() + LATEST_S
        while (found := api.get(f"/releases/{release}").json())["state"] == "running" and time.monotonic() < end:
            time.sleep(0.05)
        worse = found["deadlines"]["worse"]  # it ends once they are enough
        assert (found["state"], worse > 1, found["deadlines"]["better"]) == ("rolled_back", True, 0), found
        with agent.together(before, after, wait_s=LATEST_S) as together:
            planned = Planned()
            agent.jobs.use(planned, together.parts)
            planned.follow(planned._plan, 60 * 10**9)  # whatever the machine's speed, they come together
            both = [agent.submit(one, dict(one.draw()), deadline_ms=60_000.0) for one in (before, after)]
            assert {job.result(LATEST_S) and job.where for job in both} == {JOINTLY}
            run(agent, before, 0.001)
        plans = {plan["name"]: plan for plan in api.get("/fleet/plans").json()["plans"]}
        ids = {name: plan["plan_id"] for name, plan in plans.items()}
        assert {name: missed(api, plan) for name, plan in ids.items()} == {"one": 0.0, "two": 1.0, "one + two": 1.0}
        assert api.get(f"/devices/{agent.device_id}").json()["missed"] == pytest.approx(2 / 3)
        with chromium() as browser:
            page = browser.new_page(base_url=url)
            look(page, f"/console/releases/{release}", f"{worse} devices are")
            look(page, f"/console/devices/{agent.device_id}", "67 %")
            for name in ("two", "one + two"):
                look(page, f"/console/plans/{ids[name]}", "100 %")
                expect(page.get_by_role("heading", level=1)).to_contain_text(name)


def missed(api: httpx.Client, plan: str) -> float:
    """The share of deadlines that a plan has missed, of all versions: a better one may have come meanwhile."""
    found = [version["results"] for version in api.get(f"/plans/{plan}/versions").json()["versions"]]
    return sum(one["missed"] for one in found) / sum(one["deadlines"] for one in found)


def look(page: Page, path: str, says: str) -> None:
    """A page that says so, to whoever looks at it."""
    page.goto(path)
    expect(page.get_by_role("main").get_by_text(says).first).to_be_visible()
