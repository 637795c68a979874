"""The exported contract: written, compared with the app, and guarded against breaking changes.

``python -m planner_api.openapi --write FILE`` exports it; ``--check FILE`` fails when the app says something else.
"""

import argparse
import json
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

from planner_api.app import openapi_document
from planner_api.web.document import references


def breaking_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return why clients of the old contract would break under the new one.

    They rely on each operation and answer, on each field and its type, and on fields that are always sent; they send
    the parameters and fields that were required, and no others.
    """
    requests, answers = set(), set()
    for methods in old["paths"].values():
        for operation in methods.values():
            requests |= references(old, operation.get("requestBody", {}))
            answers |= references(old, operation["responses"])
    (promised, asked), (promises, asks) = (_terms(document, requests, answers) for document in (old, new))
    gone = [f"{what} {how}".strip() for what, how in sorted(promised - promises)]
    more = [f"{what} {how}" for what, how in sorted(asks - asked) if (what, "") in promised]
    return [f"no longer so: {term}" for term in gone] + [f"new: {term}" for term in more]


def _terms(
    document: dict[str, Any], requests: Container[str], answers: Container[str]
) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """What a contract promises and what it asks of clients: operations and schemas, each with something true of it."""
    promises, asks = set(), set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            what = f"{method.upper()} {path}"
            promises |= {(what, "")} | {(what, f"answers {code}") for code in operation["responses"] if code < "400"}
            needed = [one["name"] for one in operation.get("parameters", ()) if one.get("required")]
            asks |= {(what, f"needs the parameter {name}") for name in needed}
    for name, schema in document["components"]["schemas"].items():
        fields, required = schema.get("properties", {}), schema.get("required", ())
        promises |= {(name, "")} | {(name, f"has {field}: {kind.get('type')}") for field, kind in fields.items()}
        if name in answers:
            promises |= {(name, f"always has {field}") for field in required}
        if name in requests:
            asks |= {(name, f"needs {field}") for field in required}
    return promises, asks


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
