"""Releases: held back, given out in stages, watched, taken back by themselves or by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, insert

from hope_schema import (
    DeviceDescription,
    DeviceReport,
    GroupSelector,
    Job,
    PlanReply,
    Release,
    ReleasePartPage,
    ReleaseRequest,
    RolloutPolicy,
)
from planner_api.console.overview import count
from planner_api.console.pages.models import sentence
from planner_api.db.tables import ReleaseRow
from planner_api.devices.audit import PLANNER
from planner_api.devices.groups import position
from planner_api.rollout import judging, repository, splits
from planner_api.rollout.splits import Split, Splits
from tests.planner.jobs_help import improve
from tests.planner.releases_help import (
    AT_ONCE,
    DEVICES,
    GRAPH,
    OTHER,
    act,
    audited,
    begin,
    fill,
    given,
    hold,
    look,
    plan_of,
    report,
    settle,
    staged,
)
from tests.planner.samples import FREQUENCY, SOC, Api, enrol, eventually, issue, queries_of, serving

pytestmark = pytest.mark.usefixtures("looks_often")


@pytest.fixture
def database_url(copied: Callable[..., str]) -> str:
    """A database with what `fill` does."""
    return copied(fill)


def test_a_stage_is_given_to_its_devices_and_nobody_else(api: Api) -> None:
    """Held back until released; then a stable share gets it, who is nobody gets the version before, at the end all."""
    assert given(api, "device-1") == given(api, None) == {2}
    release = begin(api, stages=(0.3, 1.0))
    assert (release.state, release.share, release.devices, release.plans) == ("running", 0.3, len(DEVICES), 1)
    chosen = {device for device in DEVICES if position(device, release.release_id) < 0.3}
    assert 1 < len(chosen) < 22
    for device in DEVICES:
        assert given(api, device) == {3 if device in chosen else 2}
    assert given(api, None) == {2}
    mine, path = {"hope-device": min(chosen)}, f"/plans/{plan_of(api)}"
    tag = api.client.get(path, headers=mine).headers["etag"]
    assert api.client.get(path, headers={**mine, "if-none-match": tag}).status_code == 304
    assert api.client.get(path, headers={"if-none-match": tag}).status_code == 200
    assert act(api, release, "approve").json()["share"] == 1.0
    assert all(given(api, device) == {3} for device in DEVICES[:5])
    assert act(api, release, "approve").json()["state"] == "done"
    assert given(api, None) == {3}
    assert audited(api, release) == [
        ("anonymous", "release.begin"),
        ("anonymous", "release.stage"),
        ("anonymous", "release.done"),
    ]


@pytest.mark.above_databases
@pytest.mark.parametrize(
    "harm",
    [
        {"us": 120.0},
        {"us": 100.0, "failures": 3},
        {"us": 100.0, "wrong": 1},
        {"failures": 1},
        {"us": 100.0, "missed": 2},
    ],
)
def test_harm_takes_it_back(api: Api, harm: dict[str, Any]) -> None:
    """Slower, failing, wrong or late where it is: the version before is served again, and why is said."""
    plan_id = plan_of(api)
    release = begin(api, stages=(0.9, 1.0), hold_s=3600.0)
    told = 0
    for device in DEVICES:
        if look(api, release).state == "rolled_back":
            break
        if given(api, device) == {3}:
            report(api, device, plan_id, 3, **harm)
            told += 1
            api.await_(api.app.planner.releases.steer)
    ended = look(api, release)
    assert (ended.state, ended.share, ended.evidence >= 3.0) == ("rolled_back", 0.0, True)
    assert ended.reason.startswith(f"{told} devices are ")
    assert told < 25
    assert all(given(api, device) == {2} for device in [*DEVICES[:5], None])
    assert audited(api, release)[-1] == ("planner", "release.rollback")
    refused = api.post("/releases", ReleaseRequest(model=GRAPH.model_hash))
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:hope:nothing-to-release")
    assert begin(api, again=True).state == "running"


def test_without_harm_it_goes_to_everybody(api: Api) -> None:
    """Each stage ends when enough of its devices reported; better and worse in equal parts take nothing back."""
    plan_id = plan_of(api)
    release = begin(api, **AT_ONCE)
    number = 0
    for stage in (0, 1):
        assert eventually(lambda: look(api, release).stage == stage)  # noqa: B023 - asked at once
        for device in staged(release, stage):
            number += 1
            report(api, device, plan_id, 3, us=120.0 if number % 2 else 80.0)
    assert eventually(lambda: look(api, release).state == "done")
    ended = look(api, release)
    assert (ended.reported, ended.latency.worse, ended.latency.better) == (30, 15, 15)
    assert ended.evidence < 3.0
    assert given(api, None) == {3}
    history = api.client.get(f"/plans/{plan_id}/versions").json()["versions"]
    assert [(each["version"], each["served"]) for each in history[:2]] == [(3, True), (2, False)]
    assert history[0]["results"]["reports"] == len(DEVICES)
    assert history[0]["results"]["measured_us"] == pytest.approx((120 * 80) ** 0.5)
    assert history[0]["results"]["runs"] == len(DEVICES) * 64


@pytest.mark.above_databases
def test_a_device_counts_once(api: Api) -> None:
    """One that goes back and forth between versions, saying it is slower each time, is one device."""
    plan_id = plan_of(api)
    release = begin(api, stages=(1.0,), hold_s=3600.0)
    for _ in range(30):
        report(api, "device-0", plan_id, 3, us=200.0)
        report(api, "device-0", plan_id, 2, us=100.0)
    report(api, "stranger", plan_id, 3, us=1000.0)
    api.await_(api.app.planner.releases.steer)
    found = look(api, release)
    assert (found.state, found.reported, found.latency.worse) == ("running", 1, 1)
    (part,) = ReleasePartPage.model_validate_json(api.client.get(f"/releases/{release.release_id}/parts").content).parts
    assert (part.plan_id, part.soc, part.before, part.after, part.reported) == (plan_id, SOC, 2, 3, 1)
    assert part.latency.worse == 1


@pytest.mark.above_databases
def test_admins_pause_approve_and_take_back(api: Api) -> None:
    """A paused stage stays, approval is waited for, and what is done can still be taken back, once."""
    plan_id = plan_of(api)
    release = begin(api, approval=True, **AT_ONCE)
    assert act(api, release, "pause").json()["state"] == "paused"
    for device in staged(release):
        report(api, device, plan_id, 3, us=100.0)
    api.await_(api.app.planner.releases.steer)
    assert (look(api, release).state, look(api, release).stage) == ("paused", 0)
    assert act(api, release, "approve").status_code == 409
    assert act(api, release, "resume").json()["state"] in ("running", "waiting")  # its devices have reported already
    assert eventually(lambda: look(api, release).state == "waiting")
    assert act(api, release, "resume").status_code == 409
    assert act(api, release, "approve").json()["stage"] == 1
    for device in staged(release, 1):
        report(api, device, plan_id, 3, us=100.0)
    assert eventually(lambda: look(api, release).state == "done")
    assert eventually(lambda: given(api, None) == {3}), "the answer by key and by id, once both have heard"
    back = act(api, release, "rollback")
    assert (back.json()["state"], given(api, None)) == ("rolled_back", {2})
    again = act(api, release, "rollback")
    assert (again.status_code, again.json()["type"]) == (409, "urn:hope:release-state")
    assert [action for _, action in audited(api, release)] == [
        "release.begin", "release.pause", "release.resume", "release.wait", "release.stage", "release.done",
        "release.rollback",
    ]  # fmt: skip


@pytest.mark.above_databases
def test_a_stage_that_few_devices_report_about_asks_an_admin(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits and says how many reported, wherever one looks; late reports move it on, and so does an approval."""
    monkeypatch.setattr(judging, "PATIENCE", timedelta())
    plan_id, release = plan_of(api), begin(api, **AT_ONCE)
    assert eventually(lambda: look(api, release).state == "waiting")
    first = len(staged(release))
    assert look(api, release).reason.startswith(f"0 of {first} devices wanted reported")
    assert 'hope_releases{state="waiting"} 1.0' in api.client.get("/metrics").text
    assert f"/console/releases/{release.release_id}" in api.client.get("/console").text
    for device in staged(release):
        report(api, device, plan_id, 3, us=100.0)
    assert eventually(lambda: (look(api, release).stage, look(api, release).state) == (1, "waiting"))
    assert f"{first} of 30 devices wanted reported" in api.client.get(f"/console/releases/{release.release_id}").text
    assert act(api, release, "approve").json()["state"] == "done"
    assert [action for _, action in audited(api, release)] == [
        "release.begin", "release.wait", "release.stage", "release.wait", "release.done",
    ]  # fmt: skip


