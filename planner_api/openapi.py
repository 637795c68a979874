"""The exported contract: written, compared with the app, and guarded against breaking changes.

``python -m planner_api.openapi --write FILE`` exports it; ``--check FILE`` fails when the app says something else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import hope_schema
from planner_api.http.contract import REF

DESCRIPTION = """Plans how a neural network runs across all processors of a device, for a whole fleet of devices.

Request bodies are JSON, optionally compressed (`Content-Encoding: zstd` or `gzip`). Errors are
`application/problem+json` (RFC 9457) with a stable `type` (`urn:hope:...`). Durations are microseconds, sizes bytes.
"""


def build(app: FastAPI, extra: tuple[type[BaseModel], ...] = ()) -> dict[str, Any]:
    """Return the OpenAPI document of the app's routes, with the schemas of the shared contract."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes, description=DESCRIPTION)
        document.setdefault("components", {})["schemas"] = _schemas(extra)
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        for operation in _operations(document):
            operation.pop("x-models", None)
            operation.setdefault("security", [{}, {"bearer": []}])
            responses = operation["responses"]
            _drop_defaults(responses)
            if "HTTPValidationError" in json.dumps(responses.get("422", {})):
                responses["422"] = {
                    "description": "Unprocessable Content",
                    "content": {"application/problem+json": {"schema": {"$ref": REF.format(model="ProblemDetails")}}},
                }
        _keep_used(document)
        app.openapi_schema = document
    return app.openapi_schema


def breaking_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return why clients of the old contract would break under the new one.

    Checked: operations and answers that vanished, request fields that became required or vanished, answer fields
    that vanished or are no longer required, and types that changed.
    """
    found: list[str] = []
    for path, methods in old["paths"].items():
        for method, operation in methods.items():
            where = f"{method.upper()} {path}"
            now = new["paths"].get(path, {}).get(method)
            if now is None:
                found.append(f"{where} vanished")
                continue
            found += [
                f"{where} no longer answers {status}"
                for status in operation["responses"]
                if status < "400" and status not in now["responses"]
            ]
            before = {(p["in"], p["name"]) for p in operation.get("parameters", ())}
            found += [
                f"{where} needs the new parameter {p['name']}"
                for p in now.get("parameters", ())
                if p.get("required") and (p["in"], p["name"]) not in before
            ]
    requests, answers = _directions(old)
    for name, schema in old["components"]["schemas"].items():
        now = new["components"]["schemas"].get(name)
        if now is None:
            found.append(f"schema {name} vanished")
            continue
        found += _schema_changes(name, schema, now, read=name in requests, written=name in answers)
    return found


def _schema_changes(
    name: str, old: dict[str, Any], new: dict[str, Any], *, read: bool, written: bool
) -> Iterator[str] | list[str]:
    found = []
    before, after = old.get("properties", {}), new.get("properties", {})
    for field, schema in before.items():
        if field not in after:
            found.append(f"{name}.{field} vanished")
        elif schema.get("type") != after[field].get("type"):
            found.append(f"{name}.{field} changed its type")
    required_before, required_after = set(old.get("required", ())), set(new.get("required", ()))
    if read:
        found += [f"{name}.{field} became required" for field in sorted(required_after - required_before)]
    if written:
        gone = sorted((required_before - required_after) & after.keys())
        found += [f"{name}.{field} is no longer always sent" for field in gone]
    return found


def _drop_defaults(responses: dict[str, Any]) -> None:
    """Take away the 200 that FastAPI adds to every route, or the JSON that it adds to a route's own."""
    found = responses.get("200", {})
    if found.get("description") == "Successful Response":
        del responses["200"]
    elif found.get("content", {}).get("application/json") == {"schema": {}}:
        del found["content"]["application/json"]
        if not found["content"]:
            del found["content"]


def _directions(document: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return the names of schemas that stand in requests, and in answers."""
    requests, answers = set(), set()
    for operation in _operations(document):
        requests |= _references(document, operation.get("requestBody", {}))
        answers |= _references(document, operation["responses"])
    return requests, answers


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in document["paths"].values():
        yield from methods.values()


def _references(document: dict[str, Any], node: Any) -> set[str]:
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


def _schemas(extra: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    models = [
        item
        for item in (getattr(hope_schema, name) for name in hope_schema.__all__)
        if isinstance(item, type) and issubclass(item, BaseModel)
    ]
    unique = list(dict.fromkeys([*models, *extra]))
    _, definitions = models_json_schema([(model, "validation") for model in unique], ref_template=REF)
    return dict(sorted(definitions["$defs"].items()))


def _keep_used(document: dict[str, Any]) -> None:
    used = _references(document, document["paths"])
    schemas = document["components"]["schemas"]
    document["components"]["schemas"] = {name: schema for name, schema in schemas.items() if name in used}


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Export or check; return the exit status."""
    from planner_api.app import openapi_document

    parser = argparse.ArgumentParser(prog="python -m planner_api.openapi", description=(__doc__ or "").split("\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="FILE", help="export the contract")
    action.add_argument("--check", type=Path, metavar="FILE", help="fail when FILE and the app differ")
    parser.add_argument("--allow-breaking", action="store_true", help="write even what breaks clients of FILE")
    options = parser.parse_args(arguments)
    document = openapi_document()
    path: Path = options.write or options.check
    try:
        committed = json.loads(path.read_text("utf-8")) if path.exists() else None
    except (OSError, ValueError) as error:
        print(f"{path} cannot be read as JSON: {error}", file=sys.stderr)
        return 2
    broken = breaking_changes(committed, document) if committed else []
    for change in broken:
        print(f"breaking change: {change}", file=sys.stderr)
    if options.check:
        if committed is None or _text(committed) != _text(document):
            print(f"{path} and the app differ; run `make openapi` and commit it", file=sys.stderr)
            return 1
        return 0
    if broken and not options.allow_breaking:
        print("not written; --allow-breaking writes it all the same", file=sys.stderr)
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(document), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
