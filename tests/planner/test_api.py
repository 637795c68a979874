"""The planner over HTTP on both databases: models, profiles, plans, and what each of them refuses."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import zstandard
from sqlalchemy import update

from hope_schema import (
    Cause,
    Channel,
    Job,
    ModelGraph,
    PlanReply,
    ProblemDetails,
    TransferColumns,
    UploadReceipt,
    merge,
)
from planner_api.db.tables import ModelRow
from tests.planner.samples import (
    FREQUENCY,
    JSON,
    PROCESSORS,
    SOC,
    Api,
    chain,
    measure,
    missing_request,
    plan_request,
    serving,
)

GRAPH = chain()


@pytest.fixture
def api(database_url: str) -> Iterator[Api]:
    """The application on a fresh database of each kind; plans are found at once and queued, nobody improves them."""
    with serving(database_url) as running:
        yield running


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def idle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One application for all tests that only send what is refused: it has nothing to forget between them."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('idle')}/hope.sqlite"
    else:
        postgres = request.getfixturevalue("postgres")
        url = postgres.create("idle", template=request.getfixturevalue("postgres_template"))
    with serving(url) as running:
        yield running
    if request.param == "postgresql":
        postgres.drop("idle")


@pytest.fixture
def embedded(sqlite_url: str) -> Iterator[Api]:
    """The application as an agent embeds it: plans are solved in the call."""
    with serving(sqlite_url, embedded=True, solve_budget_s=0.2) as running:
        yield running


def problem(response: Any, status: int, kind: str) -> ProblemDetails:
    """Assert that an answer is the problem it should be, and return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found = ProblemDetails.model_validate_json(response.content)
    assert found.type == f"urn:hope:{kind}"
    assert found.status == status
    assert found.request_id == response.headers["x-request-id"]
    return found


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
    """A copy with the newest ETag is confirmed by 304 in whatever coding it came; another one is replaced."""
    api.learn(GRAPH)
    plan_id = api.plan(GRAPH).plan_id
    for coding in ("zstd", "gzip", "identity"):
        full = api.client.get(f"/plans/{plan_id}", headers={"accept-encoding": coding})
        assert full.headers.get("content-encoding", "identity") == coding
        assert PlanReply.model_validate_json(full.content).plan_id == plan_id
        for other in ("zstd", "gzip", "identity"):
            headers = {"accept-encoding": other, "if-none-match": full.headers["etag"]}
            unchanged = api.client.get(f"/plans/{plan_id}", headers=headers)
            assert (unchanged.status_code, unchanged.content) == (304, b"")
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
    """Two networks share a plan under a key of its own: released, due, and each done when the plan says."""
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
    unknown = plan_request(GRAPH, jobs=(first, Job(model_hash="0" * 64)))
    assert "0" * 64 in problem(api.post("/plans", unknown), 404, "model-unknown").detail


