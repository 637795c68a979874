"""Everything is timed by one rule: by rounds that count for all, of which the calmest do, in bounded time."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_sdk.machine import timing
from agent_sdk.machine.timing import (
    LEAST,
    MAX_REPEATS,
    MIN_REPEATS,
    Timing,
    Turn,
    counted,
    measure,
    summarise,
    take_turns,
    usual,
)
from agent_sdk.machine.witness import SLOW, Witness

KINDS = ("one core", "gang", "other gang")
ROUNDS = 9
MOST = 3 * ROUNDS
WITNESS = cast(Witness, object())
"""Stands for one whose looks are scripted."""

TURNS = st.builds(
    Turn,
    us=st.floats(1, 1e6),
    slowness=st.sampled_from([1.0, 1.1, 1.15, SLOW, 1.21, 2.0, 3.0]),
    waited=st.sampled_from([1.0, 1.0, 1.0, 1.25, 2.0]),
)
CALM = st.builds(Turn, us=st.floats(1, 1e6))
SCRIPTS = st.lists(
    st.one_of(st.fixed_dictionaries(dict.fromkeys(KINDS, TURNS)), st.fixed_dictionaries(dict.fromkeys(KINDS, CALM))),
    min_size=MOST,
    max_size=MOST,
)


@pytest.fixture
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn is whatever the call says it was."""
    monkeypatch.setattr(timing, "_turn", lambda call, witness, crowded: call())