@pytest.mark.above_databases
def test_what_was_superseded_is_not_taken_back(api: Api) -> None:
    """After a newer release, the older one has nothing to return from."""
    first = begin(api, stages=(1.0,))
    act(api, first, "approve")
    improve(api, plan_of(api))
    second = begin(api, stages=(1.0,))
    act(api, second, "approve")
    answer = act(api, first, "rollback")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:hope:release-superseded")
    assert given(api, None) == {4}


@pytest.mark.above_databases
def test_after_a_hold_new_versions_reach_devices_at_once(api: Api) -> None:
    """What was held, or taken back, holds up no later version of a model that waits for no release any more."""
    plan_id = plan_of(api)
    act(api, begin(api), "rollback")
    hold(api, GRAPH.model_hash, "at_once")
    assert given(api, None) == {2}
    improve(api, plan_id)
    assert given(api, None) == {4}


@pytest.mark.above_databases
@pytest.mark.parametrize("verb", ["approve", "rollback"])
def test_what_waits_for_no_release_goes_out_when_the_one_under_way_ends(api: Api, verb: str) -> None:
    """A release is not overtaken, and however it ends devices then get what came meanwhile and was not to wait."""
    plan_id, release = plan_of(api), begin(api, stages=(1.0,))
    hold(api, GRAPH.model_hash, "at_once")
    improve(api, plan_id)
    assert given(api, None) == {2}
    assert act(api, release, verb).status_code == 200
    assert given(api, None) == {4}


