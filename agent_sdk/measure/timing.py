"""How one call is timed: warm-up, adaptive repetition, and a statistic that other people's work cannot spoil."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Call = Callable[[], object]
T = TypeVar("T")

WARM_UP = 2
"""Calls before the first one that counts; one is enough where it is long."""
MIN_REPEATS = 5
LONG_US = 250_000.0
"""Once so much time was measured, three calls are enough: a long call averages out what disturbs it."""
MAX_REPEATS = 60
ENOUGH_US = 15_000.0
"""Once so much time was measured, and at least MIN_REPEATS calls, the figure is good enough (unless said otherwise)."""


FIRST_RUN_S = 60.0
"""The longest that a network's first run may take: a runtime that hangs must not keep a session from opening."""


@dataclass(frozen=True)
class Timing:
    """A latency in microseconds: ``us`` and its median absolute deviation, over ``count`` calls."""

    us: float
    spread_us: float
    count: int


def summarise(samples_us: Sequence[float]) -> Timing:
    """The median of the faster half, and the spread around it.

    NOTE: interruptions only ever add time, so the faster half is the undisturbed half; its median is still robust
    against a single odd reading, which the minimum is not.
    """
    faster = sorted(samples_us)[: (len(samples_us) + 1) // 2]
    centre = statistics.median(faster)
    spread = statistics.median(abs(sample - centre) for sample in faster)
    return Timing(us=centre, spread_us=spread, count=len(samples_us))


def least(samples_us: Sequence[float]) -> Timing:
    """The minimum, for kernels timed by a runtime's own profiler: wall time, so any interruption is in it whole."""
    centre = min(samples_us)
    return Timing(us=centre, spread_us=statistics.median(samples_us) - centre, count=len(samples_us))


def scaled(timings: Mapping[str, Timing], whole_us: float) -> dict[str, Timing]:
    """The same timings, scaled so that together they make ``whole_us``."""
    scale = whole_us / max(1e-9, sum(timing.us for timing in timings.values()))
    return {name: Timing(timing.us * scale, timing.spread_us * scale, timing.count) for name, timing in timings.items()}


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """What one call takes in microseconds of wall time, and what it returns."""
    started = time.perf_counter_ns()
    result = call()
    return (time.perf_counter_ns() - started) / 1e3, result


def measure(
    call: Call,
    *,
    own_thread: bool,
    deadline: float,
    enough_us: float = ENOUGH_US,
    after: Callable[[], object] | None = None,
) -> Timing:
    """Time ``call`` on the calling thread, which must already be bound to its cores.

    ``own_thread`` says that the call computes on this thread alone: then its CPU time is taken, which leaves out
    whatever else runs on the core. Repeats until the figure is good enough or ``deadline`` (``time.monotonic``)
    has passed; at least one call counts. ``after`` is called after each repetition, untimed.
    """
    clock = time.thread_time_ns if own_thread else time.perf_counter_ns
    overhead_us = clock_overhead_us(own_thread=own_thread)
    warming = time.perf_counter_ns()
    for _ in range(WARM_UP):
        call()
        if time.perf_counter_ns() - warming > LONG_US * 1e3 or time.monotonic() >= deadline:
            break
    samples: list[float] = []
    total = 0.0
    while len(samples) < MAX_REPEATS and (len(samples) < MIN_REPEATS or total < enough_us):
        if len(samples) >= 3 and total >= LONG_US:
            break
        started = clock()
        call()
        samples.append(max(0.0, (clock() - started) / 1e3 - overhead_us))
        total += samples[-1]
        if after is not None:
            after()
        if time.monotonic() >= deadline:
            break
    return summarise(samples)


def clock_overhead_us(*, own_thread: bool) -> float:
    """What reading the clock twice adds to a sample (a system call for CPU time)."""
    clock = time.thread_time_ns if own_thread else time.perf_counter_ns
    readings = []
    for _ in range(50):
        started = clock()
        readings.append((clock() - started) / 1e3)
    return min(readings)
