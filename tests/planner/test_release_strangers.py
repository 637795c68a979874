"""Releases are judged by the devices that they were given to, once each, and by no claim alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hope_schema import DeviceReport, GroupSelector, MeasuredRun, Release, ReleaseRequest, RolloutPolicy
from planner_api.db.tables import ClaimRow, DeviceRow, ReleaseClaimRow, ReleasePartRow
from planner_api.devices import repository as devices
from planner_api.devices.groups import position
from planner_api.rollout.judging import judge
from tests.planner.jobs_help import improve
from tests.planner.samples import FREQUENCY, SOC, Api, chain, eventually, serving

pytestmark = pytest.mark.usefixtures("looks_often")

GRAPH = chain(4)
HONEST = [f"honest-{number}" for number in range(40)]
SYBILS = [f"sybil-{number}" for number in range(18)]


def fill(url: str) -> None:
    """A model whose plans are held back, devices of two claims that said how long version 2 takes, and a version 3."""
    with serving(url) as api:
        api.learn(GRAPH)
        plan_id = api.plan(GRAPH).plan_id
        improve(api, plan_id)
        api.put(f"/models/{GRAPH.model_hash}/rollout", RolloutPolicy(rollout="held"))

        async def enrol() -> None:
            async with api.app.planner.database.write() as session:
                for label, names in (("honest", HONEST), ("sybils", SYBILS)):
                    session.add(claim := ClaimRow(claim_hash=label, label=label))
                    await session.flush()
                    for name in names:
                        await devices.enrol(session, name, {"claim_id": claim.id, "soc": SOC})

        api.await_(enrol)
        for device in HONEST + SYBILS:
            report(api, device, plan_id, 2, us=100.0)
        improve(api, plan_id)


@pytest.fixture
def database_url(copied: Callable[..., str]) -> str:
    """A database with what `fill` does."""
    return copied(fill)


def report(api: Api, device: str, plan_id: str, version: int, us: float, soc: str = SOC) -> None:
    """Say what a device measured of a plan version."""
    run = MeasuredRun(plan_id=plan_id, plan_version=version, measured_us=us, p99_us=us, runs=64)
    sent = DeviceReport(soc=soc, frequency=FREQUENCY, measured=(run,))
    assert api.put(f"/devices/{device}/report", sent).status_code == 204


def begin(api: Api, **more: Any) -> Release:
    """Begin a release that asks for half of a stage's devices."""
    values = {"stages": (0.5, 1.0), "hold_s": 0.0, "reported": 0.5, **more}
    answer = api.post("/releases", ReleaseRequest(model=GRAPH.model_hash, **values))
    assert answer.status_code == 201, answer.text
    return Release.model_validate_json(answer.content)


def look(api: Api, release: Release) -> Release:
    """A release as it is now, steered once more."""
    api.await_(api.app.planner.releases.steer)
    return Release.model_validate_json(api.client.get(f"/releases/{release.release_id}").content)


def staged(names: list[str], release: Release, share: float) -> list[str]:
    """Those of some devices that a stage takes."""
    return [name for name in names if position(name, release.release_id) < share]


@pytest.mark.above_databases
def test_who_was_not_given_it_pushes_nothing(api: Api) -> None:
    """Reports of devices outside the stage, of another SoC, and of ones that came later move a release nowhere."""
    plan_id, foreign = api.plan(GRAPH).plan_id, [f"foreign-{number}" for number in range(20)]
    for device in foreign:
        report(api, device, plan_id, 2, us=100.0, soc="soc-2")
    release = begin(api)
    inside = set(staged(HONEST + SYBILS, release, 0.5))
    for device in [name for name in HONEST + SYBILS if name not in inside]:
        report(api, device, plan_id, 3, us=100.0)
    for number in range(20):
        report(api, f"new-{number}", plan_id, 3, us=100.0)
    for device in list(inside)[:3] + foreign:
        report(api, device, plan_id, 3, us=100.0, soc="soc-2")
    for device in foreign:  # of this SoC now, and not when it began
        report(api, device, plan_id, 3, us=100.0)
    found = look(api, release)
    assert (found.state, found.share, found.reported) == ("running", 0.5, 0)


