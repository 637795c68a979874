"""How much a configuration can do: the largest load at which it keeps its deadlines."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from agent_sdk.scheduling.mixes import Mix
from agent_sdk.scheduling.outcome import Ended, missed
from agent_sdk.scheduling.playing import Asks, play

KEPT: Final = 0.01
"""Share of deadlines that may be missed; dropped runs count."""
LEAST: Final = 0.1
MOST_BY_CORES: Final = 3.0
"""Loads between which the largest is looked for: from so much to so many times the square root of the cores: networks
that run on one core about as fast as on all do the more the more cores there are."""
PERIODS: Final = 20
"""Runs of the slowest stream that a probe lasts for at least."""
MOST: Final = 3.0
"""Times that a probe may take longer than it was asked to for that."""
GRACE_S: Final = 0.5
"""How long runs may go on after a probe."""
WARM_S: Final = 0.5
"""Time before a probe that does not count: threads wake, expected latencies settle."""
TRIES: Final = 2
"""Probes in which a load has to fail: a stall of the machine fails any load, and halving never comes back to it."""
PLAYS: Final = 3
"""Plays of which what became of the middle one counts: a stall of the machine spoils one."""


def at_load(
    mix: Mix, load: float, alone_ms: Mapping[str, float], ask: Asks, seconds: float, *, stop: bool = False
) -> list[Ended]:
    """What becomes of a mix at a load; with ``stop`` only as far as it keeps its deadlines."""
    scaled = mix.at_load(load, alone_ms)
    longest = max(stream.period_ms for stream in scaled.streams if stream.period_ms is not None)
    seconds = max(seconds, min(PERIODS * longest / 1e3, MOST * seconds))
    scaled = scaled.model_copy(update={"seconds": seconds + WARM_S})
    due = sum(len(stream.releases(scaled.seconds, 0)) for stream in scaled.streams if stream.due_ms is not None)
    left = 2 * KEPT * due + 5 if stop else float("inf")

    def hopeless(one: Ended) -> bool:
        nonlocal left
        left -= one.missed and one.release_ms >= WARM_S * 1e3
        return left < 0

    ended = play(scaled, ask, grace_s=GRACE_S, hopeless=hopeless)
    return [one for one in ended if one.release_ms >= WARM_S * 1e3]


def kept(ended: Sequence[Ended]) -> bool:
    """Whether so few deadlines were missed that the load counts as done; not where there was none."""
    return any(one.deadline_ms is not None for one in ended) and missed(ended) <= KEPT


def most() -> float:
    """The largest load that is tried on this machine."""
    return MOST_BY_CORES * math.sqrt(len(os.sched_getaffinity(0)))


def capacity(mix: Mix, alone_ms: Mapping[str, float], ask: Asks, seconds: float, probes: int) -> float:
    """The largest load with at most ``KEPT`` of the deadlines missed, by halving in proportion; 0 where there is none.

    With eight probes it is found within 1.5 % on two cores, and 2 % on sixteen.
    """
    low, high = LEAST, most()
    found = 0.0
    for _ in range(probes):
        load = (low * high) ** 0.5
        if any(kept(at_load(mix, load, alone_ms, ask, seconds, stop=True)) for _ in range(TRIES)):
            found = low = load
        else:
            high = load
    return found


def plays(mix: Mix, load: float, alone_ms: Mapping[str, float], ask: Asks, seconds: float) -> list[list[Ended]]:
    """What becomes of a mix at a load, again and again, for so many seconds in all."""
    return [at_load(mix, load, alone_ms, ask, seconds / PLAYS) for _ in range(PLAYS)]


def measured(
    mix: Mix, load: float | None, alone_ms: Mapping[str, float], ask: Asks, seconds: float, probes: int
) -> float:
    """The share of deadlines missed at a load; without one, the capacity."""
    if load is None:
        return capacity(mix, alone_ms, ask, seconds, probes)
    return median(map(missed, plays(mix, load, alone_ms, ask, 2 * seconds)))
