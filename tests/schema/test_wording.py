"""Figures and reasons in words, and axes with round marks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hope_schema import Alternative, Cause, Step
from hope_schema.axis import ticks
from hope_schema.wording import TITLES, duration, reason


def step(cause: Cause, *, known: bool) -> Step:
    """A step that takes 1.5 ms where it is and 750 µs on another processor."""
    return Step(
        id=0, ops=("a",), dtype="float32", processor="ort@0", start_us=0.0, finish_us=1500.0, cause=cause,
        alone_us=1500.0 if known else None, next_best=Alternative(processor="ov@1", us=750.0) if known else None,
    )  # fmt: skip


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_a_title_and_a_reason(cause: Cause) -> None:
    """With figures the reason names both times and the other processor; without, it says something of its own."""
    assert TITLES[cause]
    said = reason(step(cause, known=True))
    if cause is not Cause.ONLY_SUPPORTED:
        assert said.startswith("1.5 ms here, 750 µs on ov@1")
        assert reason(step(cause, known=False)) not in said
    assert len({reason(step(other, known=False)) for other in Cause}) == len(Cause)


def test_a_reason_says_what_else_the_plan_counts() -> None:
    """Where a step takes longer in the plan than its ops alone, both times are there, and why they differ."""
    said = reason(step(Cause.FASTER, known=True).model_copy(update={"alone_us": 24.7}))
    assert said == "24.7 µs here (1.5 ms with transfers, launch and neighbours), 750 µs on ov@1"


def test_durations_have_three_figures_and_a_unit_that_fits() -> None:
    """From nothing to hours, and a dash for what is not known."""
    assert [duration(us) for us in (0.0, 0.4, 950.0, 1e3, 1234.0, 56_780.0, 1e6, 2.5e6, 6e7, 9e7, 7.2e9, None)] == [
        "0 µs", "0.4 µs", "950 µs", "1 ms", "1.23 ms", "56.8 ms", "1 s", "2.5 s", "1 min", "1.5 min", "2 h", "–",
    ]  # fmt: skip
    assert [duration(us) for us in (999.4, 999.7, 999_700.0, 59_980_000.0)] == ["999 µs", "1 ms", "1 s", "1 min"]


@given(st.floats(1e-3, 1e12), st.integers(3, 10))
def test_axes_have_round_marks_that_fit(span: float, wanted: int) -> None:
    """Marks begin at nothing, 1, 2 or 5 times a power of ten apart, end within the axis, about as many as wanted."""
    marks = ticks(span, wanted)
    assert marks[0].value == 0.0
    assert 2 <= len(marks) <= wanted + 1
    assert all(0.0 <= mark.at <= 100.0 + 1e-6 for mark in marks)
    steps = [after.value - before.value for before, after in pairwise(marks)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-6)
    leading = float(f"{marks[1].value:.6e}".partition("e")[0])
    assert min(abs(leading - digit) for digit in (1, 2, 5)) < 1e-5
