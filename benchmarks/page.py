"""One page of all that was measured, ``docs/figures.md``, and the README's chart, of ``benchmarks/results/*.json``.

    python -m benchmarks.page            write both
    python -m benchmarks.page --check    fail when they say something else than the files

A file names its ``machine``, ``date`` and ``commit`` (in ``notes``, what else was special), and has ``rows``: each a
``measure`` with its ``value`` (a number, a text, or several by name), the limit it ``must`` keep and whether that is
``ok``; rows of several databases name theirs. Its ``tables``, if any, each with a ``title``, ``columns`` and ``rows``,
follow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import cli
from benchmarks.chart import chart
from benchmarks.results import ROOT, words

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "figures.md"
CHART = ROOT / "docs" / "images" / "gains.svg"
HEAD = """# Figures

Made by `python -m benchmarks.page` of `benchmarks/results/*.json`; change those by running the benchmarks. Only ratios
within one run mean anything on a machine that others use too.
"""


class BadResultError(Exception):
    """A file of results that does not say what it must."""


def page(folder: Path = RESULTS) -> str:
    """Return the page.

    Raises:
        BadResultError: a file without its circumstances or rows.
    """
    return "\n".join([HEAD, *(_section(path) for path in sorted(folder.glob("*.json")))])


def _section(path: Path) -> str:
    content = json.loads(path.read_text())
    missing = [name for name in ("machine", "date", "commit", "rows") if not content.get(name)]
    if missing:
        raise BadResultError(f"{path.name} does not name its {missing[0]}")
    rows, notes = content["rows"], content.get("notes", ())
    columns = ["measure", *(["database"] if any("database" in row for row in rows) else []), "value", "must", "holds"]
    lines = [
        f"## `benchmarks.{path.stem}`",
        "",
        f"{content['machine']}; {content['date']}; commit {content['commit']}.",
        "",
        *(f"- {note}" for note in notes),
        *([""] if notes else []),
        _line(columns),
        _line("---" for _ in columns),
        *(_line(_cell(row, column) for column in columns) for row in rows),
        "",
    ]
    for table in content.get("tables", ()):
        lines += [f"{table['title']}:", "", _line(table["columns"]), _line("---" for _ in table["columns"])]
        lines += [*(_line(map(_safe, row)) for row in table["rows"]), ""]
    return "\n".join(lines)


def _cell(row: Mapping[str, Any], column: str) -> str:
    if column == "holds":
        return {True: "yes", None: "smaller budget"}.get(row["ok"], "**no**")
    return _safe(row.get(column, ""))


def _safe(value: object) -> str:
    return words(value).replace("|", "\\|")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> int:
    """Write or check; return the exit status."""
    parser = cli.parser("page", __doc__)
    parser.add_argument("--check", action="store_true", help="fail when the page says something else")
    options = parser.parse_args(arguments)
    try:
        made = {PAGE: page(), CHART: chart(RESULTS)}
    except (BadResultError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for path, text in made.items():
        if not options.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path.relative_to(ROOT)} says something else; run python -m benchmarks.page", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