def test_two_admins_at_once(api: Api) -> None:
    """Of releases begun together one begins; of steps taken together one is taken; the audit log has just those."""
    body = ReleaseRequest(model=GRAPH.model_hash, stages=(0.1, 0.2, 0.3, 1.0))
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: api.post("/releases", body), range(6)))
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409, 409]
        assert {a.json()["type"] for a in answers if a.status_code == 409} == {"urn:hope:release-under-way"}
        (won,) = (Release.model_validate_json(a.content) for a in answers if a.status_code == 201)
        verbs = ["pause", "pause", "pause", "rollback", "rollback"]
        codes = list(pool.map(lambda verb: act(api, won, verb).status_code, verbs))
    taken = [action for _, action in audited(api, won)]
    assert len(taken) == 1 + codes.count(200)
    assert taken.count("release.rollback") == 1
    assert set(codes) <= {200, 409}


@pytest.mark.above_databases
def test_a_group_is_who_gets_it(api: Api) -> None:
    """Only devices with the group's label, and of those the stage's share."""
    api.put("/groups/beta", GroupSelector(socs=(SOC,), labels={"channel": "beta"}))
    api.put("/devices/device-3/description", DeviceDescription(labels={"channel": "beta"}))
    release = begin(api, group="beta", stages=(1.0,))
    assert (release.devices, release.wanted) == (1, 1)
    assert [device for device in DEVICES[:10] if given(api, device) == {3}] == ["device-3"]
    for channel, version in (("stable", 2), ("beta", 3)):
        api.put("/devices/device-3/description", DeviceDescription(labels={"channel": channel}))
        assert given(api, "device-3") == {version}, "what its labels are now"
    assert (
        sentence(release)
        == "At stage 1 of 1: 100 % of the devices of group beta have it; 0 of 1 device wanted reported."
    )
    act(api, release, "approve")
    assert sentence(look(api, release)).startswith("Everybody has it, not group beta alone")
    alone = api.client.get(f"/console/releases/{release.release_id}").text
    assert "Everybody has it, not group beta alone" in alone


