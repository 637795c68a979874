"""The exported contract: the app says what is committed, says no less than before, and does what it says."""

from __future__ import annotations

import copy
import json
import re
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case, GenerationMode

from hope_schema import Missing
from hope_schema.base import LABEL
from planner_api import openapi
from planner_api.app import create_app, openapi_document
from planner_api.settings import Settings
from planner_api.web.asgi import GIVEN_ID, MAX_REQUEST_ID
from planner_api.web.document import WORDS
from tests import CAMPAIGN
from tests.planner.in_thread import InThread, forget_all
from tests.planner.samples import FREQUENCY, JSON, PROCESSORS, SOC, chain, measure, missing_request, plan_request

EXPORTED = Path(__file__).parents[2] / "openapi" / "openapi.json"
DOCUMENT = openapi_document()
GRAPH = chain()


def test_the_committed_contract_is_the_app_s() -> None:
    """``openapi/openapi.json`` is what the app says; `make openapi` exports an intended change."""
    assert openapi.main(["--check", str(EXPORTED)]) == 0


def test_a_difference_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check fails on a file that differs, is missing or is no JSON, and writing mends it."""
    path = tmp_path / "openapi.json"
    assert openapi.main(["--check", str(path)]) == 1
    path.write_text("{")
    assert openapi.main(["--check", str(path)]) == 2
    path.unlink()
    assert openapi.main(["--write", str(path)]) == 0
    assert openapi.main(["--check", str(path)]) == 0
    document = json.loads(path.read_text())
    document["info"]["description"] = "another"
    path.write_text(json.dumps(document))
    assert openapi.main(["--check", str(path)]) == 1
    assert "differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("breakage", "message"),
    [
        (lambda d: d["paths"].pop("/plans"), "no longer so: POST /plans"),
        (
            lambda d: d["paths"]["/plans/{plan_id}"]["get"]["responses"].pop("304"),
            "no longer so: GET /plans/{plan_id} answers 304",
        ),
        (lambda d: d["components"]["schemas"].pop("Step"), "no longer so: Step"),
        (lambda d: d["components"]["schemas"]["Plan"]["properties"].pop("gap"), "no longer so: Plan has gap: number"),
        (
            lambda d: d["components"]["schemas"]["PlanRequest"]["required"].append("method"),
            "new: PlanRequest needs method",
        ),
        (
            lambda d: d["components"]["schemas"]["PlanReply"]["required"].remove("plan"),
            "no longer so: PlanReply always has plan",
        ),
        (
            lambda d: d["components"]["schemas"]["Step"]["properties"]["id"].update(type="string"),
            "no longer so: Step has id: integer",
        ),
    ],
)
def test_breaking_changes_are_named(breakage: Any, message: str) -> None:
    """A change that breaks clients of the old contract is found and named; the same contract breaks nobody."""
    changed = copy.deepcopy(DOCUMENT)
    breakage(changed)
    assert any(message in change for change in openapi.breaking_changes(DOCUMENT, changed))
    assert openapi.breaking_changes(DOCUMENT, copy.deepcopy(DOCUMENT)) == []


def test_additions_break_nobody() -> None:
    """New routes, new optional request fields and new answer fields are no breaking changes."""
    changed = copy.deepcopy(DOCUMENT)
    changed["paths"]["/new"] = changed["paths"]["/plans"]
    changed["components"]["schemas"]["PlanRequest"]["properties"]["more"] = {"type": "string"}
    changed["components"]["schemas"]["PlanReply"]["properties"]["more"] = {"type": "string"}
    assert openapi.breaking_changes(DOCUMENT, changed) == []


def test_every_route_documents_its_problems() -> None:
    """Each operation documents the errors that any route may answer, as problem+json."""
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            for status in ("401", "403", "429", "500", "503"):
                assert "application/problem+json" in operation["responses"][status]["content"]


def test_every_property_says_what_it_means() -> None:
    """Each has a description and an example that its schema takes, and no line of the table is about none."""
    schemas = DOCUMENT["components"]["schemas"]
    words = tomllib.loads(WORDS.read_text())
    for name, schema in schemas.items():
        for field, about in schema.get("properties", {}).items():
            assert about.get("description"), f"{name}.{field}: say in web/properties.toml what it means"
            (example,) = about["examples"]
            takes = jsonschema_rs.validator_for({**about, "components": {"schemas": schemas}})
            assert takes.is_valid(example), f"{name}.{field} does not take {example}"
    known = {name for schema in schemas.values() for name in schema.get("properties", ())}
    known |= {f"{name}.{field}" for name, schema in schemas.items() for field in schema.get("properties", ())}
    assert set(words) <= known


VERBS = (
    "add|approve|begin|check|compare|create|describe|drop|enrol|establish|forget|label|list|pause|plan|point|prove|"
    "read|request|resolve|resume|revoke|roll|set|store|submit|upload|verify"
)


def test_operations_are_called_by_what_they_do() -> None:
    """Ids are a verb and what it is done to, and no two are the same: generated clients name their functions so."""
    ids = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)
    assert [name for name in ids if not re.fullmatch(f"({VERBS})(_[a-z]+)+", name)] == []


def test_patterns_of_names_stand_in_the_contract() -> None:
    """What a map of versions and a request's id may hold is said there, and is what the planner takes."""
    maps = [
        properties["versions"]
        for schema in DOCUMENT["components"]["schemas"].values()
        if "patternProperties" in (properties := schema.get("properties", {})).get("versions", {})
    ]
    assert len(maps) == 3
    for versions in maps:
        assert versions["additionalProperties"] is False
        ((name, value),) = versions["patternProperties"].items()
        assert name == value["pattern"] == LABEL
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            (given,) = [each for each in operation["parameters"] if each["name"] == "X-Request-ID"]
            pattern = re.compile(given["schema"]["pattern"])
            for text in ("mine-1", "a b", "", "x" * MAX_REQUEST_ID, "x" * (MAX_REQUEST_ID + 1), "é", "a\n"):
                taken = GIVEN_ID.fullmatch(text.encode()) is not None
                assert taken == (pattern.search(text) is not None and "\n" not in text)


