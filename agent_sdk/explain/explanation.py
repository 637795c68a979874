"""The data of an explanation: one row per op, bars of the plan and of a run. Times in microseconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from agent_sdk.engine.trace import Trace
from hope_schema import Plan


@dataclass(frozen=True)
class Bar:
    """Something that occupied a processor from ``start_us`` to ``finish_us``, counted from the run's start.

    ``name`` is the super-op, in a run the segment, that it belongs to.
    """

    processor: str
    start_us: float
    finish_us: float
    kind: Literal["compute", "transfer"] = "compute"
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class ExplainedOp:
    """One op of the graph that is carried out.

    Attributes:
        op: its id: the name of its first output.
        type: its operator; ``hope:Opaque`` hides several that no border may run through.
        super_op: id of the super-op with which it is planned and launched.
        segment: number of the launch that it belongs to; None where nothing is launched: no output depends on it, or it
            slices or joins what stands in one piece of memory anyway.
        processor: where it runs.
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
        model: the network's name.
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
        """Return plain values, ready for ``json.dumps``."""
        return asdict(self)


def planned_bars(plan: Plan) -> tuple[Bar, ...]:
    """Return a plan's steps as bars; a step's interval includes the transfers it pays for."""
    return tuple(Bar(step.processor, step.start_us, step.finish_us, name=step.ops[-1]) for step in plan.steps)


def measured_bars(trace: Trace) -> tuple[Bar, ...]:
    """Return what processors were busy with in a run as bars; waiting is left blank."""
    names = {segment.index: segment.ops[-1] for segment in trace.program.segments}
    return tuple(
        Bar(
            span.processor,
            span.start_us,
            span.end_us,
            "transfer" if span.kind == "transfer" else "compute",
            names.get(span.segment, "copies"),
        )
        for span in trace.spans
        if span.kind != "wait"
    )
