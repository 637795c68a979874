"""What people look at adds up the same wherever it is shown."""

from __future__ import annotations

from hope_schema import Job
from tests.planner.samples import Api, chain, plan_request

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
