"""Never slower: the fastest contender here and now answers, under any history of times and failures."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_sdk.engine import DeviceClosedError, RunTimeoutError, SegmentFailedError
from agent_sdk.engine.errors import FeedError
from agent_sdk.errors import ExecutionError
from agent_sdk.measure.steady import Witness
from agent_sdk.selection.contest import PLAN, RECHECK, ROUNDS, WINDOW, Contest
from tests.agent.haste import measure_hastily


@dataclass
class Scripted:
    """Stands in for an executor whose times are known, which no real one's are."""

    us: float
    fails: bool = False
    raises: BaseException | None = None
    hangs: bool = False
    runs: int = 0
    slow_down: tuple[int, float] = (0, 1.0)
    closed: bool = False
    timeouts: list[float | None] = field(default_factory=list)
    log: list[Scripted] = field(default_factory=list, repr=False)

    @property
    def total_us(self) -> float:
        """What a trace would say: ``us``, times a factor after so many runs."""
        after, factor = self.slow_down
        return self.us * (factor if self.runs > after else 1.0)

    def run(
        self, inputs: dict[str, np.ndarray], *, timeout_s: float | None = None
    ) -> tuple[dict[str, np.ndarray], Scripted]:
        """Answer, or fail as a dying processor does."""
        self.runs += 1
        self.log.append(self)
        self.timeouts.append(timeout_s)
        if self.fails or "bad" in inputs:
            raise SegmentFailedError("ov@0", 0, ("op",), RuntimeError("gone"))
        if self.raises is not None:
            raise self.raises
        return {"y": np.zeros(1)}, self

    def close(self) -> None:
        """Remember it; one that hangs cannot be freed."""
        self.closed = True
        if self.hangs:
            raise ExecutionError("a run of this session hangs")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted times do not depend on the machine."""
    measure_hastily(monkeypatch)


def contest(**times: float) -> tuple[Contest, dict[str, Scripted]]:
    """A contest among scripted contenders."""
    own: dict[str, Any] = {name: Scripted(us) for name, us in times.items()}
    return Contest(own), own


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.sampled_from([PLAN, "a", "b", "c"]), st.floats(1, 1e6), min_size=1))
def test_the_trial_finds_the_fastest(times: dict[str, float]) -> None:
    """Whoever is fastest runs; the plan wins ties; a change is said."""
    ours, _ = contest(**times)
    assert ours.trial({}).median_us == times
    best = min(times.values())
    assert times[ours.current] == best
    if times.get(PLAN) == best:
        assert ours.current == PLAN
    assert bool(ours.changes) == (ours.current != (PLAN if PLAN in times else next(iter(times))))


def test_load_is_noticed_and_outlived() -> None:
    """When the plan slows down, the next requests find who is faster now; when the load goes, the plan returns."""
    ours, own = contest(plan=100, a=120, b=150)
    ours.trial({})
    own[PLAN].us, own["a"].us, own["b"].us = 400, 300, 160
    for _ in range(WINDOW + 3 + 2):  # the plan has lost after one round, the other one after two
        ours.run({})
    assert ours.current == "b"
    assert "under the present load" in ours.changes[-1]
    own[PLAN].us, own["a"].us, own["b"].us = 100, 120, 150
    for _ in range(WINDOW + 2 * 2):
        ours.run({})
    assert ours.current == PLAN


def test_an_odd_run_misleads_nobody() -> None:
    """Beside other work single runs take twice as long or half: the middle one of a few decides."""
    ours, own = contest(plan=100, a=120, b=150)
    ours.trial({})
    own[PLAN].us, own["a"].us, own["b"].us = 300, 280, 200
    for _ in range(WINDOW):
        ours.run({})
    own["a"].us, own["b"].us = 190, 380
    for _ in range(3):
        ours.run({})
    own["a"].us, own["b"].us = 280, 200
    for _ in range(2 * 3):
        ours.run({})
    assert ours.current == "b"


def test_many_threads_share_a_trial() -> None:
    """Requests that come in at once each have one turn of it, all are answered, and it comes to an end."""
    ours, own = contest(plan=100, a=120, b=110)
    ours.trial({})
    own[PLAN].us, own["a"].us, own["b"].us = 400, 160, 300
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: ours.run({})[1].total_us, range(300)))
    assert set(answers) <= {400, 160, 300}
    assert ours.current == "a"
    assert answers.count(160) > 250


def test_a_short_disturbance_changes_nothing() -> None:
    """When the plan is fast again by the end of a trial, those who seemed faster in between do not replace it."""
    ours, own = contest(plan=100, a=120)
    ours.trial({})
    own[PLAN].us = 300
    for _ in range(WINDOW):
        ours.run({})
    assert ours.run({})[1].total_us == 120
    own[PLAN].us = 100
    assert ours.run({})[1].total_us == 100
    assert ours.current == PLAN
    assert not ours.changes


def test_lasting_load_is_tested_ever_more_rarely() -> None:
    """While the load lasts, the slowed plan answers a handful of requests in hundreds, to see whether it is back."""
    ours, own = contest(plan=100, a=120)
    ours.trial({})
    own[PLAN].us = 400
    for _ in range(WINDOW + 2):
        ours.run({})
    assert ours.current == "a"
    before = own[PLAN].runs
    for _ in range(4 * RECHECK):
        ours.run({})
    assert ours.current == "a"
    assert 3 <= own[PLAN].runs - before <= 8


def test_quiet_times_are_left_alone() -> None:
    """Without a slowdown nobody else ever runs, and one slow run is not a slowdown."""
    ours, own = contest(plan=100, a=120)
    ours.trial({})
    before = own["a"].runs
    for turn in range(3 * RECHECK):
        own[PLAN].us = 500 if turn % 10 == 0 else 105
        ours.run({})
    assert own["a"].runs == before
    assert ours.current == PLAN


def test_the_hopeless_are_not_tried_again() -> None:
    """A contender far slower when all was quiet than the plan is now never answers a request."""
    ours, own = contest(plan=100, slow=1000, a=120)
    ours.trial({})
    before = own["slow"].runs
    own[PLAN].us = 400
    for _ in range(40):
        ours.run({})
    assert own["slow"].runs == before
    assert ours.current == "a"


def test_a_dying_processor_costs_no_request() -> None:
    """A failing contender is dropped and closed, the request is answered by the next best, and that is said."""
    ours, own = contest(plan=100, a=120, b=110)
    ours.trial({})
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
    ours, own = contest(plan=100, a=120, b=150)
    ours.trial({})
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
    for _ in range(3 * ROUNDS):
        ours.run({})
    assert ours.current == "a"


@pytest.mark.parametrize("error", [FeedError("shape"), KeyboardInterrupt(), RunTimeoutError("slow")])
@pytest.mark.parametrize("victim", ["plan", "a", "b"])
def test_an_interrupted_trial_goes_on(error: BaseException, victim: str) -> None:
    """Whatever ends a request on trial reaches its caller, and the trial still comes to an end."""
    ours, own = contest(plan=100, a=120, b=150)
    ours.trial({})
    own[PLAN].us, own["a"].us, own["b"].us = 400, 300, 160
    for _ in range(WINDOW):
        ours.run({})
    own[victim].raises = error
    for _ in range(["a", "b", "plan"].index(victim)):
        ours.run({})
    with pytest.raises(type(error)):
        ours.run({})
    own[victim].raises = None
    for _ in range(3 * ROUNDS):
        ours.run({})
    assert ours.current == ("a" if victim == "b" and isinstance(error, RunTimeoutError) else "b")


def test_a_runtime_that_hangs_is_left_behind() -> None:
    """After a contender hung, requests are answered by the others; when everything is closed, that is the error."""
    ours, own = contest(plan=100, a=120)
    ours.trial({})
    own[PLAN].raises, own[PLAN].hangs = DeviceClosedError("a runtime hangs"), True
    assert ours.run({})[1].total_us == 120
    assert set(ours.contenders) == {"a"}
    own["a"].raises = DeviceClosedError("the device is closed")
    with pytest.raises(DeviceClosedError, match="the device is closed"):
        ours.run({})


def test_who_fails_in_the_first_trial_is_left_out() -> None:
    """The others are timed all the same; if nobody is left the first failure is raised."""
    ours, own = contest(plan=100, a=120)
    own[PLAN].fails = True
    assert ours.trial({}, rounds=3).times_us == {"a": (120.0,) * 3}
    assert (ours.current, own[PLAN].closed) == ("a", True)
    own["a"].fails = True
    with pytest.raises(SegmentFailedError):
        ours.trial({})
    assert not own["a"].closed


def test_a_trial_counts_its_runs_and_knows_its_neighbours() -> None:
    """Those far behind run less often and that is told; the order of the others changes from round to round."""
    ours, own = contest(plan=100, a=110, slow=1000)
    order: list[Scripted] = []
    for one in own.values():
        one.log = order
    found = ours.trial({}, rounds=9)
    assert {name: len(times) for name, times in found.times_us.items()} == {"plan": 9, "a": 9, "slow": 3}
    fast = [id(one) for one in order if one is not own["slow"]]
    assert len(set(zip(fast[::2], fast[1::2], strict=True))) == 2


def test_a_trial_goes_on_among_those_that_are_close() -> None:
    """Whoever may be the best all the same runs more often before it is decided; nobody else does."""
    ours, own = contest(plan=104, a=100, b=120)
    ours.trial({}, rounds=7)
    assert {name: one.runs for name, one in own.items()} == {PLAN: 22, "a": 22, "b": 8}  # one is for warming up
    assert ours.current == "a"
    own["a"].us = 110
    ours.trial({}, rounds=7)
    assert {name: one.runs for name, one in own.items()} == {PLAN: 30, "a": 30, "b": 16}
    assert ours.current == PLAN


def test_a_machine_that_slows_down_meanwhile_favours_nobody() -> None:
    """Who was not close cannot win because the others went on in a slower moment, nor do these seem slower later."""
    ours, own = contest(plan=100, a=101, b=106)
    for name, one in own.items():
        one.slow_down = (8, 1.3) if name != "b" else (0, 1.0)
    found = ours.trial({}, rounds=7)
    assert ours.current == PLAN
    assert found.median_us == pytest.approx({PLAN: 100, "a": 101, "b": 106})


@pytest.mark.parametrize(("disturbed", "steady"), [(3, True), (4, False)])
def test_a_disturbed_trial_says_so(disturbed: int, steady: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are worth keeping only if the cores were steady in most runs of every contender."""
    left = [disturbed]

    def steadily(self: Witness, call: Callable[[], object], deadline: float) -> tuple[object, bool]:
        result = call()
        left[0] -= deadline > 0
        return result, left[0] < 0

    monkeypatch.setattr(Witness, "steadily", steadily)
    ours, _ = contest(plan=100)
    assert ours.trial({}).steady is steady


def test_only_those_wanted_are_kept() -> None:
    """The plan and who answers stay whatever is wanted; of the others those wanted do, and the rest is freed."""
    ours, own = contest(plan=900, a=120, b=110, c=130)
    ours.trial({})
    ours.keep(["a"])
    assert set(ours.contenders) == {PLAN, "a", "b"}
    assert {name for name, one in own.items() if one.closed} == {"c"}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 1000), st.floats(1, 1000), st.booleans()), max_size=120))
def test_any_history_leaves_it_serving(history: list[tuple[float, float, bool]]) -> None:
    """Whatever the times do and whoever fails in the middle, a request is answered while a contender lives."""
    ours, own = contest(plan=100, a=110, b=120)
    ours.trial({})
    for plan_us, a_us, b_fails in history:
        own[PLAN].us, own["a"].us, own["b"].fails = plan_us, a_us, b_fails
        assert set(ours.run({})[0]) == {"y"}
        assert ours.current in own
        assert not own[ours.current].closed
