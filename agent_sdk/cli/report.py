"""What one run found out: as one JSON object for machines, as a table and a timeline for people."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_sdk.errors import printable
from agent_sdk.explain import Bar
from agent_sdk.journey.trial import PLAN, plain_runtime
from agent_sdk.journey.verify import Verdict
from agent_sdk.planner.supplier import PlanSource
from agent_sdk.runtimes.base import PACKAGES
from hope_schema.wording import duration, plural

DEFAULT: Final = "onnxruntime"
"""The processor that stands for ONNX Runtime as its own users run it."""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The result of ``hope-agent run``. Times in microseconds unless the name says otherwise.

    Whatever is said of times is made of ``timed_us``, but for what was planned and what the trial at load found.

    Attributes:
        planned_us: the plan's makespan, never below ``lower_bound_us``; None without a plan.
        at_load_us: what the trial at load found of what is executed; None where it had no part in it.
        timed_us: medians of runs in turns, of ``plan`` and of single processors by id.
        executed: the fastest of these; ``processors_used`` and ``segments`` are its own.
        compared: whether every kind of single processor was timed.
        plan_processors_used: the processors that the plan uses, executed or not; none where it does not run.
        runs: how many runs each median is of.
        verdict: as ``session.verify()`` gives it; of a final softmax what enters it is compared.
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
    method: str | None
    planned_us: float | None
    lower_bound_us: float | None
    gap: float | None
    at_load_us: float | None
    timed_us: dict[str, float]
    executed: str
    compared: bool
    processors_used: tuple[str, ...]
    segments: int
    plan_processors_used: tuple[str, ...]
    plan_segments: int
    runs: int
    verdict: Verdict
    profiled_signatures: int
    profiling_seconds: float
    planner_ms: float
    notes: tuple[str, ...] = ()
    planned: tuple[Bar, ...] = field(default=(), repr=False)
    measured: tuple[Bar, ...] = field(default=(), repr=False)

    @property
    def measured_us(self) -> float:
        return self.timed_us[self.executed]

    @property
    def plan_measured_us(self) -> float | None:
        """What the plan took, whoever is faster; None where it does not run."""
        return self.timed_us.get(PLAN)

    @property
    def baselines_us(self) -> dict[str, float]:
        """What single processors took; a plan of one processor stands for that one."""
        alone = {name: us for name, us in self.timed_us.items() if name != PLAN}
        if len(self.plan_processors_used) == 1:
            alone.setdefault(self.plan_processors_used[0], self.timed_us[PLAN])
        return alone

    @property
    def best_single(self) -> str | None:
        alone = self.timed_us.keys() - {PLAN}
        return min(alone, key=lambda name: (self.timed_us[name], name), default=None)

    @property
    def speedup(self) -> float | None:
        """Best single processor ÷ measured, above 1 when the plan gained; None unless all were compared."""
        return min(self.baselines_us.values()) / self.measured_us if self.compared else None

    @property
    def gain(self) -> float | None:
        """ONNX Runtime by default ÷ measured: what a user gains who has only that; None where it was not timed."""
        return self.timed_us[DEFAULT] / self.measured_us if DEFAULT in self.timed_us else None

    def as_json(self) -> dict[str, Any]:
        """Return everything but the timelines, ready for ``json.dumps``."""
        row = asdict(self)
        del row["planned"], row["measured"], row["compared"]
        derived = ("measured_us", "plan_measured_us", "best_single", "gain", "speedup")
        row |= {name: getattr(self, name) for name in derived}
        return {**row, "baselines_us": self.baselines_us if self.compared else {}, **_judged(self.verdict)}


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
        row = {"model": self.model, "executed": f"whole:{self.runtime}", "measured_us": self.measured_us}
        return {**row, "runs": self.runs, "notes": list(self.notes), **_judged(self.verdict)}


def _judged(verdict: Verdict) -> dict[str, Any]:
    """A verdict for ``json.dumps``, which knows no infinity: an error that is not finite is null."""
    error = verdict.error if math.isfinite(verdict.error) else None
    judged = {"max_rel_error": error, "tolerance": verdict.tolerance, "correct": verdict.correct}
    return {**judged, "verdict": str(verdict)}


def show_whole(report: WholeReport, console: Console) -> None:
    console.print(plain(f"{report.model}: {_ms(report.measured_us)} on {report.runtime}, as a whole"))
    console.print(Text(str(report.verdict), style="green" if report.verdict.correct else "red"))
    show_notes(report.notes, console)


def show(report: RunReport, console: Console) -> None:
    for line in headline(report):
        console.print(plain(line, "bold"))
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
        _print_row(console, "", "", Text("0" + _ms(span).rjust(width - 1), style="dim"))
    show_notes(report.notes, console)


def show_notes(notes: Iterable[str], console: Console) -> None:
    """Print what was not as it should be; in a pipe a line each, however long."""
    for note in notes:
        told = Text("note: ", style="yellow") + plain(note)
        console.print(told, soft_wrap=not console.is_terminal)


RUNTIMES: Final = {"ort": "ONNX Runtime", "ov": "OpenVINO"}
SAME: Final = 0.02
"""Times that differ by a smaller part are called equal."""


def headline(report: RunReport) -> list[str]:
    """What it is worth, in the order in which a user asks: beside what they had, the best single runtime, the plan."""
    took, best = _ms(report.measured_us), report.best_single
    lines = []
    if report.executed != DEFAULT and report.gain is not None:
        before = f"ONNX Runtime by default: {took} against {_ms(report.timed_us[DEFAULT])}"
        faster = "as fast as" if report.gain < 1 + SAME else f"{report.gain:.2f}× faster than"
        lines.append(f"{faster} {before}")
    if report.plan_source == "single":
        return [*lines, f"there was no planner to ask: {spoken(report.executed)} alone, {took}"]
    if (package := plain_runtime(report.executed)) == report.executed:
        lines.append(f"{PACKAGES[package]} alone is the fastest here, as it is by default: {took}")
    elif report.executed != PLAN:
        lines.append(f"{spoken(report.executed)} alone is the fastest here: {took}")
    elif best is not None:
        lines.append(f"best single runtime: {spoken(best)}, {_ms(report.timed_us[best])}")
    if report.plan_measured_us is not None:
        lines.append(f"the plan ({', '.join(report.plan_processors_used)}): {_ms(report.plan_measured_us)}")
    return lines


def spoken(processor: str) -> str:
    if (package := plain_runtime(processor)) is not None:
        threads = processor.partition("/")[2]
        return f"{PACKAGES[package]} with {threads} threads" if threads else f"{PACKAGES[package]} by default"
    runtime, at, _ = processor.partition("@")
    return f"{RUNTIMES[runtime]} on {processor}" if at and runtime in RUNTIMES else processor


def _table(report: RunReport) -> Table:
    table = _titled(f"{report.model}: {plural(report.ops, 'op')} in {plural(report.super_ops, 'super-op')}")
    table.add_column("", style="bold")
    table.add_column("latency", justify="right")
    table.add_column("")
    if report.planned_us is not None:
        bound = f"bound {_ms(report.lower_bound_us or 0.0)}, gap {report.gap or 0.0:.1%}"
        bound += f", found by {report.method or ''}"
        table.add_row("planned", _ms(report.planned_us), bound)
    used = f"{', '.join(report.plan_processors_used)}; {plural(report.plan_segments, 'segment')}"
    if report.executed != PLAN:
        if report.plan_measured_us is not None:
            table.add_row("plan measured", _ms(report.plan_measured_us), f"{used}; not used: slower here")
        if report.at_load_us is not None:
            table.add_row("at load", _ms(report.at_load_us), f"{report.executed} alone, in the trial")
        used = f"{report.executed} alone, the fastest here"
    table.add_row("measured", _ms(report.measured_us), f"{used}; median of {plural(report.runs, 'run')}")
    if report.compared:
        for name, value in sorted(report.baselines_us.items(), key=lambda item: item[1]):
            table.add_row(f"  {name} alone", _ms(value), f"{value / report.measured_us:.2f} x measured")
    table.add_section()
    verdict = Text("right", style="green") if report.verdict.correct else Text("WRONG", style="bold red")
    table.add_row("outputs", verdict, str(report.verdict).partition(": ")[2])
    asked = f"asked for {duration(report.planner_ms * 1e3)}"
    if report.plan_id is None:
        table.add_row("planner", "none", asked)
    else:
        came = {"planner": "cached" if report.plan_cached else "solved now", "disk": "from disk", "file": "from a file"}
        which = f"{report.plan_id} version {report.plan_version}"
        table.add_row("plan", came[report.plan_source], f"{which}; {asked}")
    table.add_row("profiled", plural(report.profiled_signatures, "signature"), f"in {report.profiling_seconds:.1f} s")
    table.add_row("device", "", f"{report.soc} at {report.frequency}; {', '.join(report.processors)}")
    return table


def plain(text: str, style: str = "") -> Text:
    """Text of whatever origin as it is: a string would be read as markup, and sent to the terminal."""
    return Text(printable(text), style)


def _titled(title: str) -> Table:
    """An empty table."""
    return Table(title=plain(title, "table.title"), title_justify="left")


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


def _ms(us: float) -> str:
    return f"{us / 1000:.2f} ms" if us >= 100 else f"{us / 1000:.4f} ms"


def list_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a plain table, e.g. of the zoo or of this machine's processors."""
    table = _titled(title)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(plain, row))
    return table
