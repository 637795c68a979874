"""What a benchmark found, on paper: the machine, the date, the commit, and one row per figure that must hold."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_sdk.errors import said

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "benchmarks/results"
"""Where figures stand that are kept."""


@dataclass(frozen=True)
class Measure:
    """One figure and whether it holds: ``must`` is its upper limit, or its lower one with ``at_least``."""

    measure: str
    value: float
    must: float
    ok: bool | None
    """None: not judged, for it was found with a smaller budget than the limit is for."""


TableRow = list[str | float | None]
"""A row of a table: numbers or text, ``None`` what was not found."""


@dataclass(frozen=True)
class Table:
    """What stands beside the figures that must hold."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]

    def show(self) -> None:
        """Print it, columns aligned."""
        lines = [list(self.columns), *([words(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        print(f"\n{self.title}")
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def words(value: object) -> str:
    """One cell: numbers to four digits, several by name."""
    if value is None:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {words(each)}" for name, each in value.items())
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def say(row: Mapping[str, object]) -> None:
    """Print everything of a row in a line."""
    print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)


@contextmanager
def left_out(**what: str) -> Iterator[None]:
    """Say what fails, and go on without it: the rest is wanted all the same."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  said, and left out
        say({**what, "failed": f"{type(error).__name__}: {said(error)}"})


def verdict(what: str, value: float, must: float, *, at_least: bool = False) -> Measure:
    """Print one figure and whether it holds."""
    found = Measure(what, value, must, value >= must if at_least else value <= must)
    print(f"{what:64} {words(value):>8}  must be {'>=' if at_least else '<='} {must:g}: {'yes' if found.ok else 'NO'}")
    return found


def judged(what: str, value: float, must: float, *, budget: float, least: float) -> Measure:
    """Print one figure and whether it holds, unless it was found with less than the budget that the limit is for."""
    if budget >= least:
        return verdict(what, value, must)
    print(f"{what:64} {words(value):>8}  must be <= {must:g} with {least:g} s: smaller budget")
    return Measure(what, value, must, None)


Found = tuple[list[Measure], list[Table]]
"""What a part of a benchmark found."""


def joined(parts: Iterable[Found]) -> Found:
    """What several parts found."""
    kept = list(parts)
    return [one for measures, _ in kept for one in measures], [one for _, tables in kept for one in tables]


def report(
    path: Path | None, measures: Sequence[Measure | Mapping[str, Any]], tables: Sequence[Table] = (), **more: object
) -> None:
    """Print the tables; ``write`` all."""
    for table in tables:
        table.show()
    write(path, measures, tables, **more)


def write(
    path: Path | None, measures: Sequence[Measure | Mapping[str, Any]], tables: Sequence[Table] = (), **more: object
) -> None:
    """Write measures, tables and whatever else was found, beside the circumstances, if somewhere.

    Notes that somebody wrote into the file stay there.
    """
    if path is None:
        return
    content: dict[str, object] = (
        _notes(path)
        | circumstances()
        | {
            "rows": [asdict(one) if isinstance(one, Measure) else one for one in measures],
        }
    )
    if tables:
        content["tables"] = [asdict(table) for table in tables]
    path.write_text(json.dumps(content | more, indent=1) + "\n")


def _notes(path: Path) -> dict[str, object]:
    """What somebody noted in a file of results, if it is one."""
    with suppress(OSError, ValueError):
        before = json.loads(path.read_text())
        if isinstance(before, dict) and "notes" in before:
            return {"notes": before["notes"]}
    return {}


def circumstances() -> dict[str, object]:
    """Where, when and of what something is measured."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"machine": machine(), "date": date, "commit": commit()}


def machine() -> str:
    """Processor and number of cores in words."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def commit() -> str:
    """The commit that was checked out, with ``+`` where files were changed: others than results, which runs change.

    Outside a repository, where an export of one was carried, it is what ``BENCHMARKED_COMMIT`` says: the planner takes
    a variable of its own prefix for a setting.
    """
    if not (ROOT / ".git").exists():
        return os.environ.get("BENCHMARKED_COMMIT", "")
    try:
        checked_out = _git("describe", "--always", "--abbrev=12")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){RESULTS}")
    except (OSError, subprocess.SubprocessError):
        return ""
    return checked_out + ("+" if changed else "")


def _git(*command: str) -> str:
    """What git says in the repository. Raises OSError, SubprocessError."""
    said = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10)
    return said.stdout.strip()
