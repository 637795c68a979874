"""What is read off a run: the time in which processors work together."""

from __future__ import annotations

from collections.abc import Sequence

from agent_sdk.engine.trace import Span, Trace


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
