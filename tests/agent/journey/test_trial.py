"""The trial at load: whoever is fastest is found, in stages, and whoever fails is left out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_sdk.errors import SegmentFailedError
from agent_sdk.journey import trial
from agent_sdk.journey.trial import PLAN, SHORT_US, STAGES, WORTH, Trial, best_plan, first_choice, hold_trial, warm
from agent_sdk.machine.witness import SLOW, Witness
from tests.agent.haste import measure_hastily
from tests.agent.journey.scripted import Scripted


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted times do not depend on the machine."""
    measure_hastily(monkeypatch)
    monkeypatch.setattr(trial, "STAGES", STAGES)


def contenders(**times: float) -> dict[str, Any]:
    """Scripted contenders."""
    return {name: Scripted(us) for name, us in times.items()}


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.sampled_from([PLAN, "a", "b", "c"]), st.floats(1, 1e6), min_size=1))
def test_the_fastest_is_found(times: dict[str, float]) -> None:
    """With what everyone takes; the plan wins ties."""
    found = hold_trial(contenders(**times), {})
    assert found.us == pytest.approx(times)
    assert times[found.best] == min(times.values())
    if times.get(PLAN) == min(times.values()):
        assert found.best == PLAN


@pytest.mark.parametrize("plain", ["onnxruntime", "onnxruntime/8", "openvino"])
def test_a_plan_has_to_be_worth_it(plain: str) -> None:
    """Against a runtime as its users run it, what is only as good as a trial's error does not answer."""
    assert first_choice({PLAN: 98.0, "ort@0-7": 99.0, plain: 100.0}) == plain
    assert first_choice({PLAN: 96.0, "ort@0-7": 99.0, plain: 100.0}) == PLAN


@given(st.lists(st.tuples(st.floats(1, 1e3), st.floats(1, 1e3)), min_size=1, max_size=4), st.booleans())
def test_the_best_of_several_plans(drawn: list[tuple[float, float]], alone: bool) -> None:
    """None is more than 3 % better beside its rivals, and none later is as good."""
    trials = [Trial({PLAN: us} if alone else {PLAN: us, "a": rival}, {}, True, {}) for us, rival in drawn]
    ratios = [us if alone else us / rival for us, rival in drawn]
    chosen = best_plan(trials)
    assert ratios[chosen] * WORTH <= min(ratios)
    assert all(ratio * WORTH > min(ratios) for ratio in ratios[chosen + 1 :])


def test_those_who_may_be_best_run_most() -> None:
    """Whoever is far behind runs in the first stage only, whoever is close in all of them; each turn is two runs."""
    own = contenders(plan=104, a=100, b=120, slow=1000)
    found = hold_trial(own, {})
    first, second, third = (rounds for rounds, _ in STAGES)
    assert found.best == "a"
    assert own["slow"].runs == 2 * first
    assert own["b"].runs == 2 * (first + second)
    assert own["a"].runs == own[PLAN].runs == 2 * (first + second + third)
    assert {name: len(traces) for name, traces in found.traces.items()} == {
        "slow": first,
        "b": second,
        "a": third,
        PLAN: third,
    }


@pytest.mark.parametrize(("us", "stages"), [(SHORT_US / 2, 3), (SHORT_US * 2, 1)])
def test_a_short_plan_goes_on_alone(us: float, stages: int) -> None:
    """What it takes is told by its later runs where these are cheap, as a GPU's first ones are slow."""
    own = contenders(plan=us, slow=us * 10)
    own[PLAN].slow_down = (2 * STAGES[0][0], 0.5)
    found = hold_trial(own, {})
    assert own[PLAN].runs == 2 * sum(rounds for rounds, _ in STAGES[:stages])
    assert own["slow"].runs == 2 * STAGES[0][0]
    assert found.us[PLAN] == pytest.approx(us / 2 if stages > 1 else us)


def test_a_machine_that_slows_down_meanwhile_favours_nobody() -> None:
    """Who was not close cannot win because the others went on in a slower moment, nor do these seem slower later."""
    own = contenders(plan=100, a=101, b=120)
    for name in (PLAN, "a"):
        own[name].slow_down = (2 * (STAGES[0][0] + STAGES[1][0]), 1.3)
    found = hold_trial(own, {})
    assert found.best == PLAN
    assert found.us == pytest.approx({PLAN: 130, "a": 131.3, "b": 156})


@pytest.mark.parametrize("slowness", [1.0, 2 * SLOW])
def test_a_disturbed_trial_says_so(slowness: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are worth keeping only if the cores were undisturbed."""
    monkeypatch.setattr(Witness, "slowness", lambda self, *, rest=False: slowness)
    assert hold_trial(contenders(plan=100), {}).calm is (slowness == 1.0)


def test_who_fails_is_left_out() -> None:
    """The others are timed all the same; if nobody is left the first failure is raised."""
    own = contenders(plan=100, a=120)
    own[PLAN].fails = True
    answers, failures = warm(own, {})
    assert (answers.keys(), failures.keys()) == ({"a"}, {PLAN})
    found = hold_trial(own, {})
    assert (found.us, found.failures.keys()) == ({"a": 120}, {PLAN})
    own["a"].fails = True
    with pytest.raises(SegmentFailedError):
        hold_trial(own, {})


def test_who_was_far_behind_is_left_when_the_nearest_fail() -> None:
    """Nobody else was tried further; what was found of it before still holds."""
    own = contenders(plan=100, near=110, far=1000)
    for name in (PLAN, "near"):
        own[name].lives = 2 * STAGES[0][0]
    found = hold_trial(own, {})
    assert (found.us, found.failures.keys()) == ({"far": 1000}, {PLAN, "near"})


def test_a_single_stage_times_everyone_alike() -> None:
    """As a report wants it: as many runs of each as asked for."""
    found = hold_trial(contenders(plan=100, slow=1000), {}, [(5, 1.0)])
    assert {name: len(traces) for name, traces in found.traces.items()} == {PLAN: 5, "slow": 5}
    assert [trace.total_us for trace in found.traces["slow"]] == [1000] * 5
