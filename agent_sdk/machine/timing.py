"""How anything is timed: calls take turns, and a machine that is disturbed disturbs all of them alike.

One rule for everything that is measured here: a super-op alone, whole networks on every processor, a plan beside its
rivals, the benchmarks. A *turn* is two runs, the second of which is timed: the first brings back into the caches what
others pushed out. A *round* gives every call one turn, in an order drawn anew. Whole rounds count, or do not: other
work on one core leaves that core's neighbours alone but keeps a gang waiting, so judged turn by turn a single core's
would count and stand beside a gang whose turns were all disturbed. Calm rounds count; where they are too few, the
calmest third does.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from agent_sdk.cancel import check
from agent_sdk.machine.witness import Witness, calm, until_asleep

T = TypeVar("T")

LEAST: Final = 3
"""Calm rounds that are enough to leave out all others."""
MIN_REPEATS: Final = 5
MAX_REPEATS: Final = 60
ENOUGH_US: Final = 15_000.0
"""Once a single call was timed for so long, MIN_REPEATS times or more, its figure is good enough (unless said so)."""
LONG_US: Final = 250_000.0
"""Once it was timed for so long, LEAST times are enough: a long call averages out what disturbs it."""


@dataclass(frozen=True)
class Timing:
    """A latency in microseconds: ``us`` and its median absolute deviation, over ``count`` runs."""

    us: float
    spread_us: float
    count: int


NOTHING: Final = Timing(0.0, 0.0, 1)
"""What takes no time."""


@dataclass(frozen=True)
class Turn:
    """One timed run.

    Attributes:
        us: wall time, microseconds.
        result: what the call returned.
        slowness: of the cores just before and after, as ``Witness.slowness`` tells.
        waited: how many times too long it took because other work kept it from its cores; infinite where it had not
            all that it runs on to itself.
    """

    us: float
    result: Any = None
    slowness: float = 1.0
    waited: float = 1.0

    @property
    def disturbance(self) -> float:
        """How many times too long it may have taken: waiting tells also where strangers slow the cores all the time."""
        return self.slowness * self.waited


@dataclass
class Turns:
    """What taking turns found.

    Attributes:
        counted: by name the turns that count, in the same rounds for all.
        disturbance: of those turns the usual slowness, times how long the call usually waited that waited most; 1 for
            none. A figure is what usual turns take, so that of many turns on many cores a few were not calm says
            nothing of it; and how slow the cores are has to do with no call: of many calls with few turns each, one
            would always have had most of its turns beside a stranger.
        failures: by name what ended a call's part in it; it has no turns that count.
    """

    counted: dict[str, list[Turn]]
    disturbance: float = 1.0
    failures: dict[str, Exception] = field(default_factory=dict)

    def us(self, name: str) -> list[float]:
        return [turn.us for turn in self.counted[name]]


def take_turns(
    calls: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    calm_rounds: int = LEAST,
    most: int | None = None,
    least_s: float = 0.0,
    share: float = math.inf,
    deadline: float = math.inf,
    witness: Witness | None = None,
    failing: tuple[type[Exception], ...] = (),
    alone: Callable[[Any], bool] = lambda _: True,
    crowded: Callable[[str], bool] = lambda _: False,
) -> Turns:
    """Have every call take its turns.

    Args:
        calls: by name; what they return is kept with their turns.
        rounds: rounds made where enough of them are calm.
        calm_rounds: how many of them have to be calm for that to be enough.
        most: rounds made at most while too few are calm; by default three times ``rounds``.
        least_s: seconds to go on for in any case.
        share: moment (``time.monotonic``) after which no more than LEAST rounds are made.
        deadline: moment after which nobody but those of the first round has a turn.
        witness: tells how disturbed the cores were; without one all rounds count.
        failing: exceptions that end a call's part, in all rounds; any other is raised.
        alone: whether a run had what it runs on to itself, by what it returned: one that had not is no calm one.
        crowded: whether a call's own threads wait for one another's cores, by its name: the kernel's word on waiting is
            not asked there. Others of the round tell of other processes.
    """
    left = dict(calls)
    made: list[dict[str, Turn]] = []
    failures: dict[str, Exception] = {}
    most = 3 * rounds if most is None else most
    draw = random.Random(0)
    began = time.monotonic()

    def disturbed() -> list[float]:
        return [max((taken[name].disturbance for name in left), default=1.0) for taken in made]

    def enough() -> bool:
        quiet = witness is None or sum(map(calm, disturbed())) >= min(calm_rounds, rounds)
        return len(made) >= (rounds if quiet else most) and time.monotonic() - began >= least_s

    while left and not enough():
        until = deadline if len(made) < LEAST else min(share, deadline)
        taken: dict[str, Turn] = {}
        for name in draw.sample(list(left), len(left)):
            check()
            if made and time.monotonic() >= until:
                break
            try:
                turn = _turn(left[name], witness, crowded(name))
                taken[name] = turn if alone(turn.result) else replace(turn, waited=math.inf)
            except failing as error:
                failures[name] = error
                del left[name]
        if not taken.keys() >= left.keys():  # cut short
            break
        made.append(taken)
    found = disturbed()
    chosen = counted(found, min(calm_rounds, rounds))
    turns = {name: [made[index][name] for index in chosen] for name in left}
    return Turns(turns, _disturbance([own for own in turns.values() if own]), failures)


def _disturbance(turns: Sequence[Sequence[Turn]]) -> float:
    """As ``Turns`` tells it, by call the turns that count."""
    if not turns:
        return 1.0
    slowness = statistics.median_high(turn.slowness for own in turns for turn in own)
    return slowness * max(statistics.median_high(turn.waited for turn in own) for own in turns)


def _turn(call: Callable[[], Any], witness: Witness | None, crowded: bool) -> Turn:
    def twice() -> tuple[float, Any]:  # nothing between the two: whoever is woken by the first is awake in the second
        call()
        return timed(call)

    if witness is None:
        return Turn(*twice())
    until_asleep()
    before = witness.slowness(rest=True)
    (us, result), waited = (twice(), 1.0) if crowded else witness.kept_waiting(twice)
    return Turn(us, result, max(before, witness.slowness()), waited)


def counted(disturbance: Sequence[float], least: int) -> list[int]:
    """Which of several measurements count, by the disturbance beside each: indices, the calmest first.

    All calm ones, or where they are fewer than ``least`` the calmest third, and at least ``least`` if there are so
    many.
    """
    calmest = sorted(range(len(disturbance)), key=disturbance.__getitem__)
    quiet = sum(map(calm, disturbance))
    return calmest[: quiet if quiet >= least else max(least, len(disturbance) // 3)]


def middle_half(runs: Sequence[T], us: Callable[[T], float]) -> list[T]:
    """The half of some runs that took neither the most nor the fewest microseconds: of rounds that count, the usual.

    Disturbed rounds are left out already, so to leave out the slower half as well would promise what is not delivered.
    """
    quarter = (len(runs) + 1) // 4  # of three the middle one
    return sorted(runs, key=us)[quarter : len(runs) - quarter]


def usual(samples_us: Sequence[float]) -> Timing:
    """The mean of the middle half, and the spread around it: what rounds that count take.

    Means add up as the parts of a run do, medians of parts come to less.
    """
    middle = middle_half(samples_us, us=float)
    centre = statistics.fmean(middle)
    return Timing(centre, statistics.median(abs(sample - centre) for sample in middle), len(samples_us))


def summarise(samples_us: Sequence[float]) -> Timing:
    """The median of the faster half, and the spread around it: what something takes that was timed without a witness.

    Interruptions only ever add time, so the faster half is the undisturbed half; its median is still robust against a
    single odd reading, which the minimum is not.
    """
    faster = sorted(samples_us)[: (len(samples_us) + 1) // 2]
    centre = statistics.median(faster)
    spread = statistics.median(abs(sample - centre) for sample in faster)
    return Timing(us=centre, spread_us=spread, count=len(samples_us))


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
    call: Callable[[], object],
    *,
    deadline: float,
    enough_us: float = ENOUGH_US,
    after: Callable[[], object] | None = None,
) -> Timing:
    """Time one call by itself on the calling thread, which must already be bound to its cores.

    Repeats until the figure is good enough or ``deadline`` (``time.monotonic``) has passed; at least one run counts.
    ``after`` is called after each run, untimed.
    """
    call()
    samples: list[float] = []
    while len(samples) < MAX_REPEATS:
        check()
        samples.append(timed(call)[0])
        if after is not None:
            after()
        total = sum(samples)
        enough = len(samples) >= (LEAST if total >= LONG_US else MIN_REPEATS) and total >= enough_us
        if enough or time.monotonic() >= deadline:
            break
    return summarise(samples)
