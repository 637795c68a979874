"""What another host computed stands on this machine's time line, whatever that host's clock shows."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_sdk.engine import Device
from agent_sdk.engine.single import whole_run
from agent_sdk.engine.trace import Trace
from agent_sdk.explain.explanation import measured_bars
from agent_sdk.explain.perfetto import to_perfetto
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.base import BoundCall
from agent_sdk.runtimes.remote.clock import DRIFT, Clock
from agent_sdk.runtimes.remote.host import RemoteHost
from tests.agent.models import BRANCHING
from tests.agent.runtimes.remote.relay import Relay, Spoil

MODEL = read_model(BRANCHING)
FAR = "edge1:ort@0"
EXACT = 1e-6
"""Seconds by which floats of a day may round."""

runs = st.lists(
    st.tuples(
        st.floats(0, 100),  # until it is sent
        st.floats(0, 0.3),  # on the way there
        st.floats(0, 1),  # computed
        st.floats(0, 0.3),  # on the way back
    ),
    min_size=1,
    max_size=30,
)


@given(runs=runs, hours=st.floats(-24, 24), drift=st.floats(-DRIFT / 2, DRIFT / 2))
@example(runs=[(0.0, 0.0, 1.0, 0.125), (0.0, 0.25, 0.0, 0.0)], hours=0.0, drift=4.62e-05)
def test_a_clock_that_is_hours_off_and_drifts_is_known_as_well_as_the_way_allows(
    runs: list[tuple[float, float, float, float]], hours: float, drift: float
) -> None:
    """Each run lies within its own round trip, and no farther from the truth than half of the best way of late."""
    clock, now, best = Clock(), 1000.0, float("inf")
    for pause, there, computing, back in runs:
        sent = now + pause
        began, ended = sent + there, sent + there + computing
        now = answered = ended + back
        shown = [3600 * hours + (1 + drift) * when for when in (began, ended)]
        placed = clock.placed((sent, answered), (shown[0], shown[1]))
        best += 2 * DRIFT * (pause + there + computing + back)
        if placed is None:  # a clock that goes fast shows more time than the round trip took: nobody can know
            assert (there + back) <= abs(drift) * computing + EXACT
            continue
        best = min(best, there + back + 2 * DRIFT * (answered - sent))  # clocks drift while it computes, too
        assert sent - EXACT <= placed[0] <= placed[1] <= answered + EXACT
        assert abs(placed[0] - began) <= best / 2 + 2 * DRIFT * (answered - sent) + EXACT


def test_a_clock_that_was_set_is_learned_anew() -> None:
    """A host that was started anew shows another time: what was known of its clock counts no more."""
    clock = Clock()
    assert clock.placed((10.0, 10.2), (5.1, 5.1)) == (10.1, 10.1)
    assert clock.placed((20.0, 24.0), (1.0, 2.0)) == (21.5, 22.5)
    assert clock.placed((30.0, 30.2), (8.6, 8.6)) == pytest.approx((30.1, 30.1))


@pytest.mark.parametrize("ran", [(5.0, 4.0), (5.0, 5.3), (float("nan"), 5.0), (5.0, float("inf"))])
def test_a_host_that_says_what_cannot_be_is_not_placed(ran: tuple[float, float]) -> None:
    """Ended before it began, computed for longer than it was waited for, no numbers: what was known stays."""
    clock = Clock()
    known = clock.placed((10.0, 10.2), (5.1, 5.1))
    assert clock.placed((10.3, 10.5), ran) is None
    assert clock.placed((10.0, 10.2), (5.1, 5.1)) == known


def test_a_host_whose_clock_shows_an_age_is_placed_within_the_round_trip() -> None:
    """Where floats of what it says are further apart than the way is long, no run begins before it was asked for."""
    clock = Clock()
    for at in range(200):
        sent = 1000.0 + at / 7
        began = 999_999_999_999.0 + at
        placed = clock.placed((sent, sent + 1e-5), (began, began))
        assert placed is not None
        assert sent <= placed[0] <= placed[1] <= sent + 1e-5


def traced(device: Device) -> Trace:
    """A run of the whole network on the host."""
    with whole_run(MODEL, device.processors[FAR], device) as executor:
        return executor.traced(draw(MODEL, 1))


def _seconds_later(said: bytes, seconds: int) -> bytes:
    return re.sub(rb";at=(\d+)", lambda found: b";at=%d" % (int(found[1]) + 1000 * seconds), said)


def test_a_trace_shows_when_the_host_computed(both: Device, host: RemoteHost, relay: Relay) -> None:
    """Another process of this machine has the same clock; seen through an answer that is ten hours later, it is too."""
    true = time.clock_gettime(time.CLOCK_MONOTONIC)
    plain = traced(both)
    relay.spoil = lambda said: _seconds_later(said, 36_000)
    shifted = traced(both)
    for trace in (plain, shifted):
        (span,) = trace.segments
        assert span.elsewhere is not None
        assert span.start_us <= span.elsewhere[0] < span.elsewhere[1] <= span.end_us
        kinds = [(bar.processor, bar.kind) for bar in measured_bars(trace)]
        assert kinds == [(FAR, "transfer"), (FAR, "compute"), (FAR, "transfer")]
        ops = [event for event in to_perfetto(trace)["traceEvents"] if event.get("cat") == "op"]
        assert {span.processor} == {FAR}
        assert ops[0]["ts"] == pytest.approx(span.elsewhere[0], abs=2e-3)
        assert ops[-1]["ts"] + ops[-1]["dur"] == pytest.approx(span.elsewhere[1], abs=2e-3)
    assert true < plain.elsewhere[0][0] < plain.elsewhere[0][1] < time.clock_gettime(time.CLOCK_MONOTONIC)


def test_nobody_asks_calls_of_this_machine_when_another_host_computed(
    both: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run pays nothing for what only runs elsewhere have."""
    asked: list[BoundCall] = []
    monkeypatch.setattr(BoundCall, "computed", property(asked.append))
    with whole_run(MODEL, both.processors["ort@0"], both) as executor:
        assert not executor.traced(draw(MODEL, 1)).elsewhere
    assert not asked


SILENT: dict[str, Spoil] = {
    "another server": lambda said: re.sub(rb"server-timing: [^\r]*\r\n", b"", said),
    "no clock": lambda said: re.sub(rb";at=[0-9.]+", b"", said),
    "no number": lambda said: re.sub(rb"dur=[0-9.]+", b"dur=1.2.3", said),
    "a number without an end": lambda said: re.sub(rb"at=[0-9.]+", b"at=" + b"9" * 400, said),
    "longer than it was waited for": lambda said: re.sub(rb"dur=[0-9.]+", b"dur=99999", said),
}


@pytest.mark.parametrize("says", SILENT)
def test_who_says_nothing_right_of_its_clock_is_drawn_between_sending_and_answer(
    says: str, both: Device, relay: Relay
) -> None:
    """The run is answered, and its trace shows the round trip as a whole."""
    relay.spoil = SILENT[says]
    (span,) = traced(both).segments
    assert span.elsewhere is None
    assert span.parts == (("segment", span.start_us, span.end_us),)
