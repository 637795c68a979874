"""What a plan's own traces say: about its latency, about single super-ops, about who worked beside whom."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_sdk.engine import Copy, Device, Executor, build_program
from agent_sdk.engine.trace import Span, Trace
from agent_sdk.measure.truth import (
    Sample,
    charged,
    fitted,
    is_outdated,
    observations,
    pressure,
    segment_samples,
)
from hope_schema import HOST, LatencyColumns, Overheads, Plan, Processor, Profile, Transfer, merge
from planner_api.planning import plan
from tests.agent.engine.generate import dealt_plan, random_inputs, random_legal_plan, whole_plan
from tests.agent.engine.generate import random_model as simulated_model
from tests.agent.engine.simulated import SimulatedProcessor
from tests.agent.runtimes.networks import image, random_model

SETS = ("ab", "a", "b", "cd", "c", "d")
"""Processors by the names of their cores."""


def ran(device: Device, seed: int, times: int = 1) -> list[Trace]:
    """Runs of a random plan of one network, on all processors."""
    model = random_model(5)
    plan = random_legal_plan(model, list(device.processors.values()), random.Random(seed))
    with Executor(build_program(plan, model, device.processors), device) as executor:
        return [executor.run(image(model))[1] for _ in range(times)]


def spec(cores: str) -> Processor:
    """A processor on some cores."""
    return Processor(
        id=cores, runtime="r", version="1", threads=len(cores), core_class="c", resources=tuple(cores), place="host/r"
    )


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.sampled_from(SETS)), max_size=8))
def test_pressure_is_what_others_take_when_a_step_begins(times: list[tuple[int, int, str]]) -> None:
    """Equal to counting the cores that others already work on when a segment of one step begins, and that it leaves."""
    spans = [Span("segment", cores, cores, index, start, start + us) for index, (start, us, cores) in enumerate(times)]
    segments = [
        SimpleNamespace(index=index, steps=(index,), start_us=start, finish_us=start + us)
        for index, (start, us, _) in enumerate(times)
    ]
    steps = {
        one.index: SimpleNamespace(start_us=one.start_us, finish_us=one.finish_us, alone_us=1.0) for one in segments
    }
    program = SimpleNamespace(
        processors={cores: SimpleNamespace(spec=spec(cores)) for cores in SETS},
        segments=segments,
        plan=SimpleNamespace(step=steps, order=tuple(steps)),
    )
    trace: Any = SimpleNamespace(segments=spans, program=program)
    found = pressure(trace, [spec(cores) for cores in SETS]) if spans else []
    for mine, took in zip(spans, found, strict=True):
        used = [
            len(set(other.processor) - set(mine.processor))
            for other in spans
            if (other.start_us, other.segment) < (mine.start_us, mine.segment) and mine.start_us < other.end_us
        ]
        assert took == pytest.approx(min(1.0, sum(used) / (4 - len(mine.processor))))


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_goes_as_planned_gives_back_what_the_plan_was_made_with(device: Device, seed: int) -> None:
    """Launches and neighbours are fitted by the rules by which the planner's simulator charges them."""
    model = simulated_model(random.Random(seed), 60)
    specs = [one.spec for one in device.processors.values() if one.spec.threads == 1]
    rows = [(super_op.signature, kind) for super_op in merge(model.graph) for kind in {one.kind for one in specs}]
    rows = list(dict.fromkeys(rows))
    drawn = random.Random(seed)
    profile = Profile(
        soc="soc",
        frequency="fixed",
        processors=tuple(specs),
        latencies=LatencyColumns(
            signature=tuple(signature for signature, _ in rows),
            kind=tuple(kind for _, kind in rows),
            us=tuple(drawn.uniform(5.0, 200.0) for _ in rows),
            spread_us=(0.0,) * len(rows),
            count=(1,) * len(rows),
        ),
        overheads=Overheads(launch_us={one.kind: 3.0 for one in specs}, slowdown={one.kind: 1.4 for one in specs}),
        version=1,
    )
    made = plan(model.graph, profile, method="dmdar")  # places in the order of starts
    program = build_program(made, model, device.processors)
    spans = [
        Span("segment", one.processor, one.processor, one.index, one.start_us, one.finish_us)
        for one in program.segments
    ]
    trace: Any = SimpleNamespace(program=program, segments=spans, total_us=made.makespan_us)
    found = fitted(segment_samples([trace], specs).values())
    assert found
    for kind in found.values():
        assert (kind.launch_us, kind.slowdown) == pytest.approx((3.0, 1.4), rel=1e-6)


