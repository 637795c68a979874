"""Did the plan tell the truth? What a trial's own traces say about its latency and about single super-ops."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from agent_sdk.engine import Program
from agent_sdk.engine.trace import Span, Trace
from hope_schema import LatencyColumns, Observations, Plan, merge

OUTDATED: Final = 0.25
"""A plan whose measured latency differs from its makespan by more than this fraction is asked for again."""
ALONE: Final = 0.1
"""The part of a segment's time during which others may work for it to count as having run alone."""


def is_outdated(plan: Plan, measured_us: float | None) -> bool:
    """Whether the planner should be asked again, with what was measured."""
    if not measured_us or not plan.makespan_us:
        return False
    return abs(plan.makespan_us - measured_us) > OUTDATED * measured_us


def busy_together(trace: Trace) -> float:
    """The part of a run during which two or more processors worked."""
    return together_us(trace.segments) / trace.total_us if trace.total_us else 0.0


def together_us(spans: Sequence[Span]) -> float:
    """Microseconds during which two or more of these spans lasted."""
    ends = sorted([(span.start_us, 1) for span in spans] + [(span.end_us, -1) for span in spans])
    together, at_work, since = 0.0, 0, 0.0
    for now, change in ends:
        if at_work > 1:
            together += now - since
        at_work, since = at_work + change, now
    return together


def alone_us(traces: Sequence[Trace]) -> dict[int, float]:
    """The usual time of each segment that ran with nobody beside it, by index, microseconds."""
    found: dict[int, list[float]] = {}
    for trace in traces:
        spans = trace.segments
        for span in spans:
            beside = sum(
                max(0.0, min(span.end_us, other.end_us) - max(span.start_us, other.start_us))
                for other in spans
                if other is not span
            )
            if beside <= ALONE * span.us:
                found.setdefault(span.segment, []).append(span.us)
    return {segment: statistics.median(times) for segment, times in found.items()}


def observations(traces: Sequence[Trace], *, soc: str, frequency: str, device_id: str) -> Observations | None:
    """What runs of a plan say about single super-ops, for the planner; None for a plan without times of its own.

    A segment's time is shared among its super-ops in proportion to their planned times. Segments beside which others
    worked say nothing: what that costs is measured by itself (``measure/neighbours.py``).
    """
    program = traces[0].program
    samples = _per_super_op(program, alone_us(traces))
    if not samples:
        return None
    rows = [(key, statistics.median(times), len(times)) for key, times in samples.items()]
    return Observations(
        soc=soc,
        frequency=frequency,
        processors=tuple(processor.spec for processor in program.processors.values()),
        latencies=LatencyColumns(
            signature=tuple(signature for (signature, _), _, _ in rows),
            kind=tuple(kind for (_, kind), _, _ in rows),
            us=tuple(us for _, us, _ in rows),
            spread_us=tuple(statistics.median(abs(sample - us) for sample in samples[key]) for key, us, _ in rows),
            count=tuple(count for _, _, count in rows),
        ),
        device_id=device_id,
        upload_id=f"execution-{uuid.uuid4().hex}",
        origin="execution",
    )


def _per_super_op(program: Program, found_us: Mapping[int, float]) -> dict[tuple[str, str], list[float]]:
    """By signature and kind of processor the times of its occurrences."""
    super_ops = {super_op.ops[0].id: super_op for super_op in merge(program.graph)}
    samples: dict[tuple[str, str], list[float]] = {}
    for segment in program.segments:
        kind = program.processors[segment.processor].spec.kind
        steps = [program.plan.step[step] for step in segment.steps]
        planned = sum(step.finish_us - step.start_us for step in steps)
        if planned <= 0 or segment.index not in found_us:
            continue
        for step in steps:
            super_op = super_ops.get(step.ops[0])
            if super_op is not None and tuple(op.id for op in super_op.ops) == step.ops:
                share = (step.finish_us - step.start_us) / planned
                samples.setdefault((super_op.signature, kind), []).append(found_us[segment.index] * share)
    return samples