def test_an_untouched_key_is_served_from_memory(api: Api) -> None:
    """A release of one plan forgets that one alone."""
    api.learn(OTHER)
    other = api.plan(OTHER).plan_id
    api.client.get(f"/plans/{other}")
    begin(api)
    assert given(api, "device-1") <= {2, 3}
    cache = api.app.planner.plan_cache
    assert cache.get((plan_of(api), None)) is None
    api.client.get(f"/plans/{other}")
    assert cache.get((other, None)) is not None


def test_drift_is_that_of_the_version_that_devices_get(api: Api) -> None:
    """While a newer version is held, median, histogram and lists of plans agree on the served one."""
    plan = PlanReply.model_validate_json(api.client.get(f"/plans/{plan_of(api)}").content).plan
    off = pytest.approx(100.0 / plan.makespan_us - 1.0)
    overview = api.await_(count, api.app.planner.database)
    assert sum(overview.drift) == len(DEVICES), "the newest report of each device"
    assert [(each.drift, each.reports) for each in overview.drifting] == [(off, len(DEVICES))]
    assert overview.numbers.median_drift == off
    (listed,) = api.client.get("/fleet/plans").json()["plans"]
    assert (listed["drift"], listed["version"], listed["newest"]) == (off, 2, 3)
    assert "(3 is held)" in api.client.get("/console/plans").text
    device = f"/devices/{DEVICES[0]}"
    assert api.client.get(device).json()["drift"] == off
    report(api, DEVICES[0], plan_of(api), 3, us=900.0)
    assert api.client.get(device).json()["drift"] is None, "what it says of a version that devices do not get yet"


def test_a_joint_plan_waits_for_a_release_of_any_of_its_networks(api: Api) -> None:
    """A plan of two networks is held where one of them is, goes out with a release of that one, and comes back."""
    api.learn(OTHER)
    jobs = tuple(Job(model_hash=graph.model_hash) for graph in (OTHER, GRAPH))
    plan_id = api.plan(OTHER, jobs=jobs).plan_id
    improve(api, plan_id)
    improve(api, plan_id)
    assert api.client.get(f"/plans/{plan_id}").json()["version"] == 2, "the second network is held"
    release = begin(api, stages=(1.0,))
    assert release.plans == 2
    assert act(api, release, "approve").json()["state"] == "done"
    assert api.client.get(f"/plans/{plan_id}").json()["version"] == 3
    act(api, release, "rollback")
    assert api.client.get(f"/plans/{plan_id}").json()["version"] == 2


def test_a_joint_plan_of_a_held_network_waits_for_an_admin(api: Api) -> None:
    """The planner does not release it by itself for another of its networks, whose own plans it does release."""
    api.learn(OTHER)
    jobs = tuple(Job(model_hash=graph.model_hash) for graph in (OTHER, GRAPH))
    joint, alone = (api.plan(OTHER, **more).plan_id for more in ({"jobs": jobs}, {}))
    hold(api, OTHER.model_hash, "staged")
    for plan_id in (joint, joint, alone, alone):
        improve(api, plan_id)
    settle(api)
    api.await_(api.app.planner.releases.steer)
    (release,) = (Release.model_validate(one, strict=False) for one in api.client.get("/releases").json()["releases"])
    assert (release.model_hash, release.plans) == (OTHER.model_hash, 1)
    assert act(api, release, "rollback").status_code == 200
    api.await_(api.app.planner.releases.steer)
    assert len(api.client.get("/releases").json()["releases"]) == 1
    assert begin(api).plans == 2, "an admin releases the joint plan, and the held network's own"


def test_a_joint_plan_in_a_release_of_its_other_network_holds_up_nobody(api: Api) -> None:
    """A staged model's own plans go out while another network's release has the joint one, once for all of them."""
    api.learn(OTHER)
    jobs = tuple(Job(model_hash=graph.model_hash) for graph in (OTHER, GRAPH))
    joint, alone = (api.plan(OTHER, **more).plan_id for more in ({"jobs": jobs}, {}))
    hold(api, OTHER.model_hash)
    for plan_id in (joint, joint):
        improve(api, plan_id)
    settle(api)
    assert begin(api).plans == 2, "the joint plan goes out with the network beside"
    for plan_id in (alone, alone):
        improve(api, plan_id)
    settle(api)
    hold(api, OTHER.model_hash, "staged")
    for _ in range(2):
        api.await_(api.app.planner.releases.steer)
        found = [(one["model_hash"], one["plans"]) for one in api.client.get("/releases").json()["releases"]]
        assert found == [(OTHER.model_hash, 1), (GRAPH.model_hash, 2)]


