"""Taking turns: every kind of processor is judged by the same rounds, of which the calmest count, in bounded time."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_sdk.measure import turns
from agent_sdk.measure.steady import SLOW, Witness
from agent_sdk.measure.turns import LEAST_ROUNDS, MOST_ROUNDS, ROUNDS, Turn, take_turns, turn
from agent_sdk.runtimes import Processor, ProcessorLost

KINDS = ("one core", "gang", "other gang")

TURNS = st.builds(Turn, us=st.floats(1, 1e6), slowness=st.sampled_from([1.0, 1.1, 1.15, SLOW, 1.21, 1.9, 2.0, 3.0]))
SCRIPTS = st.lists(
    st.one_of(
        st.fixed_dictionaries(dict.fromkeys(KINDS, TURNS)),
        st.fixed_dictionaries({kind: st.builds(Turn, us=st.floats(1, 1e6), slowness=st.just(1.0)) for kind in KINDS}),
    ),
    min_size=MOST_ROUNDS,
    max_size=MOST_ROUNDS,
)


@given(SCRIPTS)
def test_all_kinds_are_judged_by_the_same_rounds(script: list[dict[str, Turn]]) -> None:
    """Figures equal those worked out from the definition: whole rounds, the calm ones or else the calmest third."""
    scripts = {kind: iter([row[kind] for row in script]) for kind in KINDS}
    taken: Counter[str] = Counter()

    def play(kind: str) -> Turn:
        taken[kind] += 1
        return next(scripts[kind])

    found, slowness = take_turns({kind: partial(play, kind) for kind in KINDS}, math.inf, math.inf)

    calm = [all(own.slowness <= SLOW for own in row.values()) for row in script]
    made = next((n for n in range(ROUNDS, MOST_ROUNDS) if sum(calm[:n]) >= LEAST_ROUNDS), MOST_ROUNDS)
    assert taken == dict.fromkeys(KINDS, made)
    worst = [(max(own.slowness for own in row.values()), index) for index, row in enumerate(script[:made])]
    count = sum(calm[:made]) if sum(calm[:made]) >= LEAST_ROUNDS else made // 3
    chosen = [script[index] for _, index in sorted(worst)[:count]]
    assert slowness == max(own.slowness for row in chosen for own in row.values())
    for kind in KINDS:
        faster = sorted(row[kind].us for row in chosen)[: math.ceil(count / 2)]
        assert found[kind].us == pytest.approx(statistics.median(faster))
        assert found[kind].count == count


def test_other_work_beside_the_gang_spoils_the_round_for_all() -> None:
    """A single core's turns do not count because they happened to be calm where the gang's were not."""
    rounds = 0

    def single() -> Turn:
        return Turn(100.0 if rounds % 2 else 50.0, 1.0)

    def gang() -> Turn:
        nonlocal rounds
        rounds += 1
        return Turn(60.0, 1.0) if rounds % 2 == 0 else Turn(120.0, 2.0)

    found, _ = take_turns({"single": single, "gang": gang}, math.inf, math.inf)
    assert (found["single"].us, found["gang"].us) == (100.0, 60.0)


def clocked(monkeypatch: pytest.MonkeyPatch, slowness: float) -> tuple[dict[str, Callable[[], Turn]], Counter[str]]:
    """Turns that take a second each on a clock of their own, and how many were taken."""
    taken: Counter[str] = Counter()
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: float(taken.total())))

    def play(kind: str) -> Turn:
        taken[kind] += 1
        return Turn(float(taken[kind]), slowness)

    return {kind: partial(play, kind) for kind in KINDS}, taken


@pytest.mark.parametrize("slowness", [1.0, 2 * SLOW])
@pytest.mark.parametrize(
    ("share", "deadline", "turns_taken", "rounds"),
    [
        (0.0, 0.0, 3, 1),
        (0.0, 5.0, 5, 1),
        (0.0, 99.0, 9, 3),
        (14.0, 99.0, 14, 4),
        (15.0, 99.0, 15, 5),
        (99.0, 16.0, 16, 5),
    ],
)
def test_turns_end_in_time(
    slowness: float, share: float, deadline: float, turns_taken: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least rounds may overrun the share, the first the deadline; a round cut short counts for nobody."""
    plays, taken = clocked(monkeypatch, slowness)
    found, _ = take_turns(plays, share, deadline)
    assert taken.total() == turns_taken
    counted = rounds if slowness <= SLOW and rounds >= LEAST_ROUNDS else min(rounds, LEAST_ROUNDS)
    assert {timing.count for timing in found.values()} == {counted}


@pytest.mark.parametrize(("slowness", "rounds"), [(1.0, ROUNDS), (2 * SLOW, MOST_ROUNDS)])
def test_a_machine_that_is_never_calm_gets_more_rounds_but_not_for_ever(
    slowness: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quiet machine is done after the usual rounds; a disturbed one looks longer, and then takes the calmest."""
    plays, taken = clocked(monkeypatch, slowness)
    found, worst = take_turns(plays, math.inf, math.inf)
    assert taken == dict.fromkeys(KINDS, rounds)
    assert {timing.count for timing in found.values()} == {ROUNDS}
    assert worst == slowness


def test_who_fails_is_left_out_of_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those before; the others have their turns, and where all fail there is no figure."""
    plays, taken = clocked(monkeypatch, 1.0)
    first = plays["gang"]

    def fail() -> Turn:
        if first() and taken["gang"] == 3:
            raise ProcessorLost("gone")
        return Turn(1.0, 1.0)

    found, _ = take_turns(plays | {"gang": fail}, math.inf, math.inf)
    assert found.keys() == {"one core", "other gang"}
    assert taken == {"one core": ROUNDS, "gang": 3, "other gang": ROUNDS}
    taken.clear()
    taken["gang"] = 2
    assert take_turns({"gang": fail}, math.inf, math.inf)[0] == {}


def test_one_clock_for_all(processors: list[Processor]) -> None:
    """On every kind a turn takes the time that passes, also where nothing is computed on the calling thread."""
    with Witness() as witness:
        for processor in processors:
            assert turn(processor, lambda: time.sleep(0.005), witness).us >= 5_000.0, processor.id


@pytest.mark.parametrize(
    ("looks", "waited", "slowness"),
    [((1.0, 1.5), 1.0, 1.5), ((1.5, 1.0), 1.0, 1.5), ((1.0, 1.0), 2.0, 2.0), ((1.5, 1.25), 2.0, 3.0)],
)
def test_a_turn_tells_slow_cores_and_waiting(
    looks: tuple[float, float],
    waited: float,
    slowness: float,
    processors: list[Processor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worse of both looks, and the longer for having been kept waiting."""
    seen = iter(looks)
    witness = Witness()
    monkeypatch.setattr(witness, "slowness", lambda seconds=0.0: next(seen))
    monkeypatch.setattr(witness, "kept_waiting", lambda call: (call(), waited))
    assert turn(processors[0], lambda: None, witness).slowness == slowness