@pytest.mark.above_databases
def test_one_claims_devices_stop_nothing(api: Api) -> None:
    """However bad the devices of one claim say it is, a release goes on where nobody else says so."""
    plan_id, release = api.plan(GRAPH).plan_id, begin(api, stages=(1.0,))
    for device in SYBILS:
        report(api, device, plan_id, 3, us=900.0)
    assert look(api, release).state == "running"
    for device in HONEST:
        report(api, device, plan_id, 3, us=100.0)
    assert eventually(lambda: look(api, release).state == "done")


def test_one_claims_devices_hide_no_harm(api: Api) -> None:
    """Harm that the others say is seen, however fast the devices of one claim say it is."""
    plan_id, release = api.plan(GRAPH).plan_id, begin(api, stages=(1.0,), reported=1.0)
    for device in SYBILS:
        report(api, device, plan_id, 3, us=10.0)
    for device in HONEST[:-1]:
        report(api, device, plan_id, 3, us=300.0)
    assert eventually(lambda: look(api, release).state == "rolled_back")


@pytest.mark.above_databases
def test_who_says_nothing_or_leaves_stalls_nothing(api: Api) -> None:
    """Devices of one claim that keep silent, and any that become another SoC, are waited for no longer."""
    plan_id, release = api.plan(GRAPH).plan_id, begin(api, stages=(1.0,), reported=1.0)
    for device in HONEST[30:]:
        report(api, device, plan_id, 2, us=100.0, soc="soc-2")
        report(api, device, plan_id, 2, us=100.0, soc="soc-3")
    for device in HONEST[:30]:
        report(api, device, plan_id, 3, us=100.0)
    assert eventually(lambda: look(api, release).state == "done")

    async def left() -> int:
        async with api.app.planner.database.read() as session:
            row = await session.get(DeviceRow, HONEST[-1])
            return int(row is not None and row.soc_since is not None)

    assert api.await_(left) == 1


@pytest.mark.above_databases
def test_who_leaves_from_outside_the_group_is_not_missed(api: Api) -> None:
    """Devices that a release was never for and that become another SoC leave all of its own to be waited for."""
    plan_id = api.plan(GRAPH).plan_id
    assert api.put("/groups/few", GroupSelector(share=0.3)).status_code == 200
    release = begin(api, group="few", stages=(1.0,), reported=1.0)
    few = [name for name in HONEST + SYBILS if position(name, "few") < 0.3]
    assert release.wanted == release.devices == len(few)
    for device in set(HONEST) - set(few):
        report(api, device, plan_id, 2, us=100.0, soc="soc-2")
    found = look(api, release)
    assert (found.state, found.wanted) == ("running", len(few))


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 200), st.integers(0, 200))
def test_a_claim_decides_nothing_by_itself(worse: int, better: int, claim_worse: int, claim_better: int) -> None:
    """Whatever the devices of one claim say, a release is judged as if they were not there."""
    counts = {"reported": worse + better, "slower": worse, "faster": better}
    of_claim = {"slower": claim_worse, "faster": claim_better, "reported": claim_worse + claim_better}
    others = _part(ReleasePartRow, **counts)
    together = _part(ReleasePartRow, **{name: counts[name] + of_claim[name] for name in counts})
    claim = _part(ReleaseClaimRow, claim_id=1, **of_claim)
    assume(claim_worse != claim_better)
    assert judge([together], [claim]).evidence == judge([others]).evidence


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 200), st.integers(1, 200))
def test_no_two_claims_decide_for_and_against(worse: int, better: int, against: int, in_favour: int) -> None:
    """Of several claims both are left out: the one that speaks most against a release, and the one most for it."""
    others = _part(ReleasePartRow, reported=worse + better, slower=worse, faster=better)
    every = {"reported": worse + better + against + in_favour, "slower": worse + against, "faster": better + in_favour}
    claims = [
        _part(ReleaseClaimRow, claim_id=1, reported=against, slower=against, faster=0),
        _part(ReleaseClaimRow, claim_id=2, reported=in_favour, slower=0, faster=in_favour),
    ]
    assert judge([_part(ReleasePartRow, **every)], claims).evidence == judge([others]).evidence


def _part(kind: Any, **values: Any) -> Any:
    zeros = dict.fromkeys(("failing", "mended", "wrong", "righted", "missing", "keeping"), 0)
    return kind(release_id="r", part="p", **zeros, **values)
