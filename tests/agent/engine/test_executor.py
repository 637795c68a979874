"""Running programs: outputs, traces and memory, for any legal plan on real and on foreign processors."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk.engine import Copy, Device, Executor, build_program
from agent_sdk.engine.trace import Trace
from agent_sdk.errors import FeedError
from agent_sdk.explain import to_perfetto
from agent_sdk.model import Model, read_model
from agent_sdk.runtimes.base import Segment
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.ort.processor import OrtProcessor
from hope_schema import Plan
from tests import CAMPAIGN
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import (
    chain_model,
    dealt_plan,
    random_inputs,
    random_legal_plan,
    random_model,
    whole_plan,
)
from tests.agent.engine.occupancy import allocated_bytes, peak_bytes
from tests.agent.engine.scene import Scene, flight_of
from tests.agent.engine.simulated import four_processors
from tests.agent.runtimes.networks import RUNTIMES

WATCHDOG_S = 60.0
Change = Callable[[dict[str, np.ndarray]], object]


def sane(executor: Executor, trace: Trace) -> None:
    """A trace whose spans respect lanes, waits and exclusion, and whose memory stays within what is allocated."""
    program = executor.program
    spans = trace.segments
    assert [span.segment for span in spans] == [s.index for s in program.segments]
    done = {(span.lane, span.position): span for span in trace.spans}  # of each piece of work the last span
    for work in program.work:
        span = done[program.lanes[work.lane], work.position]
        assert 0 <= span.start_us <= span.end_us <= trace.total_us
        for wait in work.waits:
            assert done[program.lanes[wait.lane], wait.count - 1].end_us <= span.start_us
    allocated = allocated_bytes(executor)
    for processor, peak in peak_bytes(executor, trace).items():
        assert peak <= allocated.get(processor, 0)


@pytest.mark.parametrize("seed", range(200 if CAMPAIGN else 20))
def test_random_plans_on_real_processors_are_bit_exact(seed: int, device: Device, reference: Reference) -> None:
    """Any placement and order on cores and their gang gives the whole model's outputs, run after run."""
    rng = random.Random(seed)
    model = random_model(rng, rng.randint(1, 25))
    plan = random_legal_plan(model, list(device.processors.values()), rng)
    with Executor(build_program(plan, model, device.processors), device) as executor:
        for repeat in range(3):
            feeds = random_inputs(model, seed + repeat)
            outputs, trace = executor.run(feeds, timeout_s=WATCHDOG_S if repeat == 2 else None)
            for name, expected in reference(model, feeds).items():
                np.testing.assert_array_equal(outputs[name], expected, err_msg=name)
            sane(executor, trace)


@pytest.mark.parametrize("seed", range(3000 if CAMPAIGN else 16))
def test_random_plans_across_separate_memories_are_bit_exact(seed: int, reference: Reference) -> None:
    """Processors that share no memory get every tensor by a transfer, once per tensor and target."""
    rng = random.Random(seed)
    model = random_model(rng, rng.randint(1, 25))
    processors = four_processors()
    feeds = random_inputs(model, seed)
    with Device(processors) as device:
        plan = random_legal_plan(model, processors, rng)
        with Executor(build_program(plan, model, device.processors), device) as executor:
            for _ in range(2):
                outputs, trace = executor.run(feeds)
                for name, expected in reference(model, feeds).items():
                    np.testing.assert_array_equal(outputs[name], expected, err_msg=name)
                sane(executor, trace)
            copies = sum(isinstance(work, Copy) for work in executor.program.work)
            assert sum(p.transfers for p in processors) == 2 * copies
    assert all(p.closed and p.open_executables == 0 for p in processors)


@pytest.mark.parametrize("name", ["squeezenet", "inception_v1", "lstm", "nasnet_mobile"])
def test_random_plans_of_real_models(name: str, device: Device, reference: Reference) -> None:
    """Real networks, scattered over all processors of this machine, agree with the whole model."""
    rng = random.Random(len(name))
    model = read_model(name)
    feeds = random_inputs(model, 1)
    expected = reference(model, feeds)
    for _ in range(4 if CAMPAIGN else 1):
        plan = random_legal_plan(model, list(device.processors.values()), rng)
        with Executor(build_program(plan, model, device.processors), device) as executor:
            for _ in range(2):
                outputs, trace = executor.run(feeds, timeout_s=WATCHDOG_S)
                for key, want in expected.items():
                    # Cutting moves the borders of ONNX Runtime's fusions, and with them the last bit.
                    assert np.abs(outputs[key] - want).max() <= 1e-4 * np.abs(want).max()
                sane(executor, trace)


