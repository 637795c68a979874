"""Never slower: the fastest contender here and now answers, under any history of times and failures."""

from __future__ import annotations

import logging
import sys
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import RLock
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_sdk.errors import DeviceClosedError, FeedError, RunTimeoutError, SegmentFailedError
from agent_sdk.journey.comparison import RUNS, WON
from agent_sdk.journey.plans import Plans
from agent_sdk.journey.prepared import MISJUDGED, MORE, RARELY, WINDOW, Prepared
from agent_sdk.journey.trial import PLAN, WORTH
from tests.agent.journey.scripted import Scripted
from tests.agent.models import prepared_of


def served(**times: float) -> tuple[Prepared, dict[str, Scripted]]:
    """Scripted contenders that have been tried."""
    own: dict[str, Any] = {name: Scripted(us) for name, us in times.items()}
    return prepared_of(own, times), own


def test_counts_are_read_while_others_answer() -> None:
    """Whoever answers for the first time does not disturb who looks at what was answered."""
    plans, ours = object.__new__(Plans), SimpleNamespace(answered=Counter(), switches=0)
    plans.lock, plans._models, plans._answered, plans._switches = RLock(), {(): ours}, Counter(), 0
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as runs:
            answering = runs.submit(lambda: [ours.answered.update([str(number)]) for number in range(5000)])
            while not answering.done():
                assert sum(plans.stats.answered.values()) <= 5000
    finally:
        sys.setswitchinterval(before)
    assert sum(plans.stats.answered.values()) == 5000


def test_load_is_noticed_and_outlived(caplog: pytest.LogCaptureFixture) -> None:
    """When the plan slows down, the next requests find who is faster now; when the load goes, the plan returns.

    Each change is logged.
    """
    caplog.set_level(logging.INFO, "agent_sdk")
    ours, own = served(plan=100, a=120, b=150)
    own[PLAN].us, own["a"].us, own["b"].us = 400, 300, 160
    for _ in range(WINDOW + 3 * RUNS * WON[0]):
        ours.run({})
    assert ours.current == "b"
    assert "under the present load" in ours.changes[-1]
    own[PLAN].us, own["a"].us, own["b"].us = 100, 120, 150
    for _ in range(2 * WINDOW + 2 * RUNS * WON[0]):
        ours.run({})
    assert ours.current == PLAN
    assert [record.getMessage() for record in caplog.records] == list(ours.changes)
    assert len(ours.changes) == 2
    assert ours.switches >= 2


def test_jitter_is_no_drift() -> None:
    """Runs that spread by a tenth around what is usual are answered by the fastest, nearly all of them."""
    ours, own = served(plan=100, a=120, b=130)
    spread = np.random.default_rng(0).lognormal(sigma=0.12, size=(4000, 3))
    for factors in spread:
        own[PLAN].us, own["a"].us, own["b"].us = np.array([100, 120, 130]) * factors
        ours.run({})
    assert ours.answered[PLAN] > 0.95 * len(spread)


@pytest.mark.parametrize("seed", range(6))
def test_switches_are_rare_on_a_noisy_machine(seed: int) -> None:
    """Beside other work that comes and goes, equals stay with who answers: each switch costs evidence."""
    ours, own = served(plan=100, a=102, b=105)
    draw = np.random.default_rng(seed)
    busy = False
    for _ in range(2600):
        busy ^= draw.random() < 0.02
        for one, us in zip(own.values(), (100, 102, 105), strict=True):
            one.us = us * draw.lognormal(sigma=0.3) * (1.0 + busy * draw.uniform(0.0, 2.0))
        ours.run({})
    assert ours.switches < 0.05 * 2600
    assert len(ours.changes) <= 6


def test_each_switch_back_takes_more_rounds() -> None:
    """Two that are faster in turns are told apart at the price of ever more rounds, up to a bound."""
    ours, own = served(plan=100, a=100)
    prices = []
    for turn in range(2 * MORE + 4):
        own[PLAN].us, own["a"].us = (300, 100) if turn % 2 == 0 else (100, 300)
        before = own[ours.current].runs + own["a" if ours.current == PLAN else PLAN].runs
        there, rounds = ours.current, 0
        while ours.current == there:
            other = own["a" if there == PLAN else PLAN]
            had = other.runs
            ours.run({})
            rounds += other.runs - had
        prices.append(rounds)
        assert before < 20_000
    assert prices[0] == RUNS * WON[0]
    assert prices == sorted(prices)
    assert prices[-1] == RUNS * (WON[0] + MORE)


