"""Models, profiles and plans over HTTP, on both databases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import update

from hope_schema import (
    Cause,
    Channel,
    Job,
    ModelGraph,
    PlanReply,
    TransferColumns,
    UploadReceipt,
    merge,
)
from planner_api.compression import unzstd
from planner_api.db.tables import ModelRow
from planner_api.profiles import repository as profiles
from tests.planner.jobs_help import solve_one
from tests.planner.samples import (
    FREQUENCY,
    PROCESSORS,
    SOC,
    Api,
    chain,
    measure,
    missing_request,
    plan_request,
    problem,
)

GRAPH = chain()


def test_a_graph_is_stored_once_and_read_back(api: Api) -> None:
    """The first upload of a graph creates it, the second changes nothing, and it comes back as it was."""
    first, second = api.post("/models", GRAPH), api.post("/models", GRAPH)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["model_hash"] == second.json()["model_hash"] == GRAPH.model_hash
    assert (first.json()["created"], second.json()["created"]) == (True, False)
    read = api.client.get(f"/models/{GRAPH.model_hash}")
    assert ModelGraph.model_validate_json(read.content) == GRAPH
    assert api.post("/models", GRAPH.model_copy(update={"name": "renamed"})).status_code == 200


def test_a_conflicting_graph_changes_nothing(api: Api) -> None:
    """Neither a hash that its sender got wrong nor another graph under a stored hash replaces what is stored."""
    other = chain(5)
    problem(api.post("/models", other, **{"idempotency-key": GRAPH.model_hash}), 409, "model-conflict")
    problem(api.client.get(f"/models/{other.model_hash}"), 404, "model-unknown")
    api.post("/models", GRAPH)

    async def tamper() -> None:
        async with api.app.planner.database.write() as session:
            await session.execute(update(ModelRow).values(graph_digest="0" * 64))

    api.await_(tamper)
    problem(api.post("/models", GRAPH), 409, "model-conflict")
    assert ModelGraph.model_validate_json(api.client.get(f"/models/{GRAPH.model_hash}").content) == GRAPH


def test_what_was_measured_is_no_longer_missing(api: Api) -> None:
    """Everything is missing at first, nothing after one device measured it, and the profile has a version then."""
    api.post("/models", GRAPH)
    missing = api.missing(GRAPH)
    kinds = {processor.kind for processor in PROCESSORS}
    assert {(item.signature, item.kind) for item in missing.latencies} == {
        (signature, kind) for signature in {item.signature for item in missing.latencies} for kind in kinds
    }
    assert len(missing.latencies) == 4 * len(kinds)
    directions = {(item.source, item.target) for item in missing.transfers}
    big, little = (processor.place for processor in PROCESSORS)
    assert directions == {
        ("host", big),
        ("host", little),
        (big, "host"),
        (little, "host"),
        (big, little),
        (little, big),
    }
    assert missing.profile_version == 0
    api.post("/profiles", measure(missing))
    again = api.missing(GRAPH)
    assert (again.latencies, again.transfers, again.elsewhere) == ((), (), 0)
    assert again.profile_version == 1


def test_the_unknown_is_spread_over_the_fleet(api: Api) -> None:
    """Devices that measure a little are asked for different figures, which together are all; a lease ends by upload."""
    api.post("/models", GRAPH)
    total = len(api.missing(GRAPH, "device-all").latencies) + len(api.missing(GRAPH, "device-all").transfers)
    api.post("/profiles/missing", missing_request(GRAPH, "device-all", max_items=0))
    asked: list[object] = []
    for number in range(4):
        part = api.missing(GRAPH, f"device-{number}", max_items=4)
        assert len(part.latencies) + len(part.transfers) + part.elsewhere == total
        asked += [*part.latencies, *part.transfers]
    assert len(asked) == len(set(asked)) == min(16, total)
    mine = api.missing(GRAPH, "device-0", max_items=4)
    assert [*mine.latencies, *mine.transfers] == asked[:4], "asking again gives a device its own part again"
    api.post("/profiles", measure(mine, "device-0"))
    left = api.missing(GRAPH, "device-5", max_items=1000)
    assert not {*left.latencies, *left.transfers} & {*asked}
    assert left.elsewhere == len(asked) - 4


def test_an_upload_counts_once(api: Api) -> None:
    """The same upload id of the same device is accepted and ignored; of another device it is another upload."""
    api.post("/models", GRAPH)
    missing = api.missing(GRAPH)
    upload = measure(missing, upload_id="u")
    receipts = [UploadReceipt.model_validate_json(api.post("/profiles", upload).content) for _ in range(2)]
    assert [receipt.duplicate for receipt in receipts] == [False, True]
    assert receipts[0].rows == len(missing.latencies) + len(missing.transfers)
    assert api.missing(GRAPH).profile_version == 1
    replay = api.post("/profiles", upload)
    assert replay.json()["duplicate"] is True, "a replay after folding is still known"
    other = api.post("/profiles", measure(missing, "device-2", upload_id="u"))
    assert other.json()["duplicate"] is False


def test_a_miss_answers_at_once_and_a_hit_from_the_cache(api: Api) -> None:
    """A first request finds a provisional plan that rests on the upload just made; the next ones get the same bytes."""
    api.learn(GRAPH)
    first = api.post("/plans", plan_request(GRAPH))
    second = api.post("/plans", plan_request(GRAPH))
    assert (first.headers["hope-plan-cache"], second.headers["hope-plan-cache"]) == ("miss", "hit")
    assert first.content == second.content
    reply = PlanReply.model_validate_json(first.content)
    assert reply.provisional
    assert reply.version == 1
    assert reply.plan.model_hash == GRAPH.model_hash
    assert reply.plan.profile_version == 1
    assert reply.plan.makespan_us <= min(reply.plan.single_processor_us.values())
    assert {step.cause for step in reply.plan.steps} <= set(Cause)


def test_processors_in_any_order_are_one_plan(api: Api) -> None:
    """The order and repetition of processors make no other key; another restriction does."""
    api.learn(GRAPH)
    one = api.plan(GRAPH, processors=("ort@0", "ort@1"))
    two = api.plan(GRAPH, processors=("ort@1", "ort@0", "ort@1"))
    three = api.plan(GRAPH, processors=("ort@1",))
    assert one.plan_id == two.plan_id != three.plan_id
    assert three.plan.processors == ("ort@1",)


def test_revalidation(api: Api) -> None:
    """A plan comes as it is stored to who reads zstd; its copy is confirmed by 304 in either, another replaced."""
    api.learn(GRAPH)
    plan_id = api.plan(GRAPH).plan_id
    codings = {"zstd": unzstd, "identity": bytes}
    for coding, inflated in codings.items():
        with api.client.stream("GET", f"/plans/{plan_id}", headers={"accept-encoding": coding}) as full:
            raw = b"".join(full.iter_raw())  # not every client knows zstd
        assert full.headers.get("content-encoding", "identity") == coding
        assert PlanReply.model_validate_json(inflated(raw)).plan_id == plan_id
        for other in codings:
            headers = {"accept-encoding": other, "if-none-match": full.headers["etag"]}
            unchanged = api.client.get(f"/plans/{plan_id}", headers=headers)
            assert (unchanged.status_code, unchanged.content) == (304, b"")
    several = [("if-none-match", full.headers["etag"]), ("if-none-match", '"0123"')]
    assert api.client.get(f"/plans/{plan_id}", headers=several).status_code == 304, "lines of one list"
    stale = api.client.get(f"/plans/{plan_id}", headers={"if-none-match": '"0123"'})
    assert stale.status_code == 200
    problem(api.client.get("/plans/p-unknown"), 404, "plan-unknown")


def test_unknown_models_socs_and_processors(api: Api) -> None:
    """Each of them is refused with its own type, and no plan is stored for it."""
    problem(api.post("/plans", plan_request(GRAPH)), 404, "model-unknown")
    problem(api.post("/profiles/missing", missing_request(GRAPH)), 404, "model-unknown")
    api.post("/models", GRAPH)
    problem(api.post("/plans", plan_request(GRAPH)), 404, "profile-unknown")
    api.learn(GRAPH)
    found = problem(api.post("/plans", plan_request(GRAPH, processors=("npu@9",))), 422, "unplannable")
    assert "npu@9" in found.detail
    api.plan(GRAPH)


def test_networks_are_planned_together(api: Api) -> None:
    """Two networks share a plan under a key of their set: released, due, and each done when the plan says."""
    api.learn(GRAPH)
    first, second = (
        Job(model_hash=GRAPH.model_hash, deadline_us=500.0),
        Job(model_hash=GRAPH.model_hash, release_us=5.0),
    )
    alone = api.plan(GRAPH)
    both = api.plan(GRAPH, jobs=(first, second), objective="lateness")
    assert both.plan_id != alone.plan_id
    assert [job.model_hash for job in both.plan.jobs] == [GRAPH.model_hash] * 2
    assert {step.job for step in both.plan.steps} == {0, 1}
    assert min(step.start_us for step in both.plan.steps if step.job == 1) >= 5.0
    assert both.plan.lateness_us == both.plan.jobs[0].finish_us - 500.0
    assert both.plan.makespan_us == max(job.finish_us for job in both.plan.jobs)
    assert api.plan(GRAPH, jobs=(second, first), objective="lateness").plan_id == both.plan_id  # the set has one plan
    assert {solve_one(api), solve_one(api)} == {alone.plan_id, both.plan_id}  # and it is improved like any other
    unknown = plan_request(GRAPH, jobs=(first, Job(model_hash="0" * 64)))
    assert "0" * 64 in problem(api.post("/plans", unknown), 404, "model-unknown").detail


def test_figures_that_do_not_add_up_are_no_fault(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was stored: a plan whose sums cannot be told is refused as one, and not answered with a 500."""
    api.learn(GRAPH)
    monkeypatch.setattr("planner_api.plans.make.plan", Mock(side_effect=OverflowError("too large")))
    answer = api.post("/plans", plan_request(GRAPH))
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:hope:unplannable")