@pytest.mark.parametrize("processors", [("c",), ("a", "b", "ab", "c")])
@pytest.mark.parametrize("timeout_s", [None, WATCHDOG_S])
def test_outputs_go_to_the_callers_arrays(
    processors: tuple[str, ...], timeout_s: float | None, scene: Scene, reference: Reference
) -> None:
    """In one launch as on many lanes, watched or not; the record is as always, and what does not fit runs nothing."""
    program = build_program(dealt_plan(scene.model, processors, seed=5), scene.model, scene.device.processors)
    with Executor(program, scene.device) as executor:
        wanted = reference(scene.model, scene.feeds)
        into = {name: np.empty_like(array) for name, array in wanted.items()}
        outputs, trace = executor.run(scene.feeds, into=into, timeout_s=timeout_s)
        sane(executor, trace)
        for name, array in into.items():
            assert outputs[name] is array
            np.testing.assert_array_equal(array, wanted[name])
        launched = [len(processor.log) for processor in scene.processors]
        with pytest.raises(FeedError, match="output"):
            executor.run(scene.feeds, into={next(iter(into)): np.empty(3, np.int8)}, timeout_s=timeout_s)
        assert [len(processor.log) for processor in scene.processors] == launched


@pytest.mark.parametrize("seed", range(4))
def test_random_plans_on_mixed_runtimes(seed: int, frozen: Path, reference: Reference) -> None:
    """ONNX Runtime and OpenVINO in one plan, single cores and gangs: right to a ten-thousandth."""
    rng = random.Random(seed)
    model = random_model(rng, 12)
    feeds = random_inputs(model, seed)
    with Device(discover("ort,ov", cache=frozen)) as device:
        plan = random_legal_plan(model, list(device.processors.values()), rng)
        with Executor(build_program(plan, model, device.processors), device) as executor:
            for _ in range(3):
                outputs, trace = executor.run(feeds, timeout_s=WATCHDOG_S)
                for name, expected in reference(model, feeds).items():
                    assert np.abs(outputs[name] - expected).max() <= 1e-4 * np.abs(expected).max()
            sane(executor, trace)


