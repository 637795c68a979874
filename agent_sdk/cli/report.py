"""What one run found out: as one JSON object for machines, as a table and a timeline for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_sdk.errors import printable
from agent_sdk.explain import Bar
from agent_sdk.journey.rounding import FLOAT32
from agent_sdk.journey.verify import Verdict
from agent_sdk.planner.supplier import PlanSource
from agent_sdk.runtimes.base import PACKAGES
from hope_schema.wording import duration


@dataclass(frozen=True)
class RunReport:
    """The result of ``hope-agent run``. Times in microseconds unless the name says otherwise.

    Attributes:
        planned_us: the plan's makespan, never below ``lower_bound_us``.
        predicted_us: what was predicted for what is executed: the plan's makespan, or the trial's figure of a single
            processor.
        measured_us: median end-to-end time of what was executed.
        plan_measured_us: median of the plan itself, also when a faster single processor was executed instead.
        baselines_us: median per single processor.
        runs: how many runs ``measured_us`` is the median of.
        executed: ``plan``, or the id of the single processor that ran instead; ``processors_used`` and ``segments``
            are what was executed.
        plan_processors_used: the processors that the plan uses, executed or not.
        max_rel_error: max |Δ| / max |reference| over the outputs, of a final softmax over what enters it, whose outputs
            are compared with what ONNX Runtime makes of that; infinite where one is missing, of another shape or not
            finite.
        tolerance: the largest ``max_rel_error`` that counts as right.
        verdict: right or wrong in words, as ``session.verify()`` prints it.
        default_us: what ONNX Runtime takes as its users run it; where it was not timed beside ``measured_us``, as many
            times that as it took at load. None where it was never tried.
        best_single: the fastest that runs the whole network by itself, and was timed beside it.
        best_single_us: its median.
        planner_ms: time spent in calls to the planner, milliseconds.
        notes: everything that was not as it should be, said in sentences.
    """

    model: str
    model_hash: str
    ops: int
    super_ops: int
    soc: str
    frequency: str
    processors: tuple[str, ...]
    plan_id: str | None
    plan_version: int | None
    plan_cached: bool
    plan_source: PlanSource
    method: str
    planned_us: float
    predicted_us: float
    lower_bound_us: float
    gap: float
    measured_us: float
    plan_measured_us: float
    baselines_us: dict[str, float]
    executed: str
    processors_used: tuple[str, ...]
    segments: int
    plan_processors_used: tuple[str, ...]
    plan_segments: int
    runs: int
    max_rel_error: float
    profiled_signatures: int
    profiling_seconds: float
    planner_ms: float
    tolerance: float = FLOAT32
    verdict: str = ""
    default_us: float | None = None
    best_single: str | None = None
    best_single_us: float | None = None
    notes: tuple[str, ...] = ()
    planned: tuple[Bar, ...] = field(default=(), repr=False)
    measured: tuple[Bar, ...] = field(default=(), repr=False)

    @property
    def correct(self) -> bool:
        """Whether the outputs are equal within ``tolerance`` (NaN is never equal)."""
        return self.max_rel_error <= self.tolerance

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """The fastest single processor and its time, if they were measured."""
        return min(self.baselines_us.items(), key=lambda item: item[1]) if self.baselines_us else None

    @property
    def speedup(self) -> float | None:
        """Best single processor ÷ measured, above 1 when the plan gained; None without ``--compare``."""
        return self.best_baseline[1] / self.measured_us if self.best_baseline and self.measured_us else None

    @property
    def gain(self) -> float | None:
        """ONNX Runtime by default ÷ measured: what a user gains who has only that; None where it was never tried."""
        return self.default_us / self.measured_us if self.default_us and self.measured_us else None

    def as_json(self) -> dict[str, Any]:
        """Return everything but the timelines, ready for ``json.dumps``.

        JSON knows no infinity: an infinite ``max_rel_error`` becomes null, and ``correct`` is false.
        """
        row = asdict(self)
        del row["planned"], row["measured"]
        if not math.isfinite(self.max_rel_error):
            row["max_rel_error"] = None
        return {**row, "gain": self.gain, "speedup": self.speedup, "correct": self.correct}


@dataclass(frozen=True)
class WholeReport:
    """What there is to say of a network that runs as a whole, because nothing of it can be planned."""

    model: str
    runtime: str
    measured_us: float
    runs: int
    verdict: Verdict
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values; an error that is not finite is null."""
        error = self.verdict.error
        return {
            "model": self.model,
            "executed": f"whole:{self.runtime}",
            "measured_us": self.measured_us,
            "runs": self.runs,
            "max_rel_error": error if math.isfinite(error) else None,
            "tolerance": self.verdict.tolerance,
            "correct": self.verdict.correct,
            "notes": list(self.notes),
        }