def test_an_op_that_nobody_supports(api: Api) -> None:
    """A model with an op that is unsupported everywhere has no plan, and the problem names the op."""
    first = merge(GRAPH)[0].signature
    upload = api.learn(GRAPH, cost=lambda signature, kind: None if signature == first else 5.0)
    assert None in upload.latencies.us
    found = problem(api.post("/plans", plan_request(GRAPH)), 422, "unplannable")
    assert "t1" in found.detail


def test_a_plan_in_memory_is_asked_for_by_its_address_alone(api: Api) -> None:
    """A version that is named is not answered with whatever version is in memory."""
    api.learn(GRAPH)
    plan_id = api.plan(GRAPH).plan_id
    assert api.client.get(f"/plans/{plan_id}").status_code == 200
    assert api.client.get(f"/plans/{plan_id}?version=1").json()["version"] == 1
    problem(api.client.get(f"/plans/{plan_id}?version=2"), 404, "version-unknown")
    problem(api.post("/plans?fast", plan_request(GRAPH)), 422, "unknown-parameter")


def test_a_circle_of_places_without_a_way_home_is_unplannable(api: Api) -> None:
    """Where tensors can go round between two places and never reach the host, that is said, and nothing hangs."""
    assert api.post("/models", GRAPH).status_code == 201
    circle = tuple(each.model_copy(update={"place": f"ring{at}"}) for at, each in enumerate(PROCESSORS))
    ways = [("ring0", "ring1"), ("ring1", "ring0")]
    channels = tuple(Channel(source=one, target=other, fixed_us=1.0, us_per_byte=0.0) for one, other in ways)
    upload = measure(api.missing(GRAPH), processors=circle, channels=channels, transfers=TransferColumns())
    assert api.post("/profiles", upload).status_code == 202
    found = problem(api.post("/plans", plan_request(GRAPH)), 422, "unplannable")
    assert "cannot move between the host and op" in found.detail


def test_figures_folded_while_a_plan_is_asked_for_are_known(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what is read of a profile to queue its plan a fold may end; the plan rests on what it folded."""
    api.learn(GRAPH)
    folds = iter([api.app.planner.profiles.folded])

    def then_folded(read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def reading(*arguments: Any) -> Any:
            found = await read(*arguments)
            for fold in folds:
                await fold(SOC, FREQUENCY)
            return found

        return reading

    for name in ("head", "waits"):
        monkeypatch.setattr(profiles, name, then_folded(getattr(profiles, name)))
    assert api.plan(GRAPH).plan.makespan_us > 0
