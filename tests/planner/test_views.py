"""What people look at adds up the same wherever it is shown."""

from __future__ import annotations

from sqlalchemy import update

from hope_schema import DeviceReport, GroupSelector, Job, MeasuredRun
from hope_schema.base import LEAST_US
from planner_api.db.tables import SocRow
from tests.planner.jobs_help import improve
from tests.planner.samples import FREQUENCY, SOC, Api, chain, eventually, measure, plan_request, serving

ONE, TWO = chain(3, "one"), chain(4, "two")


def test_a_joint_plan_is_found_under_each_of_its_networks(api: Api) -> None:
    """It is listed for every network that it runs, and counts once for a network that it runs twice."""
    for graph in (ONE, TWO):
        api.learn(graph)
    first, second = (Job(model_hash=graph.model_hash) for graph in (ONE, TWO))
    joint = api.post("/plans", plan_request(ONE, jobs=(first, second, first))).json()["plan_id"]
    alone = api.post("/plans", plan_request(TWO)).json()["plan_id"]
    for graph, plans in ((ONE, {joint}), (TWO, {joint, alone})):
        listed = api.client.get("/fleet/plans", params={"model_hash": graph.model_hash}).json()["plans"]
        assert {each["plan_id"] for each in listed} == plans
        page = api.client.get(f"/console/models/{graph.model_hash}").text
        assert all(f"/console/plans/{plan_id}" in page for plan_id in plans)
    counted = {each["model_hash"]: each["plans"] for each in api.client.get("/fleet/models").json()["models"]}
    assert counted == {ONE.model_hash: 1, TWO.model_hash: 2}


def test_a_joint_plan_is_shown_as_all_of_its_networks(api: Api) -> None:
    """Lists and pages name every network of a plan; its ops stand by network; beside it only plans of the same ones."""
    for graph in (ONE, TWO):
        api.learn(graph)
    jobs = tuple(Job(model_hash=graph.model_hash) for graph in (ONE, TWO))
    joint = api.post("/plans", plan_request(ONE, jobs=jobs)).json()["plan_id"]
    api.post("/plans", plan_request(ONE))
    listed = {plan["plan_id"]: plan["name"] for plan in api.client.get("/fleet/plans").json()["plans"]}
    assert sorted(listed.values()) == ["one", "one + two"]
    assert listed[joint] == "one + two"
    page = api.client.get(f"/console/plans/{joint}").text
    assert all(f"/console/models/{graph.model_hash}" in page for graph in (ONE, TWO))
    assert page.count("<td><bdi>two</bdi></td>") == 4, "a row per op of the second network"
    assert "There is no other plan" in page
    for path in ("/console/plans", f"/console/models/{TWO.model_hash}"):
        assert "one + two" in api.client.get(path).text
    compared = api.client.get(f"/console/compare?left={joint}@1&right={joint}@1").text
    assert compared.count('<span class="faint"><bdi>two</bdi></span>') == 4


def test_coverage_counts_pairs_that_the_fleet_counts(api: Api) -> None:
    """A model is covered where a finished plan serves it alone, on a SoC that is established, and nowhere else."""
    for graph in (ONE, TWO):
        api.learn(graph)
    jobs = tuple(Job(model_hash=graph.model_hash) for graph in (ONE, TWO))
    for first in (api.plan(ONE).plan_id, api.plan(ONE, jobs=jobs).plan_id):
        improve(api, first)

    def coverage() -> list[float]:
        found = api.client.get("/fleet/models").json()["models"]
        return [each["coverage"] for each in sorted(found, key=lambda each: str(each["name"]))]

    assert eventually(lambda: coverage() == [1.0, 0.0])
    assert "of 1 pair of confirmed SoC" in api.client.get(f"/console/models/{ONE.model_hash}").text

    async def doubt() -> None:
        async with api.app.planner.database.write() as session:
            await session.execute(update(SocRow).values(established_at=None))

    api.await_(doubt)
    api.learn(ONE, soc="soc-2")
    assert coverage() == [0.0, 0.0], "a plan for a SoC that does not count covers none that does"


def test_extreme_times_break_no_view(api: Api) -> None:
    """Whatever the contract lets devices say: the shortest and the longest runs of plans that take next to no time."""
    free, dear = chain(1), chain(2)
    api.post("/models", free)
    upload = measure(api.missing(free), cost=lambda *_: 1e-320)
    moves = upload.transfers.model_copy(update={"us": (0.0,) * len(upload.transfers.us)})
    api.post("/profiles", upload.model_copy(update={"transfers": moves}))
    api.learn(dear)
    plans = [api.plan(graph) for graph in (free, dear)]
    assert 0.0 < plans[0].plan.makespan_us < 1e-300
    for device, us in enumerate([LEAST_US, *[1e12] * 5]):
        measured = tuple(MeasuredRun(plan_id=one.plan_id, plan_version=1, measured_us=us, runs=1) for one in plans)
        report = DeviceReport(soc=SOC, frequency=FREQUENCY, measured=measured[device % 2 :])
        assert api.put(f"/devices/device-{device}/report", report).status_code == 204
    first, second = (one.plan_id for one in plans)
    of_plans = [f"/plans/{first}/versions", f"/plans/{second}/versions", f"/plans/{first}/diff?other={second}"]
    of_people = ["", "/devices", "/devices/device-0", f"/plans/{first}", f"/plans/{second}"]
    for path in ["/devices", "/fleet", "/fleet/plans", *of_plans, *(f"/console{page}" for page in of_people)]:
        assert api.client.get(path).status_code == 200, path


def test_a_profile_where_an_op_takes_no_time_has_a_page(api: Api) -> None:
    """Nothing is a multiple of no time: the slower processor's cell says its time alone."""
    graph = chain(1)
    api.post("/models", graph)
    api.upload(measure(api.missing(graph), cost=lambda _, kind: 0.0 if kind.endswith("big") else 25.0), {})
    answer = api.client.get(f"/console/profiles/{SOC}/{FREQUENCY}")
    assert answer.status_code == 200
    assert "×</span>" not in answer.text


def test_a_group_of_next_to_nobody_has_pages_too(sqlite_url: str) -> None:
    """So small a share takes nobody, however many devices are looked at for one of it."""
    with serving(sqlite_url, works=()) as api:
        api.put("/devices/device-1/report", DeviceReport(soc=SOC, frequency=FREQUENCY))
        assert api.put("/groups/few", GroupSelector(share=5e-324)).status_code == 200
        for path in ("/devices?group=few", "/console/devices?group=few"):
            assert api.client.get(path).status_code == 200
        assert api.client.get("/devices?group=few").json()["devices"] == []