def test_what_others_did_is_no_evidence() -> None:
    """Runs that stood at the arbiter neither begin a comparison nor decide one, and the fleet is not told of them."""
    sample: deque[float] = deque()
    own: dict[str, Any] = {name: Scripted(100, alone=False) for name in (PLAN, "a")}
    ours = prepared_of(own, dict.fromkeys(own, 100.0), sample=sample)
    own[PLAN].us = 500
    for _ in range(3 * RARELY):
        ours.run({})
    assert own["a"].runs == 0
    own[PLAN].alone = True
    for _ in range(WINDOW + 4 * RUNS * WON[0]):
        ours.run({})
    assert own["a"].runs > 0
    assert ours.current == PLAN
    assert sample
    assert set(sample) == {500.0}
    assert len(sample) == own[PLAN].runs - 3 * RARELY


def test_a_callers_own_time_limit_is_nobodys_failure() -> None:
    """What a caller does not wait for is not the plan's fault: nothing changes, and the fleet hears nothing."""
    sample: deque[float] = deque()
    own: dict[str, Any] = {name: Scripted(100) for name in (PLAN, "a")}
    ours = prepared_of(own, dict.fromkeys(own, 100.0), sample=sample)
    own[PLAN].raises = RunTimeoutError("earlier runs of this session took all of the time allowed")
    for _ in range(4 * WINDOW):
        with pytest.raises(RunTimeoutError):
            ours.run({}, timeout_s=0.001)
    assert (ours.current, own["a"].runs, list(sample), list(ours.changes)) == (PLAN, 0, [], [])


def test_a_plan_that_makes_room_has_not_failed() -> None:
    """A run that finds the plan closed and another contender not yet is answered, and the fleet hears of no failure."""
    sample: deque[float] = deque()
    own: dict[str, Any] = {name: Scripted(us) for name, us in (("a", 200), (PLAN, 100))}
    ours = prepared_of(own, {PLAN: 100.0, "a": 200.0}, sample=sample)

    def close() -> None:
        if own[PLAN].raises is None:
            own[PLAN].raises = DeviceClosedError("the session is closed")
            ours.run({})

    ours.run({})
    own[PLAN].close = close
    ours.close()
    assert (own["a"].runs, list(sample)) == (1, [100])


def test_a_comparison_outlives_who_is_dropped_meanwhile() -> None:
    """A contender that another thread drops while its turn begins does not keep a comparison from its end."""
    ours, own = served(plan=100, a=120, b=150)
    own[PLAN].us, own["b"].us = 400, 200
    for _ in range(WINDOW):
        ours.run({})
    taken = ours._contenders
    gone = taken.pop("a")  # as ``_drop`` does, between the choice of who runs and the look for it
    ours._contenders = {**taken}
    assert gone.runs == 0
    for _ in range(2 * RUNS * WON[0]):
        ours.run({})
    assert ours.current == "b"


def test_an_odd_run_misleads_nobody() -> None:
    """Beside other work single runs take twice as long or half: the middle one of a few decides."""
    ours, own = served(plan=100, a=120, b=150)
    own[PLAN].us, own["a"].us, own["b"].us = 300, 290, 200
    for _ in range(WINDOW):
        ours.run({})
    own["a"].us, own["b"].us = 190, 380
    for _ in range(3 * RUNS):
        ours.run({})
    own["a"].us, own["b"].us = 290, 200
    for _ in range(3 * RUNS * WON[1]):
        ours.run({})
    assert ours.current == "b"


def test_many_threads_share_a_trial() -> None:
    """Requests that come in at once each have one turn of it, all are answered, and it comes to an end."""
    ours, own = served(plan=100, a=120, b=110)
    own[PLAN].us, own["a"].us, own["b"].us = 400, 160, 300
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: ours.run({})[1].total_us, range(300)))
    assert set(answers) <= {400, 160, 300}
    assert ours.current == "a"
    assert answers.count(160) > 250


def test_a_short_disturbance_changes_nothing() -> None:
    """When the plan is fast again by the end of a trial, those who seemed faster in between do not replace it."""
    ours, own = served(plan=100, a=120)
    own[PLAN].us = 300
    for _ in range(WINDOW):
        ours.run({})
    assert ours.run({})[1].total_us == 120
    own[PLAN].us = 100
    for _ in range(2 * RUNS * WON[1]):
        ours.run({})
    assert ours.current == PLAN
    assert own["a"].runs <= 2 * RUNS
    assert not ours.changes


