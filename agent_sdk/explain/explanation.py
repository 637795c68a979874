"""The data of an explanation: one row per op, bars of the plan and of a run. Times in microseconds."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from agent_sdk.engine.trace import Trace
from agent_sdk.errors import printable
from hope_schema import Plan
from hope_schema.wording import plural

COLUMNS: Final = ("op", "type", "seg", "processor", "plan µs", "run µs", "next best")
PLANNED: Final = 4
"""The column that is there only with a plan."""


@dataclass(frozen=True)
class Bar:
    """Something that occupied a processor from ``start_us`` to ``finish_us``, counted from the run's start.

    Attributes:
        name: the super-op, in a run the last one of the segment, that it belongs to.
        ops: all ops of that, in order; none where it only copies.
    """

    processor: str
    start_us: float
    finish_us: float
    kind: Literal["compute", "transfer"] = "compute"
    name: str = ""
    ops: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The op, or the first and the last of several, and their number."""
        return self.name if len(self.ops) < 2 else f"{self.ops[0]} … {self.ops[-1]}, {plural(len(self.ops), 'op')}"


@dataclass(frozen=True, kw_only=True)
class ExplainedOp:
    """One op of the graph that is carried out.

    Attributes:
        op: its id: the name of its first output.
        type: its operator; ``hope:Opaque`` hides several that no border may run through.
        super_op: id of the super-op with which it is planned and launched.
        segment: number of the launch that it belongs to; None where nothing is launched: no output depends on it, it
            slices or joins what stands in one piece of memory anyway, or joins an output, which is stored part by part.
        predicted_us: its part of its super-op's time in the plan, what that waits for tensors included.
        alone_us: the same without transfers and launch; None where nobody measured it.
        measured_us: its part of its segment's time in the run; None where it did not run. Runtimes time segments: what
            stands between their ends is shared in proportion to what was predicted.
        next_best: the fastest processor of another kind that runs it, else an equal; None where there is none, or
            nobody said.
        next_best_us: what it takes there, like ``alone_us``.
        cause: why it is where it is, in a word: ``hope_schema.Cause``, ``single``, ``unused`` or ``in_place``.
        why: the same in a sentence; where the plan splits ops, also why this one is not.
        whole: why it cannot be computed in parts; None where it can, or is.
    """

    op: str
    type: str
    super_op: str
    segment: int | None = None
    processor: str
    predicted_us: float = 0.0
    alone_us: float | None = None
    measured_us: float | None = None
    next_best: str | None = None
    next_best_us: float | None = None
    cause: str
    why: str
    whole: str | None = None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What runs where, and why.

    Attributes:
        answers: who answers: ``plan``, a processor's id, or ``whole:`` and the runtime.
        why: why that one, in a sentence.
        processors: those that the plan uses; the runtime where the network runs whole.
        planned_us: the plan's makespan; None without a plan.
        lower_bound_us: below which no plan's makespan can lie; None without a plan.
        measured_us: the run that ``ops`` and ``measured`` are of: of the plan, also where somebody else answers.
        method: how the plan was found; empty without one.
        ops: the plan's ops in the order in which they start; empty where the network runs whole.
        planned: the plan's steps.
        measured: what processors were busy with in the run; waiting is left out.
        notes: everything that is not as it should be, in sentences.
    """

    model: str
    answers: str
    why: str
    processors: tuple[str, ...]
    planned_us: float | None = None
    lower_bound_us: float | None = None
    measured_us: float
    method: str = ""
    ops: tuple[ExplainedOp, ...] = ()
    planned: tuple[Bar, ...] = ()
    measured: tuple[Bar, ...] = ()
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """The table: a line for every op, and why it is there below the first of its super-op."""
        rows = [COLUMNS, *map(_cells, self.ops)] if self.ops else []
        if self.planned_us is None:
            rows = [(*row[:PLANNED], *row[PLANNED + 1 :]) for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for index, row in enumerate(rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
            op = self.ops[index - 1] if index else None
            if op is not None and (index == 1 or op.super_op != self.ops[index - 2].super_op):
                lines.append("    " + printable(f"{op.cause.replace('_', ' ')}: {op.why}"))
        lines.append(printable(f"{self.model}: {self.why}"))
        if self.planned_us is not None:
            lines.append(
                f"the plan: {self.planned_us / 1e3:.2f} ms planned, {self.measured_us / 1e3:.2f} ms in this run"
            )
        lines += [printable(f"note: {note}") for note in self.notes if note != self.why]
        return "\n".join(lines)


def _cells(op: ExplainedOp) -> tuple[str, ...]:
    name, kind, processor, other = map(printable, (op.op, op.type, op.processor, op.next_best or ""))
    segment = "" if op.segment is None else str(op.segment)
    took = "" if op.measured_us is None else f"{op.measured_us:.1f}"
    best = "" if op.next_best_us is None else f"{op.next_best_us:.1f} {other}"
    return name, kind, segment.rjust(3), processor, f"{op.predicted_us:.1f}".rjust(7), took.rjust(7), best


def planned_bars(plan: Plan) -> tuple[Bar, ...]:
    """Return a plan's steps as bars; a step's interval includes the transfers it pays for."""
    return tuple(
        Bar(step.processor, step.start_us, step.finish_us, name=step.ops[-1], ops=step.ops) for step in plan.steps
    )


def measured_bars(trace: Trace) -> tuple[Bar, ...]:
    """Return what processors were busy with in a run as bars; waiting is left blank."""
    ops = {segment.index: segment.ops for segment in trace.program.segments}
    return tuple(
        Bar(
            span.processor,
            start,
            end,
            "transfer" if kind == "transfer" else "compute",
            ops.get(span.segment, ("copies",))[-1],
            ops.get(span.segment, ()),
        )
        for span in trace.spans
        if span.kind != "wait"
        for kind, start, end in span.parts
    )
