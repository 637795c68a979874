"""Never slower: the fastest contender here and now answers, under any history of times and failures."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_sdk.contest import PLAN, RECHECK, WINDOW, Contest
from agent_sdk.engine import SegmentFailedError


@dataclass
class Scripted:
    """Stands in for an executor whose times are known, which no real one's are."""

    us: float
    fails: bool = False
    runs: int = 0
    closed: bool = False
    timeouts: list[float | None] = field(default_factory=list)

    @property
    def total_us(self) -> float:
        """What a trace would say."""
        return self.us

    def run(
        self, inputs: dict[str, np.ndarray], *, timeout_s: float | None = None
    ) -> tuple[dict[str, np.ndarray], Scripted]:
        """Answer, or fail as a dying processor does."""
        self.runs += 1
        self.timeouts.append(timeout_s)
        if self.fails:
            raise SegmentFailedError("ov@0", 0, ("op",), RuntimeError("gone"))
        return {"y": np.zeros(1)}, self

    def close(self) -> None:
        """Remember it."""
        self.closed = True


def contest(**times: float) -> tuple[Contest, dict[str, Scripted]]:
    """A contest among scripted contenders."""
    own = {name: Scripted(us) for name, us in times.items()}
    return Contest(own), own  # type: ignore[arg-type]


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.sampled_from([PLAN, "a", "b", "c"]), st.floats(1, 1e6), min_size=1))
def test_the_trial_finds_the_fastest(times: dict[str, float]) -> None:
    """Whoever is fastest runs; the plan wins ties; a change is said."""
    ours, _ = contest(**times)
    assert ours.trial({}) == times
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
    for _ in range(WINDOW + 3):
        ours.run({})
    assert ours.current == "b"
    assert "under the present load" in ours.changes[-1]
    own[PLAN].us, own["a"].us, own["b"].us = 100, 120, 150
    for _ in range(WINDOW + 2):
        ours.run({})
    assert ours.current == PLAN


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
    """A contender slower when all was quiet than the plan is now never answers a request."""
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
