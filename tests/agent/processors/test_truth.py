"""Re-measuring: the timeline is the program's, the figures are the segments', what flows back adds up."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from agent_sdk.device.discovery import discover
from agent_sdk.engine import Device, Executor, Program, build_program
from agent_sdk.measure.truth import HANDOVER_US, SEGMENT_US, observations, remeasure, simulate
from tests.agent.engine.generate import random_legal_plan, whole_plan
from tests.agent.processors.networks import image, random_model


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """All processors of this machine, ready to run."""
    with Device(discover(cache=tmp_path_factory.mktemp("ort"))) as opened:
        yield opened


def program_of(seed: int, device: Device) -> Program:
    """A random legal plan of a random network."""
    model = random_model(seed)
    plan = random_legal_plan(model, list(device.processors.values()), random.Random(seed))
    return build_program(plan, model, device.processors)


def by_iteration(program: Program, busy: list[float]) -> list[float]:
    """An independent timeline: relax every start until nothing moves, from the definition of the waits alone."""
    finish = [0.0] * len(busy)
    while True:
        before = list(finish)
        for segment in program.segments:
            row = program.by_lane[segment.lane]
            ready = finish[row[segment.position - 1].index] if segment.position else 0.0
            start = ready
            for wait in segment.waits:
                done = max(finish[other.index] for other in program.by_lane[wait.lane][: wait.count])
                if done > start:
                    start = done + HANDOVER_US
            finish[segment.index] = start + busy[segment.index] + SEGMENT_US
        if finish == before:
            return finish


@pytest.mark.parametrize("seed", range(12))
def test_the_timeline_is_the_programs(seed: int, device: Device) -> None:
    """Simulated finishes equal those of an independent relaxation, and nobody overlaps on a shared resource."""
    program = program_of(seed, device)
    rng = random.Random(seed)
    busy = [rng.uniform(1, 500) for _ in program.segments]
    start, finish = simulate(program, busy)
    assert list(finish) == pytest.approx(by_iteration(program, busy))
    for one in program.segments:
        for other in program.segments[one.index + 1 :]:
            mine = set(program.processors[one.processor].spec.resources)
            if mine & set(program.processors[other.processor].spec.resources):
                apart = finish[one.index] <= start[other.index] or finish[other.index] <= start[one.index]
                assert apart, (one.index, other.index)


def test_one_lane_is_a_sum(device: Device) -> None:
    """On one processor the prediction is the segments' times, one after the other."""
    model = random_model(2)
    first = next(iter(device.processors))
    program = build_program(whole_plan(model, first), model, device.processors)
    _, finish = simulate(program, [100.0] * len(program.segments))
    assert max(finish) == pytest.approx(len(program.segments) * (100.0 + SEGMENT_US))


def test_every_segment_is_measured(device: Device) -> None:
    """Each segment gets a time of its own and the prediction covers at least the longest of them."""
    program = program_of(5, device)
    inputs = image(program.model)
    with Executor(program, device) as executor:
        before = executor.run(inputs)[0]
        truth = remeasure(executor, inputs, budget_s=0.2)
        after = executor.run(inputs)[0]
    assert [segment.index for segment in truth.segments] == list(range(len(program.segments)))
    assert [segment.processor for segment in truth.segments] == [s.processor for s in program.segments]
    assert all(segment.alone.us > 0 for segment in truth.segments)
    assert truth.predicted_us >= max(segment.alone.us for segment in truth.segments)
    assert truth.planned_us == program.plan.makespan_us
    for name, array in before.items():
        assert (array == after[name]).all()


def test_what_flows_back_adds_up(device: Device) -> None:
    """Per kind of processor the times sent to the planner are the measured segments' times, shared by planned time."""
    model = random_model(6)
    first = next(iter(device.processors))
    program = build_program(whole_plan(model, first), model, device.processors)
    with Executor(program, device) as executor:
        truth = remeasure(executor, image(model), budget_s=0.1)
        found = observations(truth, executor, soc="soc", frequency="fixed", device_id="device")
    assert found is not None
    assert found.origin == "execution"
    assert [processor.id for processor in found.processors] == [first]
    times = zip(found.latencies.us, found.latencies.count, strict=True)
    total = sum(us * count for us, count in times if us is not None)
    measured = sum(segment.alone.us for segment in truth.segments)
    planned = {step.id: step.finish_us - step.start_us for step in program.plan.steps}
    assert len(set(planned.values())) == 1  # equal shares, so medians over equal rows lose nothing
    assert total == pytest.approx(measured)
