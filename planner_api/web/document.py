"""The OpenAPI document of an app: its routes, and the schemas of the shared contract that they use."""

import tomllib
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import JSONResponse, Response
from starlette.routing import Router

import hope_schema
from hope_schema.version import VERSION
from planner_api.web.asgi import GIVEN_ID, MAX_REQUEST_ID
from planner_api.web.contract import REF, header, problems
from planner_api.web.route import Request, StrictRoute

ALWAYS = (400, 401, 403, 422, 429, 500, 503)
"""What any route may answer: no request of HTTP, no or a wrong token, not allowed, a parameter that it does not know,
too many requests, our fault, the database is away."""
WITH_BODY = (408, 413, 415)
"""What any route that reads a body may answer too."""
REQUEST_ID = header(
    "X-Request-ID",
    "Kept in the logs and sent back, in errors too; one is made up when it is missing.",
    MAX_REQUEST_ID,
    pattern=f"^{GIVEN_ID.pattern.decode()}$",
)
WORDS = Path(__file__).parent / "properties.toml"
"""What each property of the contract means, with an example."""
DESCRIPTION = """Plans how a neural network runs across all processors of a device, for a whole fleet of devices.

Request bodies are JSON, optionally compressed (`Content-Encoding: zstd` or `gzip`). Errors are
`application/problem+json` (RFC 9457) with a stable `type` (`urn:hope:...`). Durations are microseconds, sizes bytes.
"""


router = APIRouter(route_class=StrictRoute)


@router.get("/openapi.json", include_in_schema=False)
async def read_contract(request: Request) -> Response:
    state = request.app.state
    if not hasattr(state, "contract"):
        state.contract = build(request.scope["router"])
    return JSONResponse(state.contract)


def build(routes: Router) -> dict[str, Any]:
    document = get_openapi(title="HOPE planner", version=VERSION, routes=routes.routes, description=DESCRIPTION)
    schemas = _schemas()
    document["components"] = {
        "schemas": schemas,
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
    }
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _complete(operation, (404,) if "{" in path else ())
    used = references(document, document["paths"])
    document["components"]["schemas"] = {name: one for name, one in schemas.items() if name in used}
    _explain(document["components"]["schemas"])
    return document


def references(document: dict[str, Any], node: Any) -> set[str]:
    """Return the names of all schemas a node refers to, directly or through other schemas."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            waiting.extend(item.values())
            name = str(item.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                waiting.append(document["components"]["schemas"].get(name, {}))
    return found


def _complete(operation: dict[str, Any], more: tuple[int, ...]) -> None:
    """Say what is so of every route: its id in and out, the errors that any may answer; it has no JSON of no model.

    ``more`` are errors of those whose path names something, which may not be there.
    """
    operation.setdefault("security", [{}, {"bearer": []}])
    operation.setdefault("parameters", []).append(REQUEST_ID)
    responses = operation["responses"]
    for response in responses.values():
        if response.get("content", {}).get("application/json") == {"schema": {}}:
            del response["content"]
    for status, response in responses.items():
        if int(status) < 400:
            response.setdefault("headers", {})["X-Request-ID"] = {
                "description": "The id of this request.",
                "schema": {"type": "string"},
            }
    errors = problems(*ALWAYS, *more, *(WITH_BODY if "requestBody" in operation else ()))
    responses |= {str(status): error for status, error in errors.items()}


def _schemas() -> dict[str, Any]:
    models = [word for word in vars(hope_schema).values() if isinstance(word, type) and issubclass(word, BaseModel)]
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    return dict(sorted(definitions["$defs"].items()))


def _explain(schemas: dict[str, Any]) -> None:
    """Say of every property what it means, and give an example; see ``properties.toml``."""
    words = tomllib.loads(WORDS.read_text("utf-8"))
    said = {
        (name, field): words.get(f"{name}.{field}", words.get(field, []))
        for name, schema in schemas.items()
        for field in schema.get("properties", ())
    }

    def example(name: str, field: str, schema: Any) -> Any:
        given = said[name, field]
        return given[1] if len(given) > 1 else built(schema)

    def built(node: Any) -> Any:
        if "anyOf" in node:
            return built(node["anyOf"][0])
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            found = schemas[name]
            if "enum" in found:
                return found["enum"][0]
            return {field: example(name, field, found["properties"][field]) for field in found.get("required", ())}
        return [built(node["items"])] if "items" in node else node.get("const", node.get("enum", [None])[0])

    for (name, field), given in said.items():
        schema = schemas[name]["properties"][field]
        if given:
            schema |= {"description": given[0], "examples": [example(name, field, schema)]}