def test_every_process_follows(api: Api, database_url: str) -> None:
    """Another replica gives the same devices the same versions soon after, and takes them back too."""
    with serving(database_url) as beside:
        assert given(beside, "device-1") == {2}
        release = begin(api, stages=(1.0,))
        assert eventually(lambda: given(beside, "device-1") == {3})
        act(beside, release, "approve")
        assert eventually(lambda: given(api, None) == {3})
        act(api, release, "rollback")
        assert eventually(lambda: given(beside, None) == {2})


def test_what_chooses_a_device_is_remembered_until_it_changes(api: Api, database_url: str) -> None:
    """Asking again costs no query; what a device is called on another replica, or says that it is, counts soon."""
    planner, beta = api.app.planner, DeviceDescription(labels={"channel": "beta"})
    api.put("/groups/beta", GroupSelector(labels=beta.labels))
    api.put("/devices/device-3/description", beta)
    begin(api, group="beta", stages=(1.0,))
    assert given(api, "device-3") == {3}
    asked = queries_of(api)
    api.client.get(f"/plans/{plan_of(api)}", headers={"hope-device": "device-3"})
    assert not [statement for statement in asked if "FROM devices" in statement]
    with serving(database_url) as beside:
        beside.put("/devices/device-3/description", DeviceDescription())
        assert eventually(lambda: given(api, "device-3") == {2})
    selector = GroupSelector(socs=("another",))
    planner.splits.aliases["name", "alias"] = Split("r", 1, 2, share=1.0, group="", selector=selector, soc=None)
    assert api.await_(planner.splits.alias_version, "name", "alias", "device-3") == 1
    api.put("/devices/device-3/report", DeviceReport(soc="another", frequency=FREQUENCY))
    assert eventually(lambda: api.await_(planner.splits.alias_version, "name", "alias", "device-3") == 2)
    assert enrol(api, issue(database_url, "claim"), "device-3").status_code == 201  # as what it was at first
    assert eventually(lambda: api.await_(planner.splits.alias_version, "name", "alias", "device-3") == 1)


