"""The exported contract: written, compared with the app, and guarded against breaking changes.

``python -m planner_api.openapi --write FILE`` exports it; ``--check FILE`` fails when the app says something else.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from planner_api.app import openapi_document
from planner_api.web.document import operations, references


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


def _schema_changes(name: str, old: dict[str, Any], new: dict[str, Any], *, read: bool, written: bool) -> list[str]:
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


def _directions(document: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return the names of schemas that stand in requests, and in answers."""
    requests, answers = set(), set()
    for operation in operations(document):
        requests |= references(document, operation.get("requestBody", {}))
        answers |= references(document, operation["responses"])
    return requests, answers


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
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
