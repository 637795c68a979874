"""Plans carried out by torch: precisions and recipes side by side, and what is measured for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest

from agent_sdk import Agent
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.errors import CompilationFailed
from agent_sdk.explain import to_perfetto
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.verify import Judge
from agent_sdk.measure.profiler import profile
from agent_sdk.measure.truth import observations
from agent_sdk.model import Content, read_model
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.base import whole_network
from agent_sdk.runtimes.torch import processor as torch_processor
from agent_sdk.runtimes.torch.choice import choices
from agent_sdk.runtimes.torch.driver import Eager
from agent_sdk.runtimes.torch.executable import narrowest
from agent_sdk.runtimes.torch.kernel import Kernel
from agent_sdk.runtimes.torch.processor import TorchProcessor
from agent_sdk.runtimes.torch.shares import Occupancy
from hope_schema import LatencyColumns, Missing, MissingLatency, Profile, TensorType, TransferColumns, by_recipe, merge
from planner_api.planning import plan
from tests.agent.haste import measure_hastily
from tests.agent.models import BRANCHING, one_op_model
from tests.agent.runtimes.torch.samples import SOC, computed, images, processor, timed
from tests.agent.runtimes.torch.simulated import Simulated


def profiled(owners: Iterable[TorchProcessor], rows: Sequence[tuple[str, str, float, float]]) -> Profile:
    """A profile of processors whose ops, by signature and kind, take these microseconds and shares."""
    signatures, kinds, us, shares = zip(*rows, strict=True)
    nothing, once = (0.0,) * len(rows), (1,) * len(rows)
    return Profile(
        soc="test",
        frequency="fixed",
        processors=tuple(own.spec for own in owners),
        latencies=LatencyColumns(signature=signatures, kind=kinds, us=us, spread_us=nothing, count=once, share=shares),
        transfers=TransferColumns(
            tensor=(TensorType(shape=(1,), dtype="float32"),) * 2,
            source=("host", "host/torch"),
            target=("host/torch", "host"),
            us=(0.1, 0.1),
            spread_us=(0.0, 0.0),
            count=(1, 1),
        ),
        version=1,
    )


def test_a_plan_mixes_precisions() -> None:
    """Each op in the type that is fastest for it: one answer, as far off as float16 explains and no further."""
    own = {choice.id: TorchProcessor(SOC, choice) for choice in choices("cpu", "mixed")}
    source = images()
    model = read_model(source)
    figures = profiled(
        own.values(),
        [
            (op.signature, each.spec.kind, 1.0 if (index % 2 == 0) == (name == "cpu") else 100.0, 1.0)
            for index, op in enumerate(merge(model.graph))
            for name, each in own.items()
        ],
    )
    made = plan(model.graph, figures, rounds=2)
    assert set(made.processors_used) == {"cpu", "cpu/fp16"}
    with Device(own.values()) as device, Executor(build_program(made, model, own), device) as executor:
        found = Judge(model, draw(model, 0), Reference(Content(source))).verdict([executor])
    assert found.correct
    assert 1e-6 < found.error < found.tolerance
    assert "float16" in found.cause


def test_a_plan_computes_ops_by_recipes_of_different_shares_side_by_side() -> None:
    """As the planner chose them, op by op; the trace tells them apart, and what one took is no figure of another."""
    own, model = processor(channels_last=True), read_model(images())
    own.driver, own.joins = Simulated(1), True
    pools = [op for op in merge(model.graph) if op.ops[0].type == "AveragePool"]
    others = {by_recipe(op.signature, recipe): 0.1 * recipe for op in pools for recipe in (1, 2)}
    kind = own.spec.kind
    rows = [(op.signature, kind, 10.0, 0.6) for op in merge(model.graph)]
    rows += [(signature, kind, 11.0, share) for signature, share in others.items()]
    figures = profiled([own], list(dict.fromkeys(rows)))
    made = plan(model.graph, figures, rounds=20)
    taken = {step.ops[-1]: step.recipe for step in made.steps}
    assert {taken[op.id] for op in pools} <= {None, 1, 2}
    assert {step.share for step in made.steps} >= {0.1, 0.6}
    program = build_program(made, model, {own.id: own})
    executable = own.compile(program.segments[0].segment)
    assert {kernel.name: kernel.recipe for kernel in executable.way.kernels} == {
        op: by or 0 for op, by in taken.items()
    }
    assert executable.way.schedule.streams > 1
    error, _ = computed(own, model, executable=executable)
    assert error <= 1e-4
    own.driver = Eager(own.device)
    with Device([own]) as device, Executor(program, device) as executor:
        traces = [executor.run(draw(model, 0))[1] for _ in range(3)]
    slices = [event for event in to_perfetto(traces[0])["traceEvents"] if event.get("cat") == "predicted op"]
    shown = {event["args"]["super_op"]: event for event in slices}
    assert {op: event["args"].get("recipe") for op, event in shown.items()} == taken
    assert any(
        one["args"]["share"] != other["args"]["share"] and one["tid"] != other["tid"]
        and one["ts"] < other["ts"] + other["dur"] and other["ts"] < one["ts"] + one["dur"]
        for one in slices for other in slices
    )  # fmt: skip
    told = observations([traces], [own.spec], soc="test", frequency="fixed", device_id="device")
    assert told is not None
    own_signature = {op.id: op.signature for op in merge(model.graph)}
    assert set(told.latencies.signature) == {by_recipe(own_signature[op], recipe) for op, recipe in taken.items()}


def test_a_plan_with_recipes_is_tried_beside_the_fastest_kernels() -> None:
    """Where a device tells which way is fastest, the same plan stands there by the choice of its processor, too."""
    own, model = processor(channels_last=True), read_model(images())
    own.driver, own.overlaps = Simulated(1), True
    own._recipes = {op.signature: {0: 1.0} for op in merge(model.graph)}
    times = [one._replace(recipe=1 if one.ops[-1] in "lm" else None) for one in timed(model, 3)]
    ways = own.compile(replace(whole_network(model), times=tuple(times))).compiled
    assert [[kernel.recipe for kernel in way.kernels if kernel.name in "lm"] for way in ways] == [
        *[[1, 1]] * (len(ways) // 2),
        *[[0, 0]] * (len(ways) // 2),
    ]
    fast, faster = [100.0] * len(ways), [100.0 if way.own else 96.0 for way in ways]
    assert narrowest(ways, fast).own
    assert narrowest(ways, [100.0 if way.own else 98.0 for way in ways]).own
    assert not narrowest(ways, faster).own
    assert all(way.own for way in own.compile(replace(whole_network(model), times=timed(model, 3))).compiled)


def test_recipes_are_told_that_leave_more_room_and_take_little_longer() -> None:
    """At most two, the smallest, by how many times as long as the fastest they take; uploaded under their numbers."""
    own, model = processor(), read_model(one_op_model("Relu", shape=(3, 3)))
    [signature] = [op.signature for op in merge(model.graph)]
    slopes = {None: 0.5, 1: 0.3, 2: 0.2, 3: 0.4, 4: 0.5}
    own._recipes[signature] = {0: 10.0, 1: 11.0, 2: 12.0, 3: 12.0, 4: 12.0, 5: 30.0}
    own._occupancies = {
        by_recipe(signature, recipe): Occupancy({1: 10.0 + (recipe or 0), 2: (10.0 + (recipe or 0)) * (1 + share)})
        for recipe, share in slopes.items()
    }
    assert own.recipes(signature) == {2: pytest.approx(1.2), 1: pytest.approx(1.1)}
    asked = Missing(profile_version=0, latencies=(MissingLatency(signature=signature, kind=own.spec.kind),))
    found = profile(model, [own], asked, soc="soc", frequency="fixed", device_id="device", budget_s=2.0).latencies
    assert found.signature == (signature, f"{signature}/2", f"{signature}/1")
    assert found.share == pytest.approx((0.5, 0.2, 0.3))
    assert found.us[1] == pytest.approx(1.2 * (found.us[0] or 0.0))


def test_an_op_of_which_another_recipe_fails_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe that cannot be timed is no other choice; the op has the figure of its fastest."""
    own, model = processor(), read_model(one_op_model("Relu", shape=(3, 3)))
    [super_op] = merge(model.graph)
    monkeypatch.setattr(own, "overlaps", True)
    monkeypatch.setattr(own, "_rouse", lambda: None)
    monkeypatch.setattr(own, "_fitted", lambda _: 1.0)
    own._recipes[super_op.signature] = {0: 10.0, 1: 11.0}

    def occupied(kernel: Kernel, *_: object) -> Occupancy:
        if kernel.recipe:
            raise CompilationFailed("no room for its workspace")
        return Occupancy({1: 10.0, 2: 12.0})

    monkeypatch.setattr(own, "_occupancy", occupied)
    assert own.time_ops(model, math.inf)[super_op.id].us == 10.0
    assert own.recipes(super_op.signature) == {}


