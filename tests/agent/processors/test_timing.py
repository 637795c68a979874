"""One statistic for all measurements: right, robust, bounded."""

from __future__ import annotations

import statistics
import time

from hypothesis import given
from hypothesis import strategies as st

from agent_sdk.measure.timing import MAX_REPEATS, MIN_REPEATS, WARM_UP, measure, summarise


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=40))
def test_the_figure_is_a_low_middle(samples: list[float]) -> None:
    """It lies between the minimum and the median, whatever the samples' order, and counts them all."""
    timing = summarise(samples)
    assert min(samples) <= timing.us <= statistics.median(samples)
    assert timing == summarise(sorted(samples, reverse=True))
    assert timing.count == len(samples)


@given(st.lists(st.floats(10, 11), min_size=6, max_size=20), st.lists(st.floats(1e3, 1e6), max_size=5))
def test_interruptions_do_not_show(quiet: list[float], disturbed: list[float]) -> None:
    """As long as fewer than half of the samples were disturbed the figure is one of the undisturbed."""
    assert 10 <= summarise([*disturbed, *quiet]).us <= 11


def test_repetition_is_bounded() -> None:
    """Short calls are repeated up to the limit, long ones until there is enough, and one call counts after the end."""
    calls: list[int] = []
    timing = measure(lambda: calls.append(1), own_thread=True, deadline=time.monotonic() + 5)
    assert timing.count == MAX_REPEATS
    assert len(calls) == MAX_REPEATS + WARM_UP
    timing = measure(lambda: time.sleep(0.005), own_thread=False, deadline=time.monotonic() + 5, enough_us=1.0)
    assert timing.count == MIN_REPEATS
    assert timing.us >= 4_900
    assert measure(lambda: time.sleep(0.1), own_thread=False, deadline=time.monotonic() + 5).count == 3
    assert measure(lambda: None, own_thread=False, deadline=0.0).count == 1


def test_cpu_time_leaves_out_sleep() -> None:
    """For a call on this thread alone only its own work counts, not what else the core did meanwhile."""
    timing = measure(lambda: time.sleep(0.01), own_thread=True, deadline=time.monotonic() + 5, enough_us=1.0)
    assert timing.us < 5_000
