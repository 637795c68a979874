"""What a plan's own traces say: about its latency, about single super-ops, about who worked beside whom."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_sdk.device.discovery import discover
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.trace import Span
from agent_sdk.measure.truth import alone_us, busy_together, is_outdated, observations, together_us
from tests.agent.engine.generate import random_legal_plan, whole_plan
from tests.agent.runtimes.networks import image, random_model

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """All processors of this machine, ready to run."""
    with Device(discover(cache=tmp_path_factory.mktemp("ort"))) as opened:
        yield opened


def spans_of(times: Sequence[tuple[int, int]]) -> list[Span]:
    """Segments that begin then and take so long."""
    return [Span("segment", "p", "p", index, start, start + us) for index, (start, us) in enumerate(times)]


@given(SPANS)
def test_together_is_when_two_work(times: list[tuple[int, int]]) -> None:
    """Equal to looking at every microsecond."""
    busy = [sum(start <= now < start + us for start, us in times) for now in range(100)]
    assert together_us(spans_of(times)) == sum(count > 1 for count in busy)


@given(SPANS)
def test_who_had_neighbours_tells_no_latency(times: list[tuple[int, int]]) -> None:
    """A segment's time counts if others worked for less than a tenth of it, and then it is its own."""
    trace: Any = SimpleNamespace(segments=spans_of(times))
    found = alone_us([trace, trace, trace])
    for index, (start, us) in enumerate(times):
        beside = sum(
            start <= now < start + us and other != index and begin <= now < begin + took
            for now in range(100)
            for other, (begin, took) in enumerate(times)
        )
        assert (found.get(index) == us) == (beside <= us / 10)


@pytest.mark.parametrize(("planned", "measured", "outdated"), [(100, 124, False), (100, 140, True), (160, 100, True)])
def test_a_plan_is_asked_for_again_when_it_was_far_off(planned: float, measured: float, outdated: bool) -> None:
    """By more than a quarter of what was measured; never for one without times, or that did not run."""
    plan: Any = SimpleNamespace(makespan_us=planned)
    assert is_outdated(plan, measured) is outdated
    assert not is_outdated(plan, None)
    assert not is_outdated(SimpleNamespace(makespan_us=0.0), measured)  # type: ignore[arg-type]


def test_what_flows_back_adds_up(device: Device) -> None:
    """Per kind of processor the times sent to the planner are the measured segments' times, shared by planned time."""
    model = random_model(6)
    first = next(iter(device.processors))
    program = build_program(whole_plan(model, first), model, device.processors)
    with Executor(program, device) as executor:
        trace = executor.run(image(model))[1]
    found = observations([trace], soc="soc", frequency="fixed", device_id="device")
    assert found is not None
    assert found.origin == "execution"
    assert [processor.id for processor in found.processors] == [first]
    times = zip(found.latencies.us, found.latencies.count, strict=True)
    total = sum(us * count for us, count in times if us is not None)
    planned = {step.id: step.finish_us - step.start_us for step in program.plan.steps}
    assert len(set(planned.values())) == 1  # equal shares, so medians over equal rows lose nothing
    assert total == pytest.approx(sum(span.us for span in trace.segments))
    assert busy_together(trace) == 0


def test_only_what_ran_alone_flows_back(device: Device) -> None:
    """Of a plan on several processors no super-op is reported whose segment had others beside it."""
    model = random_model(5)
    plan = random_legal_plan(model, list(device.processors.values()), random.Random(5))
    with Executor(build_program(plan, model, device.processors), device) as executor:
        trace = executor.run(image(model))[1]
    found = observations([trace], soc="soc", frequency="fixed", device_id="device")
    alone = alone_us([trace])
    kinds = {device.processors[s.processor].spec.kind for s in executor.program.segments if s.index in alone}
    assert set(found.latencies.kind if found else ()) <= kinds
