"""An answer as people read it: a table of entries, or a list of fields."""

import json
import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

WIDEST = 64
"""Characters of a cell, so that a hash can be copied; a longer one loses its end, but for the last column's."""
WHOLE = 10_000
"""Columns of what is printed to: a terminal breaks long lines by itself, where rich would break words within a cell."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
"""A time of the planner's, which are all UTC."""
STYLES = {
    "done": "green", "valid": "green", "failed": "red", "rolled back": "red", "revoked": "red", "waiting": "yellow",
    "paused": "yellow", "spent": "yellow", "expired": "yellow",
}  # fmt: skip
"""Of words that say how something goes."""


def say(what: RenderableType) -> None:
    Console(width=WHOLE, highlight=False).print(what)


def working(doing: str) -> Any:
    """Something that turns on a terminal while this is done."""
    return Console(stderr=True).status(doing)


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Table:
    """One line per entry, under a line of names; numbers stand under each other."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    values = [[_pick(row, column) for column in columns] for row in rows]
    for name, column in zip(columns, zip(*values, strict=True) if rows else [()] * len(columns), strict=True):
        is_number = any(isinstance(value, int | float) and not isinstance(value, bool) for value in column)
        shown.add_column(_title(name), justify="right" if is_number else "left", no_wrap=True)
    for row in values:
        cells = [cell(value) for value in row]
        short = [text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…" for text in cells[:-1]]
        shown.add_row(*map(_styled, [*short, *cells[-1:]]))
    return shown


def fields(answer: dict[str, Any], names: Sequence[str] = ()) -> Table:
    """One line per field (dotted where nested); lists of objects as their number."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(no_wrap=True)
    for name in names or answer:
        shown.add_row(_title(name), _styled(cell(_pick(answer, name))))
    return shown


def line(answer: dict[str, Any], names: Sequence[str]) -> str:
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
    text = "rolled back" if value == "rolled_back" else str(value)
    if MOMENT.fullmatch(text):
        return f"{text[:10]} {text[11:19]}"
    return text if text.isprintable() else json.dumps(text)


def _styled(text: str) -> Text:
    return Text(text, style=STYLES.get(text, ""))


def _title(name: str) -> str:
    return name.replace("_", " ").replace(".", " ")


def _pick(row: dict[str, Any], column: str) -> Any:
    if column == "stage" and "stages" in row:  # people count from 1
        return f"{row['stage'] + 1} of {len(row['stages'])}"
    found: Any = row
    for name in column.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