def show_whole(report: WholeReport, console: Console) -> None:
    """Print what there is to say of a network that runs as a whole."""
    console.print(f"{printable(report.model)}: {_ms(report.measured_us)} on {report.runtime}, as a whole")
    console.print(Text(str(report.verdict), style="green" if report.verdict.correct else "red"))
    show_notes(report.notes, console)


def show(report: RunReport, console: Console) -> None:
    """Print what was gained, the table, the timelines and the notes."""
    for line in headline(report):
        console.print(Text(printable(line), style="bold"))
    console.print(_table(report), markup=False)
    width = max(20, min(100, console.width - 30))
    everything = [*report.planned, *report.measured]
    if everything:
        span = max(bar.finish_us for bar in everything) or 1.0
        names = dict.fromkeys(bar.processor for bar in everything)
        console.print()
        for title, bars in (("planned", report.planned), ("measured", report.measured)):
            for name in names:
                row = [bar for bar in bars if bar.processor == name]
                if row:
                    _print_row(console, title, name, _lane(row, span, width, console))
                    title = ""
        _print_row(console, "", "", Text(_axis(span, width), style="dim"))
    show_notes(report.notes, console)


def show_notes(notes: Iterable[str], console: Console) -> None:
    """Print what was not as it should be; in a pipe a line each, however long."""
    for note in notes:
        told = Text("note: ", style="yellow") + Text(printable(note))
        console.print(told, soft_wrap=not console.is_terminal)


DEFAULTS: Final = dict[str, str](PACKAGES.items())
"""Runtimes as their own users run them, by the id of their processor."""
RUNTIMES: Final = {"ort": "ONNX Runtime", "ov": "OpenVINO"}
SAME: Final = 0.02
"""Times that differ by a smaller part are called equal."""


def headline(report: RunReport) -> list[str]:
    """What it is worth, in the order in which a user asks: beside what they had, the best single runtime, the plan."""
    took = _ms(report.measured_us)
    alone = report.executed != "plan"
    lines = []
    if report.executed != "onnxruntime" and report.gain is not None and report.default_us is not None:
        before = f"ONNX Runtime by default: {took} against {_ms(report.default_us)}"
        if abs(report.gain - 1) < SAME:
            lines.append(f"as fast as {before}")
        elif report.gain > 1:
            lines.append(f"{report.gain:.2f}× faster than {before}")
        else:
            lines.append(f"{1 / report.gain:.2f}× slower than {before}")
    if report.plan_source == "single":
        return [*lines, f"there was no planner to ask: {spoken(report.processors_used[0])} alone, {took}"]
    if report.executed in DEFAULTS:
        lines.append(f"{DEFAULTS[report.executed]} alone is the fastest here, as it is by default: {took}")
    elif alone:
        lines.append(f"{spoken(report.executed)} alone is the fastest here: {took}")
    elif report.best_single is not None and report.best_single_us is not None:
        lines.append(f"best single runtime: {spoken(report.best_single)}, {_ms(report.best_single_us)}")
    used = ", ".join(report.plan_processors_used)
    lines.append(f"the plan ({used}): {took if not alone else _ms(report.plan_measured_us)}")
    return lines


def spoken(processor: str) -> str:
    """A processor as a person would call it."""
    if processor in DEFAULTS:
        return f"{DEFAULTS[processor]} by default"
    plain, slash, threads = processor.partition("/")
    if slash and plain in DEFAULTS:
        return f"{DEFAULTS[plain]} with {threads} threads"
    runtime, at, _ = processor.partition("@")
    return f"{RUNTIMES[runtime]} on {processor}" if at and runtime in RUNTIMES else processor