def test_lasting_load_is_tested_ever_more_rarely() -> None:
    """While the load lasts, the slowed plan answers a handful of requests in hundreds, to see whether it is back."""
    ours, own = served(plan=100, a=120)
    own[PLAN].us = 400
    for _ in range(WINDOW + 2 * RUNS * WON[0]):
        ours.run({})
    assert ours.current == "a"
    before = own[PLAN].runs
    for _ in range(256):
        ours.run({})
    assert ours.current == "a"
    assert 3 <= own[PLAN].runs - before <= 10


def test_quiet_times_are_left_alone() -> None:
    """Without a slowdown nobody else ever runs, and one slow run is not a slowdown."""
    ours, own = served(plan=100, a=120)
    before = own["a"].runs
    for turn in range(200):
        own[PLAN].us = 500 if turn % 10 == 0 else 105
        ours.run({})
    assert own["a"].runs == before
    assert ours.current == PLAN


PLAIN = "onnxruntime"


@given(st.floats(90, 114), st.floats(60, 200), st.floats(60, 200))
def test_a_trial_that_was_wrong_is_made_good(tried_us: float, plan_us: float, plain_us: float) -> None:
    """Whatever a near trial said: soon nobody answers who is slower than the runtime as its own users run it."""
    ours, own = served(**{PLAN: 100.0, PLAIN: tried_us})
    own[PLAN].us, own[PLAIN].us = plan_us, plain_us
    for _ in range(8 * (WINDOW + 2 * RUNS * WON[0])):
        ours.run({})
    assert own[ours.current].us <= plain_us


TIMES: Final = st.fixed_dictionaries({name: st.floats(40, 160) for name in (PLAN, PLAIN, "a", "b")})


@settings(max_examples=8, deadline=None)
@given(
    st.fixed_dictionaries({name: st.floats(100, 100 * MISJUDGED - 1) for name in (PLAN, PLAIN, "a", "b")}),
    TIMES,
    st.integers(0, 400),
    TIMES,
)
def test_no_wrong_choice_stays(
    tried: dict[str, float], once: dict[str, float], runs: int, now: dict[str, float]
) -> None:
    """Whatever a trial said, and whatever came between: nobody goes on answering who takes 3 % more than another."""
    ours, own = served(**tried)
    for times, count in ((once, runs), (now, 8 * RARELY)):
        for name, one in own.items():
            one.us = times[name]
        for _ in range(count):
            ours.run({})
    assert own[ours.current].us * WORTH <= min(now.values())


def test_who_slows_down_unnoticed_is_compared_too() -> None:
    """A contender that slows down by so little at a time that no drift tells makes room for those it was ahead of."""
    ours, own = served(plan=100, a=130)
    for slower in np.linspace(100, 200, 4000):
        own[PLAN].us = slower
        ours.run({})
    assert ours.current == "a"


@dataclass
class Caching(Scripted):
    """Takes longer where another one has run since: the caches then hold that one's tensors.

    Attributes:
        cold: how many times longer.
        name: its own.
        latest: who ran last, of all.
    """

    cold: float = 1.0
    name: str = ""
    latest: list[str] = field(default_factory=list)

    @property
    def total_us(self) -> float:
        """By who ran before."""
        before, self.latest[:] = list(self.latest), [self.name]
        return self.us * (1.0 if before == [self.name] else self.cold)


SQUEEZENET: Final = {"ort@0-1": (4120.0, 1.07), "openvino": (3626.0, 1.174)}
"""As recorded on two cores: microseconds of a run after a run of its own, and how many times longer after another's."""


@pytest.mark.parametrize("tried_us", [4300.0, 8944.0])
def test_a_runtime_that_is_faster_on_its_own_answers(tried_us: float) -> None:
    """Also where a run after another contender's takes longer than that one, and where a trial found it far behind."""
    latest: list[str] = []
    own: dict[str, Any] = {
        name: Caching(us, cold=cold, name=name, latest=latest) for name, (us, cold) in SQUEEZENET.items()
    }
    ours = prepared_of(own, {"ort@0-1": 3803.0, "openvino": tried_us})
    for _ in range(2 * WINDOW + RUNS * 2 * WON[0]):
        ours.run({})
    assert ours.current == "openvino"


