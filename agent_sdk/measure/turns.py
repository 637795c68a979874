"""Several processors time the same network in turns, so that the planner compares like with like.

What slows the machine for a while slows all of them alike, and all are timed by one clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from agent_sdk.device.cores import bound_to
from agent_sdk.errors import ProcessorError
from agent_sdk.measure.steady import PAUSE_S, Witness, calm, counted
from agent_sdk.measure.timing import Timing, summarise, timed
from agent_sdk.runtimes import Processor

log = logging.getLogger(__name__)

LEAST_ROUNDS: Final = 3
"""Rounds that are worth overrunning a share of the budget, and calm rounds that are enough to leave out all others."""
ROUNDS: Final = 9
"""Rounds, in which each processor has one turn: of those that count, the median of the faster half is its figure."""
MOST_ROUNDS: Final = 3 * ROUNDS
"""Rounds at most, while too few are calm: the calmest third of them are then as many as there are otherwise."""


@dataclass(frozen=True)
class Turn:
    """One run: wall time in microseconds, and how many times too long it may have taken by what was seen beside it."""

    us: float
    slowness: float


def take_turns(
    turns: Mapping[str, Callable[[], Turn]], share: float, deadline: float
) -> tuple[dict[str, Timing], float]:
    """Let each turn be taken once per round; the figure of each, and the worst slowness beside what these rest on.

    Whole rounds count, or do not. Other work on one core leaves the other one alone but keeps a gang waiting: were
    turns judged one by one, the single core's would count and stand beside a gang whose turns were all disturbed.

    More rounds are made while too few were calm. After ``share`` (``time.monotonic``) there are none beyond the
    least, after ``deadline`` none beyond the first. Who raises ProcessorError has no figure.
    """
    left = dict(turns)
    rounds: list[dict[str, Turn]] = []

    def slowness() -> list[float]:
        return [max(taken[name].slowness for name in left) for taken in rounds]

    while left and len(rounds) < (ROUNDS if sum(map(calm, slowness())) >= LEAST_ROUNDS else MOST_ROUNDS):
        until = deadline if len(rounds) < LEAST_ROUNDS else min(share, deadline)
        taken: dict[str, Turn] = {}
        for name in list(left):
            if rounds and time.monotonic() >= until:
                break
            try:
                taken[name] = left[name]()
            except ProcessorError as error:
                log.warning("not measured: %s", error)
                del left[name]
        if taken.keys() < left.keys():  # cut short
            break
        rounds.append(taken)
    if not left:
        return {}, 1.0
    found = slowness()
    chosen = counted(found, LEAST_ROUNDS)
    figures = {name: summarise([rounds[index][name].us for index in chosen]) for name in left}
    return figures, max(found[index] for index in chosen)


def turn(processor: Processor, call: Callable[[], None], witness: Witness) -> Turn:
    """One run after one to warm up, looked at before and after.

    Wall time on all processors: CPU time would leave out what other work costs a single core, but not what it costs
    a gang, whose workers' time nobody can read.
    """
    before = witness.slowness(PAUSE_S)  # in which the workers of the turn before fall asleep
    with bound_to(processor.caller_cores):
        call()
        (us, _), waited = witness.kept_waiting(partial(timed, call))
    # A product, so that waiting tells also where strangers slow the cores all the time.
    return Turn(us, waited * max(before, witness.slowness()))