def test_a_replica_that_missed_an_end_follows(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that did not look while a release ended, and for long after, diverts nobody any more."""
    planner, plan_id = api.app.planner, plan_of(api)
    late = Splits(planner.database, planner.plan_cache, planner.news)
    release = begin(api, stages=(1.0,))
    api.await_(late.look)
    assert api.await_(late.plan_version, plan_id, "device-1") == 3
    act(api, release, "rollback")
    monkeypatch.setattr(splits, "LATELY", timedelta(0))
    api.await_(late.look)
    assert api.await_(late.plan_version, plan_id, "device-1") is None


def test_of_two_looks_at_once_the_later_one_counts(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looked before a release was taken back, and is slow, does not divert anybody again afterwards."""
    planner, plan_id = api.app.planner, plan_of(api)
    release, read = begin(api, stages=(1.0,)), repository.parts

    async def race() -> None:
        looked, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(*given: Any) -> Any:
            found = await read(*given)
            if not looked.is_set():
                looked.set()
                await go_on.wait()
            return found

        monkeypatch.setattr(repository, "parts", slowly)
        planner.splits._known = {}
        early = asyncio.create_task(planner.splits.look())
        await looked.wait()
        monkeypatch.setattr(repository, "parts", read)
        late = asyncio.create_task(planner.releases.act(release.release_id, "rollback", PLANNER))
        await asyncio.wait({late}, timeout=0.3)
        go_on.set()
        await asyncio.gather(early, late)
        assert await planner.splits.plan_version(plan_id, "device-1") is None

    api.await_(race)


def test_every_release_under_way_is_steered(api: Api) -> None:
    """However many there are, none is left out."""
    planner, first = api.app.planner, begin(api)

    async def multiply() -> list[str]:
        async with planner.database.write() as session:
            row = await repository.lock(session, first.release_id)
            same = {column.key: getattr(row, column.key) for column in ReleaseRow.__table__.columns}
            await session.execute(insert(ReleaseRow), [{**same, "id": f"r-{number}"} for number in range(1200)])
        async with planner.database.read() as session:
            found = list(await repository.under_way(session))
        async with planner.database.write() as session:
            await session.execute(delete(ReleaseRow).where(ReleaseRow.id != first.release_id))
        return found

    assert len(set(api.await_(multiply))) == 1201


def test_a_staged_model_releases_itself(api: Api) -> None:
    """Where the planner is to see to it, a new version begins its own release; what was taken back does not again."""
    settle(api)
    hold(api, GRAPH.model_hash, "staged")
    assert eventually(lambda: len(api.client.get("/releases").json()["releases"]) == 1)
    release = Release.model_validate(api.client.get("/releases").json()["releases"][0], strict=False)
    assert audited(api, release) == [("planner", "release.begin")]
    act(api, release, "rollback")
    api.await_(api.app.planner.releases.steer)
    assert len(api.client.get("/releases").json()["releases"]) == 1
    improve(api, plan_of(api))
    settle(api)
    assert eventually(lambda: len(api.client.get("/releases").json()["releases"]) == 2)


def test_two_replicas_begin_one_staged_release(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes second leaves the release to the first, and begins those of other models all the same."""
    api.learn(OTHER)
    other = api.plan(OTHER).plan_id
    improve(api, other)
    for graph in (GRAPH, OTHER):
        hold(api, graph.model_hash)
    improve(api, other)
    settle(api)
    begin(api)
    both = [GRAPH.model_hash, OTHER.model_hash]

    async def ready(_session: Any) -> list[str]:
        return both

    monkeypatch.setattr(repository, "ready_by_themselves", ready)  # as it was before the first one began
    for graph in (GRAPH, OTHER):
        hold(api, graph.model_hash, "staged")
    api.await_(api.app.planner.releases.steer)
    begun = [release["model_hash"] for release in api.client.get("/releases").json()["releases"]]
    assert sorted(begun) == sorted(both)


@pytest.mark.above_databases
def test_what_cannot_be_released_is_said(api: Api) -> None:
    """Models without plans, versions that everybody has, names and groups that are not there: each by its own name."""
    api.post("/models", OTHER)
    cases = [
        (api.post("/releases", ReleaseRequest(model=OTHER.model_hash)), 409, "release-without-plans"),
        (api.post("/releases", ReleaseRequest(model="0" * 64)), 404, "name-unknown"),
        (api.post("/releases", ReleaseRequest(model="nobody:1")), 404, "name-unknown"),
        (api.post("/releases", ReleaseRequest(model=GRAPH.model_hash, group="none")), 404, "group-unknown"),
        (api.post("/releases", ReleaseRequest(model=GRAPH.model_hash, alias="live")), 422, "alias-of-nothing"),
        (api.post("/releases", b'{"model": "a", "stages": [0.5, 0.1, 1.0]}'), 422, "invalid"),
        (api.post("/releases", b'{"model": "a", "stages": [0.5]}'), 422, "invalid"),
        (api.post("/releases", b'{"model": "<b>"}'), 422, "invalid"),
        (api.client.post(f"/releases/r-{'0' * 24}/rollback"), 404, "release-unknown"),
        (api.put(f"/models/{'0' * 64}/rollout", RolloutPolicy(rollout="held")), 404, "model-unknown"),
    ]
    for answer, status, kind in cases:
        assert (answer.status_code, answer.json()["type"]) == (status, f"urn:hope:{kind}"), answer.text
    act(api, begin(api, stages=(1.0,)), "approve")
    everybody = api.post("/releases", ReleaseRequest(model=GRAPH.model_hash))
    assert (everybody.status_code, everybody.json()["type"]) == (409, "urn:hope:nothing-to-release")
    assert api.client.get("/releases?limit=1").json()["next"] is None