def _table(report: RunReport) -> Table:
    table = _titled(f"{report.model}: {report.ops} ops in {report.super_ops} super-ops")
    table.add_column("", style="bold")
    table.add_column("latency", justify="right")
    table.add_column("")
    bound = f"bound {_ms(report.lower_bound_us)}, gap {report.gap:.1%}, method {report.method}"
    table.add_row("planned", _ms(report.planned_us), bound)
    used = f"{', '.join(report.plan_processors_used)}; {_count(report.plan_segments, 'segment')}"
    if report.executed == "plan":
        used = f"{', '.join(report.processors_used)}; {_count(report.segments, 'segment')}"
        table.add_row("measured", _ms(report.measured_us), f"{used}; median of {_count(report.runs, 'run')}")
    else:
        table.add_row("plan measured", _ms(report.plan_measured_us), f"{used}; not used: slower here")
        table.add_row("predicted", _ms(report.predicted_us), f"for {report.executed} alone, from the trial at load")
        table.add_row("measured", _ms(report.measured_us), f"{report.executed} alone, which is faster here")
    for name, value in sorted(report.baselines_us.items(), key=lambda item: item[1]):
        table.add_row(f"  {name} alone", _ms(value), f"{value / report.measured_us:.2f} x measured")
    table.add_section()
    verdict = Text("right", style="green") if report.correct else Text("WRONG", style="bold red")
    table.add_row("outputs", verdict, report.verdict.partition(": ")[2])
    plan = "no planner" if report.plan_id is None else f"{report.plan_id} version {report.plan_version}"
    came = {"planner": "cached" if report.plan_cached else "solved now", "disk": "from disk", "single": "made here"}
    table.add_row("plan", came[report.plan_source], f"{plan}; {duration(report.planner_ms * 1e3)} in the planner")
    table.add_row("profiled", _count(report.profiled_signatures, "signature"), f"in {report.profiling_seconds:.1f} s")
    table.add_row("device", "", f"{report.soc} at {report.frequency}; {', '.join(report.processors)}")
    return table


def _titled(title: str) -> Table:
    """An empty table; a title given as a string would be read as markup."""
    return Table(title=Text(printable(title), style="table.title"), title_justify="left")


def _print_row(console: Console, title: str, name: str, lane: Text) -> None:
    console.print(Text(f"{title:9.9} {name:12.12} ", style="bold") + lane, no_wrap=True, crop=True)


def _lane(bars: Iterable[Bar], span_us: float, width: int, console: Console) -> Text:
    """Draw one processor's bars over ``width`` cells; a cell shows what filled most of it."""
    unicode = (console.encoding or "").lower().startswith("utf")
    marks = {"compute": "█" if unicode else "#", "transfer": "▒" if unicode else "=", "idle": "·" if unicode else "."}
    styles = {"compute": "green", "transfer": "yellow", "idle": "dim"}
    cell = span_us / width
    filled: list[dict[str, float]] = [{"compute": 0.0, "transfer": 0.0} for _ in range(width)]
    for bar in bars:
        first, last = int(bar.start_us / cell), min(width - 1, int(bar.finish_us / cell))
        for index in range(max(0, first), last + 1):
            overlap = min(bar.finish_us, (index + 1) * cell) - max(bar.start_us, index * cell)
            filled[index][bar.kind] += max(0.0, overlap)
    lane = Text()
    for shares in filled:
        kind = max(shares, key=lambda name: shares[name]) if sum(shares.values()) > 0.25 * cell else "idle"
        lane.append(marks[kind], style=styles[kind])
    return lane


def _axis(span_us: float, width: int) -> str:
    end = _ms(span_us)
    return "0" + end.rjust(width - 1)


def _ms(us: float) -> str:
    return f"{us / 1000:.2f} ms" if us >= 100 else f"{us / 1000:.4f} ms"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def list_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a plain table, e.g. of the zoo or of this machine's processors."""
    table = _titled(title)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