def test_four_per_cent_faster_is_enough() -> None:
    """Rounds say that it is no chance; what answers may take 3 % more than the best."""
    ours, own = served(plan=100, a=104)
    own["a"].us = 96
    for _ in range(WINDOW + 2 * RUNS * WON[0]):
        ours.run({})
    assert ours.current == "a"


def test_a_near_rival_is_tried_ever_more_rarely() -> None:
    """While the first choice keeps to its time, its nearest rival answers a handful of requests in thousands."""
    ours, own = served(plan=100, a=110)
    for _ in range(4 * RARELY):
        ours.run({})
    assert ours.current == PLAN
    assert 3 <= own["a"].runs <= 36


def test_the_hopeless_are_not_tried_again() -> None:
    """A contender far slower when all was quiet than the plan is now never answers a request."""
    ours, own = served(plan=100, slow=1000, a=120)
    before = own["slow"].runs
    own[PLAN].us = 400
    for _ in range(WINDOW + 2 * RUNS * WON[0]):
        ours.run({})
    assert own["slow"].runs == before
    assert ours.current == "a"


def test_a_dying_processor_costs_no_request() -> None:
    """A failing contender is dropped and closed, the request is answered by the next best, and that is said."""
    ours, own = served(plan=100, a=120, b=110)
    own[PLAN].fails = True
    outputs, trace = ours.run({}, timeout_s=3.0)
    assert set(outputs) == {"y"}
    assert trace.total_us == 110
    assert own["b"].timeouts[-1] == 3.0
    assert own[PLAN].closed
    assert "failed" in ours.changes[-1]
    own["a"].fails = own["b"].fails = True
    with pytest.raises(SegmentFailedError):
        ours.run({})


def test_a_bad_request_drops_nobody() -> None:
    """What every contender fails is one error for that caller, also during a trial; all survive and adapt as before."""
    ours, own = served(plan=100, a=120, b=150)
    with pytest.raises(SegmentFailedError):
        ours.run({"bad": np.zeros(1)})
    own[PLAN].us = 400
    for _ in range(WINDOW):
        ours.run({})
    for _ in range(3):
        with pytest.raises(SegmentFailedError):
            ours.run({"bad": np.zeros(1)})
    assert set(ours.contenders) == set(own)
    assert not any(one.closed for one in own.values())
    for _ in range(3 * RUNS * WON[0]):
        ours.run({})
    assert ours.current == "a"


@pytest.mark.parametrize("error", [FeedError("shape"), KeyboardInterrupt(), RunTimeoutError("slow")])
@pytest.mark.parametrize("victim", ["plan", "a", "b"])
def test_an_interrupted_trial_goes_on(error: BaseException, victim: str) -> None:
    """Whatever ends a request on trial reaches its caller, and the trial still comes to an end."""
    ours, own = served(plan=100, a=120, b=150)
    own[PLAN].us, own["a"].us, own["b"].us = 400, 300, 160
    for _ in range(WINDOW):
        ours.run({})
    own[victim].raises = error
    for _ in range(RUNS * ["a", "b", "plan"].index(victim)):
        ours.run({})
    with pytest.raises(type(error)):
        ours.run({})
    own[victim].raises = None
    for _ in range(3 * RUNS * WON[1]):
        ours.run({})
    assert ours.current == "b"


def test_a_runtime_that_hangs_is_left_behind() -> None:
    """After a contender hung, requests are answered by the others; when everything is closed, that is the error."""
    ours, own = served(plan=100, a=120)
    own[PLAN].raises, own[PLAN].hangs = DeviceClosedError("a runtime hangs"), True
    assert ours.run({})[1].total_us == 120
    assert set(ours.contenders) == {"a"}
    own["a"].raises = DeviceClosedError("the device is closed")
    with pytest.raises(DeviceClosedError, match="the device is closed"):
        ours.run({})


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 1000), st.floats(1, 1000), st.booleans()), max_size=120))
def test_any_history_leaves_it_serving(history: list[tuple[float, float, bool]]) -> None:
    """Whatever the times do and whoever fails in the middle, a request is answered while a contender lives."""
    ours, own = served(plan=100, a=110, b=120)
    for plan_us, a_us, b_fails in history:
        own[PLAN].us, own["a"].us, own["b"].fails = plan_us, a_us, b_fails
        assert set(ours.run({})[0]) == {"y"}
        assert ours.current in own
        assert not own[ours.current].closed