@given(
    st.floats(0.0, 50.0),
    st.floats(1.0, 4.0),
    st.lists(
        st.tuples(st.floats(5.0, 500.0), st.booleans(), st.floats(0.0, 1.0)), min_size=12, max_size=40, unique=True
    ),
)
def test_launch_and_slowdown_are_told_apart(
    launch_us: float, slowdown: float, drawn: list[tuple[float, bool, float]]
) -> None:
    """Times made by the planner's rule give back what they were made with, and what the ops take."""
    drawn += [(10.0, True, 0.0), (100.0, False, 1.0)]  # else all may have begun alike
    samples = [
        Sample("kind", launch_us * begins + alone * (1 + (slowdown - 1) * beside), alone, int(begins), beside)
        for alone, begins, beside in drawn
    ]
    costs = fitted(samples)["kind"]
    assert costs.launch_us == pytest.approx(launch_us, abs=1e-3)
    assert costs.slowdown == pytest.approx(slowdown, abs=1e-4)
    assert [costs.ops_us(sample) for sample in samples] == pytest.approx([alone for alone, _, _ in drawn], rel=1e-3)


def test_too_few_segments_are_no_launch_and_no_slowdown() -> None:
    """Few segments of a kind say what they take, not why, and nothing of another kind holds for them."""
    assert fitted([Sample("wide", 300.0, 200.0, 1, 0.0)]) == {}
    narrow = [Sample("narrow", 10.0 + alone, alone, 1, 0.0) for alone in range(20, 30)]
    found = fitted([*narrow, Sample("wide", 290.0, 200.0, 1, 0.0)])
    assert list(found) == ["narrow"]
    assert found["narrow"].launch_us == pytest.approx(10.0)


@pytest.mark.parametrize("spread", [0.1, 0.4])
def test_a_spread_is_that_of_ops_each_by_itself(spread: float) -> None:
    """Of segments of one op or several, told by what they are off by and by what they take from run to run."""
    drawn = random.Random(3)
    samples = []
    for _ in range(1500):
        ops = [drawn.uniform(20.0, 80.0) for _ in range(drawn.choice([1, 4]))]
        begins, beside = drawn.random() < 0.7, drawn.random()
        slower = 1.0 + 0.5 * beside
        usual = [op * (1.0 + drawn.gauss(0.0, spread * 0.8)) for op in ops]  # 0.8 and 0.6: a right angle
        between_us = 0.6 * spread * slower * math.hypot(*ops)
        us = 10.0 * begins + slower * sum(usual)
        samples.append(
            Sample("kind", us, sum(ops), int(begins), beside, steps_us=math.hypot(*ops), between_us=between_us)
        )
    found = fitted(samples)["kind"]
    assert found.spread == pytest.approx(spread, rel=0.1)
    assert (found.launch_us, found.slowdown) == pytest.approx((10.0, 1.5), rel=0.2)


@pytest.mark.parametrize("short_us", [0.12, 1e-9])
def test_segments_that_are_hardly_more_than_their_launch_tell_no_spread(short_us: float) -> None:
    """What varies of those is the launch: beside others they change little, however short they are."""
    drawn = random.Random(5)

    def sample(alone_us: float, launch_us: float) -> Sample:
        us = launch_us + alone_us * (1.0 + drawn.gauss(0.0, 0.05))
        return Sample("kind", us, alone_us, 1, 0.0, steps_us=alone_us)

    own = [sample(drawn.uniform(20.0, 60.0), 2.0) for _ in range(400)]
    short = [sample(short_us, launch_us) for launch_us in [1.0, 2.0, 3.0] * 5]
    assert fitted([*own, *short])["kind"].spread == pytest.approx(fitted(own)["kind"].spread, rel=0.2)


