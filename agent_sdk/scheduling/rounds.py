"""Rounds of a joint plan: periods that come together again soon enough for one plan to hold every run until then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from agent_sdk.errors import InputError, UnplannableError

MOST_RUNS: Final = 64
"""Runs that a round holds at most: the planner's time, and the memory of what is compiled, grow with them."""
FINEST: Final = 12
"""The shortest period is cut into so many ticks at most, of which all periods are multiples."""
DRIFT: Final = 8
"""A run may be off by one in so many parts of the shortest period at the end of a round; the next one begins anew."""


class Rate(NamedTuple):
    """How often a network is asked for, and how long after that it is due; whole microseconds."""

    period_us: float
    deadline_us: float


def rates(networks: int, every_ms: Sequence[float], deadlines_ms: Sequence[float] = ()) -> list[Rate | None]:
    """For each network its period, of which a round is short, as near to the given one as that needs, and its deadline,
    which is the period unless it is given; None for each where no periods are.

    Raises InputError for times of no length, or not one for each network; UnplannableError where the periods come
    together too seldom.
    """
    if any(len(times) not in (0, networks) for times in (every_ms, deadlines_ms)):
        raise InputError("every_ms and deadlines_ms have one time for each session")
    if not all(0 < ms < 1e9 for ms in (*every_ms, *deadlines_ms)):
        raise InputError("every_ms and deadlines_ms are milliseconds, above 0 and below 1e9")
    if not every_ms:
        if deadlines_ms:
            raise InputError("deadlines_ms are those of periods: give every_ms too")
        return [None] * networks
    shortest = 1e3 * min(every_ms)
    for parts in range(1, FINEST + 1):
        tick = max(round(shortest / parts), 1)
        ticks = [max(round(1e3 * ms / tick), 1) for ms in every_ms]
        runs = [math.lcm(*ticks) // own for own in ticks]
        off = [abs(own * tick - 1e3 * ms) * many for own, ms, many in zip(ticks, every_ms, runs, strict=True)]
        if sum(runs) <= MOST_RUNS and max(off) * DRIFT <= shortest:
            due = [float(round(1e3 * ms)) for ms in deadlines_ms or every_ms]
            return [Rate(float(own * tick), us) for own, us in zip(ticks, due, strict=True)]
    shown = ", ".join(f"{ms:g}" for ms in every_ms)
    raise UnplannableError(
        f"periods of {shown} ms come together again after more than {MOST_RUNS} runs: choose multiples of each other"
    )
