"""What benchmarks read off a run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_sdk.engine.trace import Span
from benchmarks.traces import together_us


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8))
def test_together_is_when_two_work(times: list[tuple[int, int]]) -> None:
    """Equal to looking at every microsecond."""
    spans = [Span("segment", "p", "p", index, start, start + us) for index, (start, us) in enumerate(times)]
    busy = [sum(start <= now < start + us for start, us in times) for now in range(100)]
    assert together_us(spans) == sum(count > 1 for count in busy)