def small_model() -> Model:
    """Two inputs, one of them also an output's only source; an output that is read on; a dead second result.

    ``mid`` is an output and read by the next op; ``top_k`` has indices nobody reads; ``side`` is dead code until
    somebody asks for it.
    """
    shape = (1, 8)
    nodes = [
        helper.make_node("Relu", ["x"], ["mid"]),
        helper.make_node("TopK", ["mid", "k"], ["values", "indices"], axis=1),
        helper.make_node("Mul", ["y", "y"], ["square"]),
        helper.make_node("Concat", ["values", "square"], ["end"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")],
        [
            helper.make_tensor_value_info("mid", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("end", TensorProto.FLOAT, (1, 11)),
        ],
        [onnx.numpy_helper.from_array(np.array([3], np.int64), "k")],
    )
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


@pytest.mark.parametrize("seed", range(8))
def test_outputs_that_are_read_on_and_results_nobody_reads(seed: int, reference: Reference) -> None:
    """An output that is also consumed, a second result that nobody reads, ops that read graph inputs anywhere."""
    model = small_model()
    processors = four_processors()
    feeds = random_inputs(model, seed)
    with Device(processors) as device:
        plan = random_legal_plan(model, processors, random.Random(seed))
        executor = Executor(build_program(plan, model, device.processors), device)
        outputs, _ = executor.run(feeds)
        for name, expected in reference(model, feeds).items():
            np.testing.assert_array_equal(outputs[name], expected)


def test_outputs_belong_to_the_caller(device: Device, reference: Reference) -> None:
    """The next run does not change what an earlier one returned, nor does changing it disturb the next run."""
    model = random_model(random.Random(2), 10)
    with Executor(build_program(whole_plan(model, "ort@0"), model, device.processors), device) as executor:
        first, _ = executor.run(random_inputs(model, 1))
        kept = {name: array.copy() for name, array in first.items()}
        second, _ = executor.run(random_inputs(model, 2))
        for name, array in first.items():
            np.testing.assert_array_equal(array, kept[name])
            assert not np.shares_memory(array, second[name])
            array.fill(0)
        third, _ = executor.run(random_inputs(model, 2))
        for name, array in third.items():
            np.testing.assert_array_equal(array, second[name])


def test_a_single_lane_runs_in_the_callers_thread(device: Device) -> None:
    """No thread is started for a plan on one processor, and the caller's binding is given back."""
    import threading

    model = random_model(random.Random(2), 10)
    before, cores = set(threading.enumerate()), os.sched_getaffinity(0)
    with Executor(build_program(whole_plan(model, "ort@0"), model, device.processors), device) as executor:
        executor.run(random_inputs(model, 1))
        assert set(threading.enumerate()) <= before
    assert os.sched_getaffinity(0) == cores


def test_buffers_are_reused_within_and_across_runs(device: Device) -> None:
    """A chain that changes processor at every op holds a few buffers, not one per op, and the same for every run."""
    shape = (1, 16, 32, 32)
    model = chain_model(30, shape)
    ids = list(device.processors)
    plan = dealt_plan(model, ids)
    with Executor(build_program(plan, model, device.processors), device) as executor:
        one = int(np.prod(shape)) * 4
        assert len(executor.program.segments) == 30
        assert sum(allocated_bytes(executor).values()) <= (2 * len(ids) + 2) * one
        _, trace = executor.run(random_inputs(model, 0))
        assert max(peak_bytes(executor, trace).values()) <= 3 * one


def test_a_tensor_of_another_type_takes_over_memory(device: Device, reference: Reference) -> None:
    """Wherever a chain's tensors differ in size and element type, each processor holds one buffer for all of them."""
    constants = [np.array(0.5, np.float32), np.array(2.0, np.float32), np.array(-1.0, np.float32)]
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["active"]),
        helper.make_node("Greater", ["active", "c0"], ["large"]),
        helper.make_node("Where", ["large", "c1", "c2"], ["chosen"]),
        helper.make_node("Concat", ["chosen", "chosen"], ["twice"], axis=1),
        helper.make_node("ArgMax", ["twice"], ["first"], axis=1),
        helper.make_node("Gather", ["table", "first"], ["read"]),
        helper.make_node("Sin", ["read"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "types",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            *(numpy_helper.from_array(value, f"c{index}") for index, value in enumerate(constants)),
            numpy_helper.from_array(np.arange(8 * 3, dtype=np.float32).reshape(8, 3), "table"),
        ],
    )
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    plan = dealt_plan(model, ["ort@0", "ort@1"])
    with Executor(build_program(plan, model, device.processors), device) as executor:
        assert len(executor.program.segments) == len(nodes)
        assert sorted(len(slot.tensors) for slot in executor.memory.slots if "x" not in slot.tensors) == [3, 4]
        for seed in range(3):
            inputs = random_inputs(model, seed)
            np.testing.assert_array_equal(executor.run(inputs)[0]["y"], reference(model, inputs)["y"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda feeds: feeds.pop("x"), "input 'x' .* is missing"),
        (lambda feeds: feeds.update(z=feeds["x"]), "no input 'z'"),
        (lambda feeds: feeds.update(x=feeds["x"][:, :4]), r"float32\[1, 4\], the model wants float32\[1, 8\]"),
        (lambda feeds: feeds.update(x=feeds["x"].astype(np.float64)), "is float64"),
    ],
)
def test_wrong_inputs_are_refused_before_anything_runs(change: Change, message: str, device: Device) -> None:
    """A missing, unknown, misshapen or mistyped input is one clear error, and the next run works."""
    model = small_model()
    with Executor(build_program(whole_plan(model, "ort@0"), model, device.processors), device) as executor:
        feeds = random_inputs(model, 0)
        change(feeds)
        with pytest.raises(FeedError, match=message):
            executor.run(feeds)
        executor.run(random_inputs(model, 0))


def test_a_list_is_taken_as_onnx_runtime_takes_it(device: Device) -> None:
    """Numbers of no width become the model's, so that who answers does not decide whether a list is an input."""
    model = small_model()
    with Executor(build_program(whole_plan(model, "ort@0"), model, device.processors), device) as executor:
        feeds = random_inputs(model, 0)
        expected = executor.run(feeds)[0]
        lists: dict[str, Any] = {name: array.tolist() for name, array in feeds.items()}
        for name, output in executor.run(lists)[0].items():
            np.testing.assert_array_equal(output, expected[name])
        with pytest.raises(FeedError, match="is no array of float32"):
            executor.run(lists | {"x": [["text"] * 8]})


def test_inputs_need_not_be_contiguous(device: Device, reference: Reference) -> None:
    """A transposed view is read by its values, not by its memory."""
    model = small_model()
    feeds = {name: np.asfortranarray(np.repeat(a, 2, axis=0))[:1] for name, a in random_inputs(model, 3).items()}
    with Executor(build_program(whole_plan(model, "ort@1"), model, device.processors), device) as executor:
        outputs, _ = executor.run(feeds)
    for name, expected in reference(model, feeds).items():
        np.testing.assert_array_equal(outputs[name], expected)


def two_readers(where: list[str], shape: tuple[int, ...]) -> tuple[Model, Plan]:
    """A large input that two ops read, and a plan that deals these out."""
    nodes = [helper.make_node(kind, ["x"], [kind]) for kind in ("Sin", "Cos")]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(kind, TensorProto.FLOAT, shape) for kind in ("Sin", "Cos")],
    )
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    return model, dealt_plan(model, where)


