"""An answer as people read it: a table of entries, or a list of fields."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

WIDEST = 64
"""Characters of a cell, so that a hash can be copied; a longer one loses its end, but for the last column's."""


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """One line per entry, under a line of names."""
    lines = [list(map(_title, columns))]
    lines += [[cell(_pick(row, column)) for column in columns] for row in rows]
    lines = [[*(_short(text) for text in line[:-1]), line[-1]] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def fields(answer: dict[str, Any], names: Sequence[str] = ()) -> str:
    """One line per field (dotted where nested); lists of objects as their number."""
    shown = {_title(name): cell(_pick(answer, name)) for name in names or answer}
    width = max(map(len, shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in shown.items())


def line(answer: dict[str, Any], names: Sequence[str]) -> str:
    """Fields on one line, each behind its name."""
    return "  ".join(f"{_title(name)} {cell(_pick(answer, name))}" for name in names)


def cell(value: Any) -> str:
    """One value in words; what a terminal would obey is shown, not sent."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{round(value, 6) + 0.0:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
        case list() if value and isinstance(value[0], dict):
            return f"{len(value)}"
        case list():
            return ",".join(map(cell, value)) or "-"
        case dict():
            return ",".join(f"{name}={cell(each)}" for name, each in value.items()) or "-"
    text = str(value)
    return text if text.isprintable() else json.dumps(text)


def _title(name: str) -> str:
    return name.replace("_", " ").replace(".", " ")


def _pick(row: dict[str, Any], column: str) -> Any:
    if column == "stage" and "stages" in row:  # people count from 1
        return f"{row['stage'] + 1} of {len(row['stages'])}"
    found: Any = row
    for name in column.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