def test_what_other_networks_showed_counts_for_kinds_of_this_plan_alone(device: Device) -> None:
    """Where their ops take about as long as this plan's."""
    [trace] = ran(device, 5)
    specs = [processor.spec for processor in device.processors.values()]
    alone = observations([[trace]], specs, soc="soc", frequency="fixed", device_id="device")
    kinds = {device.processors[segment.processor].spec.kind for segment in trace.program.segments}
    few = sorted(kinds)[0]
    earlier = [Sample(kind, 8.0, 1.0, 1, 0.0, steps_us=1.0) for kind in (few, "unused")] * 20_000
    earlier += [Sample(few, 500.0, 5.0, 1, 0.0, steps_us=5.0)] * 20_000  # of ops that take five times as long
    both = observations([[trace]], specs, earlier, soc="soc", frequency="fixed", device_id="device")
    assert alone is not None
    assert both is not None
    assert both.overheads.launch_us[few] == pytest.approx(7.0, rel=0.3)
    assert both.overheads.launch_us.keys() <= kinds
    assert {kind: us for kind, us in both.overheads.launch_us.items() if kind != few} == {
        kind: us for kind, us in alone.overheads.launch_us.items() if kind != few
    }


def test_two_that_slow_each_other_are_both_told_without_it() -> None:
    """Of two that start at once the plan charges the later one alone; their ops are told as they are by themselves."""
    both = [Sample("core", 126.0, 100.0, 1, 1.0, charged_us) for charged_us in (1.0, 26.0)]
    costs = charged(both)["core"]
    assert (costs.launch_us, costs.slowdown) == pytest.approx((1.0, 1.25))
    assert [costs.ops_us(sample) for sample in both] == pytest.approx([100.0, 100.0])


def first_fetch(plan: Plan, place: str, tensor: str, us: float) -> Transfer:
    """The network's input, brought to a place for the plan's first step."""
    return Transfer(tensor=tensor, source=HOST, target=place, reader=plan.order[0], start_us=0.0, finish_us=us)


def test_what_a_plan_charged_a_kind_of_few_segments_stays_charged(device: Device) -> None:
    """The ops get what is left of their segments beyond launches, neighbours and fetches, as the plan has them."""
    model = random_model(6)
    first = next(iter(device.processors))
    plan = whole_plan(model, first)
    launch_us, fetch_us = 5.0, 2.0
    finish = {step: place + 1.0 + launch_us + fetch_us for place, step in enumerate(plan.order)}
    start = {step: finish[step] - 1.0 if place else 0.0 for place, step in enumerate(plan.order)}
    steps = tuple(one.model_copy(update={"start_us": start[one.id], "finish_us": finish[one.id]}) for one in plan.steps)
    fetch = first_fetch(plan, device.processors[first].spec.place, model.graph.inputs[0], fetch_us)
    charged = plan.model_copy(update={"steps": steps, "transfers": (fetch,)})
    with Executor(build_program(charged, model, device.processors), device) as executor:
        trace = executor.run(image(model))[1]
    [sample] = segment_samples([trace], [device.processors[first].spec]).values()
    assert sample.charged_us == pytest.approx(launch_us)
    found = observations([[trace]], [device.processors[first].spec], soc="soc", frequency="fixed", device_id="device")
    assert found is not None
    total = sum(us * count for us, count in zip(found.latencies.us, found.latencies.count, strict=True) if us)
    assert total == pytest.approx(trace.segments[0].us - launch_us)


def stretched(trace: Trace, times: Callable[[int], float]) -> Any:
    """A run in which each segment took so many times as long."""
    spans = [replace(span, end_us=span.start_us + times(span.segment) * span.us) for span in trace.segments]
    return SimpleNamespace(program=trace.program, segments=spans, total_us=sum(span.us for span in spans))


def test_what_odd_runs_took_is_left_out(device: Device) -> None:
    """Disturbed and lucky ones beside as many others change nothing."""
    [trace] = ran(device, 5)
    specs = [processor.spec for processor in device.processors.values()]
    runs = [stretched(trace, lambda index, times=times: times) for times in (3.0, 1.0, 0.4, 1.0)]
    odd, usual = segment_samples(runs, specs), segment_samples([trace], specs)
    assert {index: sample.us for index, sample in odd.items()} == pytest.approx(
        {index: sample.us for index, sample in usual.items()}
    )


def test_segments_take_together_what_runs_take(device: Device) -> None:
    """Whichever of them it was that took long in a run: medians of each would come to less."""
    [trace] = ran(device, 5)
    runs = [stretched(trace, lambda index, turn=turn: 4.0 if index % 3 == turn else 1.0) for turn in (0, 1, 2) * 2]
    samples = segment_samples(runs, [processor.spec for processor in device.processors.values()])
    assert len(samples) == len(trace.segments) > 3
    assert sum(sample.us for sample in samples.values()) == pytest.approx(
        fmean(sorted(run.total_us for run in runs)[1:-1])
    )