def test_every_op_is_timed_before_its_further_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large network is planned for all of it, where there is no time for its ops' other kernels."""
    own, model, clock = processor(), read_model(BRANCHING), [0.0]
    monkeypatch.setattr(own, "overlaps", True)
    monkeypatch.setattr(own, "_rouse", lambda: None)
    monkeypatch.setattr(own, "_fitted", lambda _: 1.0)
    monkeypatch.setattr(torch_processor, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    super_ops = merge(model.graph)
    signatures = list(dict.fromkeys(one.signature for one in super_ops))
    own._recipes = {signature: {0: 10.0, 1: 11.0} for signature in signatures}

    def occupied(*_: object) -> Occupancy:
        clock[0] += 1.0
        return Occupancy({1: 10.0, 2: 12.0})

    monkeypatch.setattr(own, "_occupancy", occupied)
    assert own.time_ops(model, len(signatures) + 1.0).keys() == {one.id for one in super_ops}
    assert list(own._occupancies) == [*signatures, by_recipe(signatures[0], 1)]


def test_a_session_runs_on_torch_beside_onnx_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine, the planner and the profiler take torch like any other runtime."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path))
    measure_hastily(monkeypatch)
    with Agent(processors="cpu,ort@0") as agent, agent.load(BRANCHING, background=False) as session:
        rng = np.random.default_rng(1)
        feeds = {"x": rng.standard_normal((1, 3, 16, 16)).astype(np.float32)}
        wanted = ort.InferenceSession(BRANCHING, providers=["CPUExecutionProvider"]).run(["y"], feeds)[0]
        np.testing.assert_allclose(session.run(feeds)["y"], wanted, rtol=1e-3, atol=1e-5)
        assert {one.spec.runtime for one in agent.device.processors.values()} == {"torch", "ort"}