def test_figures_that_do_not_add_up_are_no_fault(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was stored: a plan whose sums cannot be told is refused as one, and not answered with a 500."""
    api.learn(GRAPH)
    monkeypatch.setattr("planner_api.solving.child.solve", Mock(side_effect=OverflowError("too large")))
    answer = api.post("/plans", plan_request(GRAPH))
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:hope:unplannable")


def test_an_op_that_nobody_supports(api: Api) -> None:
    """A model with an op that is unsupported everywhere has no plan, and the problem names the op."""
    first = merge(GRAPH)[0].signature
    upload = api.learn(GRAPH, cost=lambda signature, kind: None if signature == first else 5.0)
    assert None in upload.latencies.us
    found = problem(api.post("/plans", plan_request(GRAPH)), 422, "unplannable")
    assert "t1" in found.detail


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"", 400, "malformed-json"),
        (b"{", 400, "malformed-json"),
        (b"NaN", 400, "malformed-json"),
        (b"[]", 422, "invalid"),
        (b"null", 422, "invalid"),
        (b'{"model_hash": 1}', 422, "invalid"),
        (b"\xff\xfe", 400, "malformed-json"),
        (b"[" * 100_000, 422, "invalid"),
        (b'{"a": ' * 20_000, 422, "invalid"),
    ],
)
@pytest.mark.parametrize("path", ["/models", "/profiles", "/profiles/missing", "/plans"])
def test_bodies_that_are_no_message(idle: Api, path: str, body: bytes, status: int, kind: str) -> None:
    """Every route refuses what is not JSON with 400 and what is not its message with 422, whichever is met first."""
    problem(idle.post(path, body), status, kind)


def broken_graphs() -> dict[str, dict[str, object]]:
    """Graphs that are valid JSON and no dataflow graph."""
    good = GRAPH.model_dump(mode="json")
    cyclic = json.loads(json.dumps(good))
    cyclic["ops"][0]["inputs"] = ["t4"]
    twice = json.loads(json.dumps(good))
    twice["ops"].append(twice["ops"][0])
    return {
        "cycle": cyclic,
        "produced twice": twice,
        "no outputs": {**good, "outputs": []},
        "no ops": {**good, "ops": []},
        "undeclared": {**good, "tensors": good["tensors"][:-1]},
        "dynamic shape": {**good, "tensors": [{**tensor, "shape": ["N", 3]} for tensor in good["tensors"]]},
        "negative shape": {**good, "tensors": [{**tensor, "shape": [-1, 3]} for tensor in good["tensors"]]},
        "extra field": {**good, "weights": [1, 2, 3]},
    }


@pytest.mark.parametrize("what", list(broken_graphs()))
def test_broken_graphs(idle: Api, what: str) -> None:
    """A graph that is none is refused with one clear message."""
    found = problem(idle.post("/models", json.dumps(broken_graphs()[what]).encode()), 422, "invalid")
    assert found.errors
    assert "Traceback" not in found.detail


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda upload: upload["latencies"]["us"].__setitem__(0, -1.0), "latencies.us"),
        (lambda upload: upload["latencies"]["us"].__setitem__(0, 1e400), "latencies.us"),
        (lambda upload: upload["latencies"]["us"].__setitem__(0, float("nan")), "latencies.us"),
        (lambda upload: upload["latencies"]["us"].__setitem__(0, "5"), "latencies.us"),
        (lambda upload: upload["latencies"]["us"].pop(), "length"),
        (lambda upload: upload["latencies"]["kind"].__setitem__(0, "npu-1/1xnone"), "npu-1/1xnone"),
        (lambda upload: upload.__setitem__("processors", upload["processors"][:1]), "no listed processor"),
        (lambda upload: upload.__setitem__("soc", "a b/../c"), "soc"),
        (lambda upload: upload.__setitem__("upload_id", ""), "upload_id"),
    ],
)
def test_broken_uploads_change_nothing(api: Api, change: Callable[[Any], Any], where: str) -> None:
    """NaN, negative, misshapen or foreign figures are refused, and the profile stays as it was."""
    good = api.learn(GRAPH)
    before = api.missing(GRAPH).profile_version
    bad = json.loads(good.model_dump_json())
    bad["upload_id"] = "bad"
    change(bad)
    response = api.post("/profiles", json.dumps(bad).encode())
    found = problem(response, response.status_code, "invalid" if response.status_code == 422 else "malformed-json")
    assert where in found.detail or response.status_code == 400
    after = api.missing(GRAPH)
    assert (after.profile_version, after.latencies) == (before, ())


def test_compressed_bodies(api: Api) -> None:
    """Gzip and zstd bodies are read; damaged, truncated and unknown ones are refused."""
    text = GRAPH.model_dump_json().encode()
    packed = {"gzip": gzip.compress(text), "zstd": zstandard.compress(text), "identity": text}
    for encoding, body in packed.items():
        assert api.post("/models", body, **{"content-encoding": encoding}).status_code in (200, 201)
    for encoding in ("gzip", "zstd"):
        for body in (packed[encoding][:-5], b"nonsense", b"", packed[encoding] + b"tail"):
            response = api.post("/models", body, **{"content-encoding": encoding})
            assert response.status_code == 400, (encoding, body[:10], response.text)
    problem(api.post("/models", text, **{"content-encoding": "br"}), 415, "unsupported-encoding")
    response = api.client.post("/models", content=text, headers={"content-type": "text/xml"})
    problem(response, 415, "unsupported-media-type")


def test_limits_on_bodies(database_url: str) -> None:
    """A body beyond the limit is refused as it is sent, and a smaller one that inflates beyond it too."""
    with serving(database_url, max_body_bytes=20_000, max_inflated_bytes=50_000) as api:
        problem(api.post("/models", b" " * 20_001), 413, "body-too-large")
        for pack, encoding in ((gzip.compress, "gzip"), (zstandard.compress, "zstd")):
            body = pack(b" " * 60_000)
            problem(api.post("/models", body, **{"content-encoding": encoding}), 413, "body-too-large")


BOMB = """
import resource, sys, zstandard, gzip
from planner_api.http.body import Body, inflate
from planner_api.http.error import HttpError
bomb = {"zstd": zstandard.compress, "gzip": gzip.compress}[sys.argv[1]](bytes(256 << 20))
import os
pid = os.fork()
if pid == 0:
    before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
    open("/proc/self/clear_refs", "w").write("5")
    try:
        inflate(Body(bomb, sys.argv[1]), limit=16 << 20)
    except HttpError as error:
        peak = int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
        print(error.status, len(bomb), peak - before)
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_a_bomb_is_refused_in_little_memory(encoding: str) -> None:
    """256 MiB of zeros in a few kilobytes are refused with 413 within 32 MiB of extra memory."""
    done = subprocess.run([sys.executable, "-c", BOMB, encoding], capture_output=True, text=True, check=True)
    status, size, extra = map(int, done.stdout.split())
    assert status == 413
    assert size < 512 * 1024
    assert extra < 32 << 20


def test_every_answer_carries_a_request_id(idle: Api) -> None:
    """A harmless id is echoed; without one, or with a hostile one, an id is made up."""
    assert idle.client.get("/nowhere", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    hostile = idle.client.get("/nowhere", headers={"x-request-id": "a b<script>"})
    assert hostile.headers["x-request-id"] not in ("", "a b<script>")
    ids = {idle.client.get("/nowhere").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    problem(idle.client.get("/nowhere"), 404, "not-found")
    problem(idle.client.delete("/plans"), 405, "method-not-allowed")


@pytest.mark.parametrize(
    "address",
    ["/plans/p-1?fast=1", "/fleet/plans?model=x", "/fleet?x", "/healthz?a=1&b=2", "/devices?SOC=soc-1"],
)
def test_a_parameter_that_nobody_knows_is_not_ignored(idle: Api, address: str) -> None:
    """What would be left out of a question is refused, whether or not the address is there."""
    problem(idle.client.get(address), 422, "unknown-parameter")


def test_a_plan_in_memory_is_asked_for_by_its_address_alone(api: Api) -> None:
    """A version that is named is not answered with whatever version is in memory."""
    api.learn(GRAPH)
    plan_id = api.plan(GRAPH).plan_id
    assert api.client.get(f"/plans/{plan_id}").status_code == 200
    assert api.client.get(f"/plans/{plan_id}?version=1").json()["version"] == 1
    problem(api.client.get(f"/plans/{plan_id}?version=2"), 404, "version-unknown")
    problem(api.post("/plans?fast", plan_request(GRAPH)), 422, "unknown-parameter")


@pytest.mark.parametrize("path", ["/models", "/plans", "/healthz", "/fleet/plans", "/devices/x/report", "/plans/p-1"])
def test_a_line_break_behind_an_address_makes_it_another(idle: Api, path: str) -> None:
    """No route answers its address with a line break behind it."""
    for method in ("GET", "POST", "PUT"):
        answer = idle.client.request(method, f"{path}%0A", content=b"{}", headers=JSON)
        problem(answer, 404, "not-found")


def test_agents_of_the_first_schema_are_told_what_to_upgrade(idle: Api) -> None:
    """What an agent of schema version 1 sends is refused with one sentence that says so."""
    key = {"model_hash": "a" * 64, "soc": SOC, "frequency": FREQUENCY, "method": "auto", "transfer_mode": "blocking"}
    processor = {"id": "p", "runtime": "r", "version": "1", "threads": 1, "core_class": "big", "resources": ["cpu0"]}
    move = {"tensor": [{"dtype": "bool", "shape": []}], "source": ["host"], "target": ["r-1/1xbig"]}
    upload = {
        "soc": SOC, "frequency": FREQUENCY, "device_id": "d", "upload_id": "u", "processors": [processor],
        "transfers": {**move, "us": [1.0], "spread_us": [0.0], "count": [1]},
    }  # fmt: skip
    for path, body in (
        ("/plans", key),
        ("/plans", {**key, "objective": "latency", "processors": ["p"]}),
        ("/profiles", upload),
    ):
        answer = idle.post(path, json.dumps(body).encode())
        problem(answer, 422, "invalid")
        assert "schema version 1; upgrade hope-agent to the planner's version" in answer.json()["detail"].replace(
            "of schema", "schema"
        )


def test_a_machine_that_cannot_be_is_refused_in_one_sentence(api: Api) -> None:
    """Shares beyond a processor's whole, channels to nowhere, modes of what is no op here, too many jobs and impossible
    ones: one clear 422 each.
    """
    good = json.loads(api.learn(GRAPH).model_dump_json()) | {"upload_id": "bad"}
    rows, way = good["latencies"], {"source": "host", "target": "nowhere"}
    job = {"model_hash": GRAPH.model_hash}
    key = {"soc": SOC, "frequency": FREQUENCY}
    late = job | {"release_us": 2.0, "deadline_us": 1.0}
    for path, body, words in (
        *(("/profiles", good | {"latencies": rows | {"share": [share] * len(rows["us"])}}, "share")
          for share in (0.0, -0.5, 1.5)),
        ("/profiles", good | {"channels": [way]}, "place 'nowhere', which no listed processor computes in"),
        ("/profiles", good | {"channels": [way | {"target": "host"}]}, "a channel from 'host' to itself"),
        ("/profiles", good | {"latencies": rows | {"signature": [""] * len(rows["us"])}}, "latencies.signature"),
        ("/plans", key | {"jobs": [job | {"cuts": [{"op": "nowhere", "axis": 1, "at": [1]}]}]}, "cuts"),
        ("/plans", key | {"jobs": [job] * 65}, "jobs"),
        ("/plans", key | {"jobs": [late]}, "deadline_us lies before release_us"),
    ):  # fmt: skip
        assert words in problem(api.post(path, json.dumps(body).encode()), 422, "invalid").detail


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


def test_no_cross_origin_access(idle: Api) -> None:
    """A browser on another site gets no permission to read answers."""
    response = idle.client.get("/openapi.json", headers={"origin": "https://elsewhere.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_embedded_solves_in_the_call(embedded: Api) -> None:
    """An embedded planner answers with the final plan, and from what it stored the next time."""
    embedded.learn(GRAPH)
    first = embedded.post("/plans", plan_request(GRAPH))
    reply = PlanReply.model_validate_json(first.content)
    assert not reply.provisional
    assert first.headers["hope-plan-cache"] == "miss"
    second = embedded.post("/plans", plan_request(GRAPH))
    assert second.headers["hope-plan-cache"] == "hit"
    assert second.content == first.content


def test_embedded_plans_again_when_figures_moved(embedded: Api) -> None:
    """A plan holds while figures move a little, and is made anew, under the same id, when they move much."""
    embedded.learn(GRAPH)
    first = embedded.plan(GRAPH)
    everything = embedded.learn(chain(4, "other"))  # nothing is missing: an upload without rows
    assert everything.latencies.us == ()
    embedded.post("/models", chain(6))
    missing = embedded.missing(chain(6))
    assert len(missing.latencies) == 4
    embedded.post("/profiles", measure(missing))
    assert embedded.plan(GRAPH).version == first.version, "figures of other ops change nothing"
    upload = json.loads(measure(missing).model_dump_json())
    upload["latencies"] = {
        "signature": [op.signature for op in merge(GRAPH)],
        "kind": [PROCESSORS[0].kind] * 4,
        "us": [100.0] * 4,
        "spread_us": [0.0] * 4,
        "count": [5] * 4,
    }
    embedded.post("/profiles", json.dumps(upload).encode())
    second = embedded.plan(GRAPH)
    assert second.plan_id == first.plan_id
    assert second.version == first.version + 1
    assert second.plan.makespan_us > first.plan.makespan_us
    assert embedded.client.get(f"/plans/{first.plan_id}").json()["version"] == second.version


def test_a_known_model_loads_no_solver(sqlite_url: str) -> None:
    """Answering for a known model in a new process imports neither numba nor HiGHS nor NumPy."""
    with serving(sqlite_url, embedded=True, solve_budget_s=0.1) as api:
        api.learn(GRAPH)
        api.plan(GRAPH)
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.planner.samples import chain, serving
with serving({sqlite_url!r}, embedded=True) as api:
    graph = chain()
    assert api.missing(graph).latencies == ()
    api.plan(graph)
print(sorted(set(sys.modules) & {{"numba", "highspy", "numpy", "psycopg", "alembic"}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