def test_steps_at_once_stretch_with_what_the_launch_leaves(device: Device) -> None:
    """Of steps that a processor runs at once the first begins alone: its launch and its fetches are no op's time."""
    model = random_model(6)
    first = next(iter(device.processors))
    plan = whole_plan(model, first)
    launch_us, fetch_us = 7.0, 3.0
    finish = {step: launch_us + fetch_us + (place // 2 + 1) * 4.0 for place, step in enumerate(plan.order)}
    steps = tuple(
        one.model_copy(
            update={
                "start_us": finish[one.id] - 4.0 - (launch_us + fetch_us) * (one.id == plan.order[0]),
                "finish_us": finish[one.id],
                "alone_us": 4.0,
            }
        )
        for one in plan.steps
    )
    fetch = first_fetch(plan, device.processors[first].spec.place, model.graph.inputs[0], fetch_us)
    side_by_side = plan.model_copy(update={"steps": steps, "transfers": (fetch,)})
    with Executor(build_program(side_by_side, model, device.processors), device) as executor:
        trace = executor.run(image(model))[1]
    [sample] = segment_samples([trace], [device.processors[first].spec]).values()
    assert sample.charged_us == pytest.approx(launch_us)
    assert sample.alone_us == pytest.approx(max(finish.values()) - launch_us - fetch_us)
    assert sample.us == pytest.approx(trace.segments[0].us)


@pytest.mark.parametrize(
    ("planned", "took", "outdated"),
    [
        (100, [110, 111, 112], True),
        (100, [104, 105, 106], False),
        (160, [99, 100, 101], True),
        (110, [90, 95, 120], False),
        (120, [*[100] * 12, 119, 119, 119, 121], True),
        (120, [*[100] * 12, 119, 119, 121, 121], True),
        (120, [*[100] * 12, 119, 121, 121, 121], False),
        (100, [98, 104, 116, 136, 148], True),
        (100, [98, 99, 116, 136, 148], False),
    ],
)
def test_a_plan_is_asked_for_again_when_it_was_off(planned: float, took: list[float], outdated: bool) -> None:
    """By more than 8 %, unless more than an eighth of the runs come to that; never without times, or after too few."""
    traces: Any = [SimpleNamespace(total_us=us) for us in took]
    plan: Any = SimpleNamespace(makespan_us=planned)
    assert is_outdated(plan, traces) is outdated
    assert not is_outdated(plan, traces[:2])
    assert not is_outdated(SimpleNamespace(makespan_us=0.0), traces)


def test_what_flows_back_adds_up(device: Device) -> None:
    """Of a network in one segment the ops together take what it took, each as much of it as was planned."""
    model = random_model(6)
    first = next(iter(device.processors))
    program = build_program(whole_plan(model, first), model, device.processors)
    with Executor(program, device) as executor:
        trace = executor.run(image(model))[1]
    found = observations([[trace]], [device.processors[first].spec], soc="soc", frequency="fixed", device_id="device")
    assert found is not None
    assert found.origin == "execution"
    assert [processor.id for processor in found.processors] == [first]
    times = zip(found.latencies.us, found.latencies.count, strict=True)
    total = sum(us * count for us, count in times if us is not None)
    assert len({step.alone_us for step in program.plan.steps}) == 1  # so medians over equal rows lose nothing
    assert total == pytest.approx(sum(span.us for span in trace.segments))
    assert found.overheads == Overheads()


def test_segments_beside_others_tell_too(device: Device) -> None:
    """Of a plan on several processors every super-op flows back, at no more than its segment took."""
    [trace] = ran(device, 5)
    specs = [processor.spec for processor in device.processors.values()]
    found = observations([[trace]], specs, soc="soc", frequency="fixed", device_id="device")
    assert found is not None
    used = {device.processors[segment.processor].spec.kind for segment in trace.program.segments}
    assert set(found.latencies.kind) == used
    longest = max(span.us for span in trace.segments)
    assert all(us is not None and 0 < us <= longest for us in found.latencies.us)


def test_what_is_told_is_fitted_to_all_plans_that_were_tried(device: Device) -> None:
    """Every op that one of two plans had on a kind is told once, at no more than the longest segment of both."""
    trials = [ran(device, seed) for seed in (5, 6)]
    specs = [processor.spec for processor in device.processors.values()]
    told = [
        observations(own, specs, soc="soc", frequency="fixed", device_id="device") for own in ([one] for one in trials)
    ]
    both = observations(trials, specs, soc="soc", frequency="fixed", device_id="device")
    assert both is not None
    rows = [set(zip(one.latencies.signature, one.latencies.kind, strict=True)) for one in told if one is not None]
    assert sorted(zip(both.latencies.signature, both.latencies.kind, strict=True)) == sorted(set().union(*rows))
    assert {one.id for one in both.processors} == {one.processor for [trace] in trials for one in trace.segments}
    longest = max(span.us for [trace] in trials for span in trace.segments)
    assert all(us is not None and 0 < us <= longest for us in both.latencies.us)


def test_a_plan_that_does_not_say_what_ops_take_tells_nothing(device: Device) -> None:
    """There is nothing to hold what was measured against."""
    model = random_model(6)
    plan = whole_plan(model, next(iter(device.processors)))
    silent = plan.model_copy(update={"steps": tuple(s.model_copy(update={"alone_us": None}) for s in plan.steps)})
    with Executor(build_program(silent, model, device.processors), device) as executor:
        trace = executor.run(image(model))[1]
    assert observations([[trace]], [], soc="soc", frequency="fixed", device_id="device") is None


def test_moves_flow_back() -> None:
    """Every copy between two memories is told, by its type and its way, loading among them, and what delivers outputs.

    That is the copies of all, and for each the engine's own beginning and end.
    """
    model = simulated_model(random.Random(3), 14)
    plan = dealt_plan(model, ["a", "b"])
    processors = [SimulatedProcessor("a", ("x",)), SimulatedProcessor("b", ("y",))]
    with Device(processors) as opened, Executor(build_program(plan, model, opened.processors), opened) as executor:
        trace = executor.run(random_inputs(model, 0))[1]
    program = executor.program
    found = observations([[trace]], [one.spec for one in processors], soc="soc", frequency="fixed", device_id="device")
    assert found is not None
    told = zip(found.transfers.tensor, found.transfers.source, found.transfers.target, strict=True)
    places = {HOST: HOST} | {name: own.place.name for name, own in opened.processors.items()}
    copied = [
        (model.graph.tensor[work.move.tensor].type, places[program.home[work.move.tensor]], places[work.processor])
        for work in program.work
        if isinstance(work, Copy)
    ]
    graph = model.graph
    copied += [
        (graph.tensor[name].type, HOST, places[name_of])
        for name, name_of in {(n, s.processor) for s in program.segments for n in s.segment.inputs}
        if program.home[name] == HOST
    ]
    copied += [(graph.tensor[name].type, places[program.home[name]], HOST) for name in graph.outputs]
    assert sorted(map(str, told)) == sorted(map(str, set(copied)))
    assert sum(found.transfers.count) == len(copied) > 0
    us = [us for _, _, us in trace.deliveries()]
    work = [span for span in trace.spans if span.kind != "wait"]
    lanes_us = max(span.end_us for span in work) - min(span.start_us for span in work)
    own_us = trace.total_us - trace.load_us - trace.store_us - lanes_us
    assert sum(us) == pytest.approx(trace.store_us + len(us) * own_us)
    assert min(us) >= own_us > 0


@pytest.mark.parametrize("seed", range(5))
def test_segments_take_together_what_they_are_charged(seed: int) -> None:
    """Also where they take longer for reasons that are neither a launch nor the neighbours: a run is their sum."""
    drawn = random.Random(seed)
    samples = []
    for _ in range(60):
        alone_us, beside, launches = drawn.uniform(5.0, 200.0), drawn.uniform(0.3, 0.6), drawn.randrange(2)
        us = 10.0 * launches + alone_us * (1.3 + drawn.uniform(0.0, 0.4) * beside)
        samples.append(Sample("k", us, alone_us, launches, beside, steps_us=alone_us))
    costs = fitted(samples)["k"]
    charged_us = sum(one.launches * costs.launch_us + costs.slower(one) * one.alone_us for one in samples)
    assert charged_us == pytest.approx(sum(one.us for one in samples))


def test_what_no_neighbour_did_says_nothing_of_neighbours() -> None:
    """Of segments that hardly anybody was beside, what they take too long makes no slowdown without end."""
    samples = [Sample("k", 1.2 * us, us, 0, 1e-6, steps_us=us) for us in range(20, 60)]
    assert 1.0 <= fitted(samples)["k"].slowdown <= 3.0 + 1e-9
