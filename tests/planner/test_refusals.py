"""What the planner refuses over HTTP, on both databases where one is asked, and in which words."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zstandard

from tests.planner.samples import (
    FREQUENCY,
    JSON,
    SOC,
    Api,
    chain,
    problem,
    serving,
)

pytestmark = pytest.mark.above_databases

GRAPH = chain()


@pytest.fixture(scope="module")
def idle(shared_url: str) -> Iterator[Api]:
    """One application for all tests that only send what is refused: it has nothing to forget between them."""
    with serving(shared_url) as running:
        yield running


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
from planner_api.web.errors import HttpError
from planner_api.web.inflate import Body, inflate
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


@pytest.mark.parametrize(
    "address", ["/fleet/plans?soc=a&soc=b", "/devices?limit=1&limit=1", "/console/plans?soc=&soc=b"]
)
def test_a_parameter_that_stands_twice_is_not_ignored_once(idle: Api, address: str) -> None:
    """Which of the two was meant is the sender's to say."""
    answer = idle.client.get(address)
    assert answer.status_code == 422
    assert "stands twice" in answer.text


@pytest.mark.parametrize("path", ["/models", "/plans", "/healthz", "/fleet/plans", "/devices/x/report"])
def test_a_line_break_behind_an_address_makes_it_another(idle: Api, path: str) -> None:
    """No route answers its address with a line break behind it."""
    for method in ("GET", "POST", "PUT"):
        answer = idle.client.request(method, f"{path}%0A", content=b"{}", headers=JSON)
        problem(answer, 404, "not-found")
    problem(idle.client.get("/plans/p-1%0A"), 422, "invalid")


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


def test_no_cross_origin_access(idle: Api) -> None:
    """A browser on another site gets no permission to read answers."""
    response = idle.client.get("/openapi.json", headers={"origin": "https://elsewhere.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
