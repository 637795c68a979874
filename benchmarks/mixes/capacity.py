"""How much a configuration can do: the largest load at which it keeps its deadlines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent_sdk.scheduling.mixes import Mix
from agent_sdk.scheduling.outcome import Ended, missed
from agent_sdk.scheduling.playing import Asks, play

KEPT: Final = 0.01
"""Share of deadlines that may be missed; dropped runs count."""
BETWEEN: Final = (0.1, 6.0)
"""Loads between which the largest is looked for."""
PERIODS: Final = 20
"""Runs of the slowest stream that a probe lasts for at least."""
MOST: Final = 3.0
"""Times that a probe may take longer than it was asked to for that."""
GRACE_S: Final = 0.5
"""How long runs may go on after a probe."""
WARM_S: Final = 0.5
"""Time before a probe that does not count: threads wake, expected latencies settle."""


def at_load(
    mix: Mix, load: float, alone_ms: Mapping[str, float], ask: Asks, seconds: float, *, stop: bool = False
) -> list[Ended]:
    """What becomes of a mix at a load; with ``stop`` only as far as it keeps its deadlines."""
    scaled = mix.at_load(load, alone_ms)
    longest = max(stream.period_ms for stream in scaled.streams if stream.period_ms is not None)
    seconds = max(seconds, min(PERIODS * longest / 1e3, MOST * seconds))
    scaled = scaled.model_copy(update={"seconds": seconds + WARM_S})
    due = sum(len(stream.releases(scaled.seconds, 0)) for stream in scaled.streams if stream.due_ms is not None)
    ended = play(scaled, ask, grace_s=GRACE_S, most=round(2 * KEPT * due) + 5 if stop else None)
    return [one for one in ended if one.release_ms >= WARM_S * 1e3]


def capacity(mix: Mix, alone_ms: Mapping[str, float], ask: Asks, seconds: float, probes: int) -> float:
    """The largest load with at most ``KEPT`` of the deadlines missed, by halving in proportion; 0 where there is none.

    With so many probes it is found within ``(6 / 0.1) ** 2 ** -probes``.
    """
    low, high = BETWEEN
    found = 0.0
    for _ in range(probes):
        load = (low * high) ** 0.5
        if missed(at_load(mix, load, alone_ms, ask, seconds, stop=True)) <= KEPT:
            found = low = load
        else:
            high = load
    return found


def measured(
    mix: Mix, load: float | None, alone_ms: Mapping[str, float], ask: Asks, seconds: float, probes: int
) -> float:
    """The share of deadlines missed at a load; without one, the capacity."""
    if load is None:
        return capacity(mix, alone_ms, ask, seconds, probes)
    return missed(at_load(mix, load, alone_ms, ask, 2 * seconds))