@pytest.fixture(scope="module")
def address(shared_url: str) -> Iterator[str]:
    """A planner that serves on loopback, on a database of each kind, with something of everything in it."""
    app = create_app(
        Settings(
            database_url=shared_url,
            worker_in_process=True,
            solve_budget_s=0.05,
            rate_per_token=0,
            rate_per_address=0,
            log_level="error",
        )
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on", http="httptools"))
    thread = threading.Thread(target=server.run)
    forget_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner_api.runtime.JobProcess", InThread)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            base = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            fill(base)
            yield base
        finally:
            server.should_exit = True
            thread.join()


def fill(base: str) -> None:
    """Put something of everything into a planner, and note in ``PLACES`` what it is called."""
    with httpx.Client(base_url=base, headers=JSON, timeout=60) as client:
        client.post("/models", content=GRAPH.model_dump_json())
        missing = client.post("/profiles/missing", content=missing_request(GRAPH).model_dump_json())
        upload = measure(Missing.model_validate_json(missing.content))
        client.post("/profiles", content=upload.model_dump_json())
        plan = client.post("/plans", content=plan_request(GRAPH).model_dump_json())
        assert plan.status_code == 200
        PLACES.update(plan_id=plan.json()["plan_id"], device_id="device-1", soc=SOC, frequency=FREQUENCY)
        PLACES.update(model_hash=GRAPH.model_hash, name="net", alias="live", version=1, reference="net:1")
        report = {"soc": SOC, "frequency": FREQUENCY}
        for method, path, body in (
            ("PUT", "/devices/device-1/report", report),
            ("POST", "/names/net/versions", {"model_hash": GRAPH.model_hash}),
            ("POST", "/names/net/versions", {"model_hash": GRAPH.model_hash}),
            ("PUT", "/names/net/aliases/live", {"version": 1}),
            ("PUT", "/groups/net", {}),
        ):
            assert client.request(method, path, json=body).is_success, path
        release = client.post("/releases", json={"model": "net:2", "alias": "live", "stages": [0.5, 1.0]})
        fanout = client.post(f"/models/{GRAPH.model_hash}/plans", json={})
        PLACES.update(release_id=release.json()["release_id"], fanout_id=fanout.json()["fanout_id"], number=1)


KNOWN: dict[str, Any] = {
    "model_hash": GRAPH.model_hash,
    "soc": SOC,
    "frequency": FREQUENCY,
    "processors": [processor.model_dump(mode="json") for processor in PROCESSORS],
}


PLACES: dict[str, Any] = {}
"""What the planner has, by the names of the parameters of paths."""


def aim(case: Case) -> None:
    """Turn every other well-formed key into one that the planner knows, so that more than 404 is reached."""
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("jobs"), list) and len(str(body)) % 2:
        body.update({"jobs": [{"model_hash": GRAPH.model_hash}], "soc": SOC, "frequency": FREQUENCY})
    if isinstance(body, dict) and isinstance(body.get("model_hash"), str) and len(str(body)) % 2:
        body.update({name: value for name, value in KNOWN.items() if name in body and name != "processors"})
        if isinstance(body.get("processors"), list) and "device_id" in body:
            body["processors"] = KNOWN["processors"]
    if case.path_parameters and len(str((body, case.query))) % 2:
        case.path_parameters.update({name: PLACES[name] for name in case.path_parameters})


schema = schemathesis.openapi.from_dict(DOCUMENT)
schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
# The limits of every schema, one by one, are written out while tests are collected, by every worker: 3 400 cases.
schema.config.phases.coverage.enabled = CAMPAIGN
CHECKS = [
    schemathesis.checks.load_all_checks() or schemathesis.checks.not_a_server_error,
    *(
        getattr(schemathesis.specs.openapi.checks, name)
        for name in (
            "status_code_conformance",
            "content_type_conformance",
            "response_headers_conformance",
            "response_schema_conformance",
        )
    ),
]


@schema.parametrize()
@settings(
    max_examples=300 if CAMPAIGN else 2,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=not CAMPAIGN,
)
def test_no_undocumented_answer(case: Case, address: str) -> None:
    """Whatever is sent, the answer is documented, matches its schema, and is never a 5xx."""
    aim(case)
    response = case.call(base_url=address, timeout=60)
    case.validate_response(response, checks=CHECKS)


ADDRESSED = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods if "{" in path]


@pytest.mark.parametrize(("path", "method"), ADDRESSED)
def test_a_line_break_in_an_address_has_a_documented_answer(path: str, method: str, address: str) -> None:
    """Some routes end at a line break: what is then answered stands in the contract too."""
    names = {part.strip("{}"): "\n>" for part in path.split("/") if part.startswith("{")}
    case = schema[path][method.upper()].Case(path_parameters=names, media_type="application/json")
    case.validate_response(case.call(base_url=address, timeout=60), checks=CHECKS)