@given(script=SCRIPTS)
def test_all_are_judged_by_the_same_rounds(script: list[dict[str, Turn]]) -> None:
    """What counts equals what the definition says: whole rounds, the calm ones or else the calmest third.

    How disturbed they were is what the usual turn of the call shows that was disturbed most.
    """
    scripts = {kind: iter([row[kind] for row in script]) for kind in KINDS}
    taken: Counter[str] = Counter()

    def play(kind: str) -> Turn:
        taken[kind] += 1
        return next(scripts[kind])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "_turn", lambda call, witness, crowded: call())
        found = take_turns({kind: partial(play, kind) for kind in KINDS}, rounds=ROUNDS, witness=WITNESS)
    calm = [all(own.disturbance <= SLOW for own in row.values()) for row in script]
    made = next((n for n in range(ROUNDS, MOST) if sum(calm[:n]) >= LEAST), MOST)
    assert taken == dict.fromkeys(KINDS, made)
    worst = sorted((max(own.disturbance for own in row.values()), index) for index, row in enumerate(script[:made]))
    count = sum(calm[:made]) if sum(calm[:made]) >= LEAST else made // 3
    chosen = [script[index] for _, index in worst[:count]]
    slowness = sorted(own.slowness for row in chosen for own in row.values())
    waited = [sorted(row[kind].waited for row in chosen)[len(chosen) // 2] for kind in KINDS]
    assert found.disturbance == slowness[len(slowness) // 2] * max(waited)
    for kind in KINDS:
        assert found.us(kind) == [row[kind].us for row in chosen]


@pytest.mark.usefixtures("_scripted")
def test_other_work_beside_the_gang_spoils_the_round_for_all() -> None:
    """A single core's turns do not count because they happened to be calm where the gang's were not."""
    taken: Counter[str] = Counter()

    def play(name: str) -> Turn:
        taken[name] += 1
        disturbed = taken[name] % 2 == 1
        return Turn(us=taken[name], waited=2.0 if disturbed and name == "gang" else 1.0)

    found = take_turns({name: partial(play, name) for name in ("single", "gang")}, rounds=8, witness=WITNESS)
    assert set(found.us("single")) == {2, 4, 6, 8}


def clocked(monkeypatch: pytest.MonkeyPatch, disturbance: float) -> tuple[dict[str, Callable[[], Turn]], Counter[str]]:
    """Turns that take a second each on a clock of their own, and how many were taken."""
    taken: Counter[str] = Counter()
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: float(taken.total())))

    def play(kind: str) -> Turn:
        taken[kind] += 1
        return Turn(float(taken[kind]), slowness=disturbance)

    return {kind: partial(play, kind) for kind in KINDS}, taken


@pytest.mark.usefixtures("_scripted")
@pytest.mark.parametrize("disturbance", [1.0, 2 * SLOW])
@pytest.mark.parametrize(
    ("share", "deadline", "turns", "rounds"),
    [(0, 0, 3, 1), (0, 5, 5, 1), (0, 99, 9, 3), (14, 99, 14, 4), (15, 99, 15, 5), (99, 16, 16, 5)],
)
def test_turns_end_in_time(
    disturbance: float, share: float, deadline: float, turns: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least rounds may overrun the share, the first the deadline; a round cut short counts for nobody."""
    plays, taken = clocked(monkeypatch, disturbance)
    found = take_turns(plays, rounds=ROUNDS, share=share, deadline=deadline, witness=WITNESS)
    assert taken.total() == turns
    counts = rounds if disturbance <= SLOW and rounds >= LEAST else min(rounds, LEAST)
    assert {len(own) for own in found.counted.values()} == {counts}


@pytest.mark.usefixtures("_scripted")
@pytest.mark.parametrize(("disturbance", "rounds"), [(1.0, ROUNDS), (2 * SLOW, MOST)])
def test_a_machine_that_is_never_calm_gets_more_rounds_but_not_for_ever(
    disturbance: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quiet machine is done after the usual rounds; a disturbed one looks longer, and then takes the calmest."""
    plays, taken = clocked(monkeypatch, disturbance)
    found = take_turns(plays, rounds=ROUNDS, witness=WITNESS)
    assert taken == dict.fromkeys(KINDS, rounds)
    assert {len(own) for own in found.counted.values()} == {ROUNDS}
    assert found.disturbance == disturbance


@pytest.mark.usefixtures("_scripted")
def test_without_a_witness_every_round_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load it is load that is to be measured; and at least for as long as asked."""
    plays, taken = clocked(monkeypatch, 1.0)
    found = take_turns(plays, rounds=2, least_s=12.0)
    assert taken.total() == 12
    assert {len(own) for own in found.counted.values()} == {4}


@pytest.mark.usefixtures("_scripted")
def test_who_fails_is_left_out_of_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those before; the others have their turns, and what nobody announced is raised."""
    plays, taken = clocked(monkeypatch, 1.0)
    first = plays["gang"]

    def fail() -> Turn:
        if first() and taken["gang"] == 3:
            raise OSError("gone")
        return Turn(1.0)

    found = take_turns(plays | {"gang": fail}, rounds=ROUNDS, failing=(OSError,))
    assert found.counted.keys() == {"one core", "other gang"}
    assert [str(error) for error in found.failures.values()] == ["gone"]
    assert taken == {"one core": ROUNDS, "gang": 3, "other gang": ROUNDS}
    taken["gang"] = 2
    assert take_turns({"gang": fail}, rounds=1, failing=(OSError,)).counted == {}
    taken["gang"] = 2
    with pytest.raises(OSError, match="gone"):
        take_turns({"gang": fail}, rounds=1)


@pytest.mark.parametrize(
    ("looks", "waited", "disturbance"),
    [((1.0, 1.5), 1.0, 1.5), ((1.5, 1.0), 1.0, 1.5), ((1.0, 1.0), 2.0, 2.0), ((1.5, 1.25), 2.0, 3.0)],
)
def test_a_turn_is_two_runs_and_tells_slow_cores_and_waiting(
    looks: tuple[float, float], waited: float, disturbance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run counts, with the worse of both looks, and the longer for having been kept waiting."""
    seen, results = iter(looks), iter("ab")
    witness = Witness()
    monkeypatch.setattr(witness, "slowness", lambda *, rest=False: next(seen))
    monkeypatch.setattr(witness, "kept_waiting", lambda call: (call(), waited))
    found = take_turns({"": lambda: next(results)}, rounds=1, most=1, witness=witness)
    assert [(turn.result, turn.disturbance) for turn in found.counted[""]] == [("b", disturbance)]


def test_what_the_kernel_says_of_crowded_calls_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of one call that wait for one another's cores disturb nobody."""
    witness = Witness()
    monkeypatch.setattr(witness, "slowness", lambda *, rest=False: 1.0)
    monkeypatch.setattr(witness, "kept_waiting", lambda call: (call(), 2.0))
    found = take_turns(
        {"plan": lambda: "a", "single": lambda: "b"}, rounds=1, most=1, witness=witness, crowded="plan".__eq__
    )
    told = {name: [(turn.result, turn.disturbance) for turn in turns] for name, turns in found.counted.items()}
    assert told == {"plan": [("a", 1.0)], "single": [("b", 2.0)]}


@given(st.lists(st.sampled_from([1.0, 1.1, SLOW, 1.21, 1.5, 2.0, 9.0]), max_size=30), st.integers(1, 12))
def test_nothing_calmer_is_left_out(disturbance: list[float], least: int) -> None:
    """However calm the machine was, none that counts is less calm than one that does not, and enough of them count."""
    chosen = counted(disturbance, least)
    assert len(set(chosen)) == len(chosen)
    left = [value for index, value in enumerate(disturbance) if index not in chosen]
    assert all(disturbance[index] <= value for index in chosen for value in left)
    calm = [value for value in disturbance if value <= SLOW]
    if len(calm) >= least:
        assert sorted(calm) == sorted(disturbance[index] for index in chosen)
    else:
        assert len(chosen) == min(len(disturbance), max(least, len(disturbance) // 3))


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=40))
def test_the_figure_is_a_low_middle(samples: list[float]) -> None:
    """It lies between the minimum and the median, whatever the samples' order, and counts them all."""
    found = summarise(samples)
    assert min(samples) <= found.us <= statistics.median(samples)
    assert found == summarise(sorted(samples, reverse=True))
    assert found.count == len(samples)


@given(st.lists(st.floats(10, 11), min_size=2, max_size=2), st.sampled_from([0.0, 1e6]))
def test_of_three_the_usual_is_the_middle_one(near: list[float], odd: float) -> None:
    """Of a long network no more than three rounds may count."""
    assert 10 <= usual([*near, odd]).us <= 11


@given(st.lists(st.floats(10, 11), min_size=6, max_size=20), st.lists(st.sampled_from([0.0, 1e6]), max_size=2))
def test_the_usual_is_among_most(most: list[float], odd: list[float]) -> None:
    """A few odd ones, on whichever side, change little; of equal ones nothing is lost."""
    assert usual([*most, *odd]).us == pytest.approx(10.5, abs=0.5)
    assert usual([most[0]] * len(most)) == Timing(pytest.approx(most[0]), pytest.approx(0.0), len(most))


@given(st.lists(st.floats(10, 11), min_size=6, max_size=20), st.lists(st.floats(1e3, 1e6), max_size=5))
def test_interruptions_do_not_show(quiet: list[float], disturbed: list[float]) -> None:
    """As long as fewer than half of the samples were disturbed the figure is one of the undisturbed."""
    assert 10 <= summarise([*disturbed, *quiet]).us <= 11


def test_repetition_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short calls are repeated up to the limit, long ones until there is enough, and one counts after the end."""
    now, calls = [0], list[int]()

    def call(us: int) -> None:
        now[0] += 1000 * us
        calls.append(us)

    clocks = SimpleNamespace(perf_counter_ns=lambda: now[0], monotonic=lambda: now[0] / 1e9)
    monkeypatch.setattr(timing, "time", clocks)
    for us, enough_us, count in (
        (10, 15_000.0, MAX_REPEATS),
        (500, 15_000.0, 30),
        (5_000, 1.0, MIN_REPEATS),
        (100_000, 1.0, LEAST),
    ):
        calls.clear()
        assert measure(partial(call, us), deadline=math.inf, enough_us=enough_us) == Timing(us, 0.0, count)
        assert len(calls) == count + 1
    assert measure(partial(call, 10), deadline=now[0] / 1e9).count == 1