@pytest.mark.parametrize("where", [["ort@0"], ["ort@0", "ort@1"]])
def test_large_inputs_are_read_where_they_are(where: list[str], device: Device, reference: Reference) -> None:
    """The same array with new values, another array, a strided one and a read-only one: always today's values."""
    shape = (1, 64, 32, 32)
    model, plan = two_readers(where, shape)
    rng = np.random.default_rng(0)
    array = rng.standard_normal(shape).astype(np.float32)
    with Executor(build_program(plan, model, device.processors), device) as executor:

        def agree(array: np.ndarray) -> None:
            outputs, trace = executor.run({"x": array})
            for name, expected in reference(model, {"x": array}).items():
                np.testing.assert_array_equal(outputs[name], expected)
            sane(executor, trace)

        agree(array)
        array += 1
        agree(array)
        agree(np.flip(array))
        agree(array)
        frozen = array * 2
        frozen.setflags(write=False)
        agree(frozen)
        agree(array * 3)
        agree(np.zeros(shape, np.float32)[:, ::1])


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_another_array_is_not_another_request(
    runtime: str, reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request brings an array of its own: the calls that were bound once read it, and nothing is bound anew."""
    shape = (1, 64, 32, 32)
    where = [f"{runtime}@0", f"{runtime}@1"]
    model, plan = two_readers(where, shape)
    with Device(discover(",".join(where), cache=tmp_path)) as device:
        executor = Executor(build_program(plan, model, device.processors), device)
        monkeypatch.delattr(type(executor.executables[0]), "bind")
        for seed in range(8):
            feeds = {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
            outputs, _ = executor.run(feeds)
            assert all(load.bound is feeds["x"] for load in flight_of(executor)._loads)
            for name, expected in reference(model, feeds).items():
                np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-6)


def test_the_perfetto_trace_is_complete(device: Device) -> None:
    """Every segment appears once as measured and once as predicted, with arrows where tensors change processor."""
    import json

    rng = random.Random(11)
    model = random_model(rng, 20)
    plan = random_legal_plan(model, list(device.processors.values()), rng)
    with Executor(build_program(plan, model, device.processors), device) as executor:
        _, trace = executor.run(random_inputs(model, 0))
        events = json.loads(json.dumps(to_perfetto(trace)))["traceEvents"]
        segments = executor.program.segments
    for category in ("segment", "predicted"):
        assert sorted(e["args"]["segment"] for e in events if e.get("cat") == category) == list(range(len(segments)))
    read = {(name, s.processor) for s in segments for name in s.segment.inputs}
    moves = [name for name, here in read if executor.program.home[name] not in ("host", here)]
    assert len([e for e in events if e["ph"] == "s"]) == len([e for e in events if e["ph"] == "f"]) == len(moves)
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_segment_is_compiled_near_its_cores(nodes: int, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is not equally near to all cores, by a thread on the processor's own, which is let go again."""
    from agent_sdk.engine import compiled as compiling

    seen: list[tuple[str, set[int]]] = []
    real = OrtProcessor.compile

    def compiled(processor: OrtProcessor, segment: Segment) -> object:
        seen.append((processor.id, os.sched_getaffinity(0)))
        return real(processor, segment)

    monkeypatch.setattr(compiling, "memory_nodes", lambda: nodes)
    monkeypatch.setattr(OrtProcessor, "compile", compiled)
    everywhere = os.sched_getaffinity(0)
    model = random_model(random.Random(2), 10)
    plan = dealt_plan(model, ["ort@0", "ort@1"])
    Executor(build_program(plan, model, device.processors), device).close()
    own = {"ort@0": {0}, "ort@1": {1}}
    assert {name for name, _ in seen} == own.keys()
    assert all(cores == (own[name] if nodes > 1 else everywhere) for name, cores in seen)
    assert os.sched_getaffinity(0) == everywhere
