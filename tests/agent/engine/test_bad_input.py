"""Bad input on real parts: real runtimes that fail, lie, run out of memory or lose their core.

What only a runtime on foreign hardware can do is shown on simulated processors in ``test_failures``.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from agent_sdk import Agent
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.errors import (
    HopeError,
    OutOfMemory,
    PlanMismatchError,
    ProcessorError,
    ProcessorLost,
    SegmentFailedError,
    UnsupportedOp,
    WrongOutput,
)
from agent_sdk.machine.soc import Soc, read_soc
from agent_sdk.model import Model, read_model
from agent_sdk.model.weights import LightModels
from agent_sdk.paths import CACHE_VARIABLE
from agent_sdk.runtimes.base import whole_network
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.openvino.processor import OpenVinoProcessor
from agent_sdk.runtimes.ort import processor as ort
from hope_schema import ModelGraph, Plan, merge
from tests.agent.cores import GONE
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import (
    dealt_plan,
    plan_of,
    random_inputs,
    random_legal_plan,
    random_model,
    whole_plan,
)
from tests.agent.haste import measure_hastily
from tests.agent.models import branching_model
from tests.agent.runtimes.networks import RUNTIMES, bfloat16_model, run_once

WATCHDOG_S = 30.0
MIXED = "ort@0,ort@1,ov@0,ov@1"


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Device]:
    """Both runtimes on single cores; afterwards every thread of ours is gone."""
    before = {t for t in threading.enumerate() if t.name.startswith("hope-")}
    with Device(discover(MIXED, cache=tmp_path)) as device:
        yield device
    assert {t for t in threading.enumerate() if t.name.startswith("hope-")} <= before


def model_of(nodes: Sequence[onnx.NodeProto], inputs: dict[str, tuple[int, tuple[int, ...]]], out: str) -> Model:
    """A model with one float output of a shape that is found by inference."""
    graph = helper.make_graph(
        nodes,
        "bad",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
    )
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def placed(model: Model, where: Sequence[str], device: Device) -> Plan:
    """The ops in order, each on the processor named for it."""
    super_ops = merge(model.graph)
    order = [op.id for op in model.graph.topological_ops]
    at = {i: where[min(order.index(op.id) for op in s.ops)] for i, s in enumerate(super_ops)}
    return plan_of(model, super_ops, range(len(super_ops)), at, list(device.processors))


def compile_and_run(model: Model, where: Sequence[str], device: Device, feeds: dict[str, np.ndarray]) -> None:
    """Raises whatever the first run raises, or what comes before it."""
    executor = Executor(build_program(placed(model, where, device), model, device.processors), device)
    executor.run(feeds, timeout_s=WATCHDOG_S)


def works(device: Device, reference: Reference) -> None:
    """The device still computes, on all of its processors."""
    model = random_model(random.Random(8), 16)
    feeds = random_inputs(model, 0)
    plan = random_legal_plan(model, list(device.processors.values()), random.Random(3))
    with Executor(build_program(plan, model, device.processors), device) as executor:
        outputs, _ = executor.run(feeds, timeout_s=WATCHDOG_S)
    for name, expected in reference(model, feeds).items():
        assert np.abs(outputs[name] - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("after", ["ort@1", "ov@1"])
def test_a_runtime_that_fails_in_the_middle_of_a_run(after: str, mixed: Device, reference: Reference) -> None:
    """ONNX Runtime refuses an index out of range: one error with the cause, and the very session goes on."""
    nodes = [
        helper.make_node("Sin", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "i"], ["g"], axis=0),
        helper.make_node("Cos", ["g"], ["y"]),
    ]
    model = model_of(nodes, {"x": (TensorProto.FLOAT, (4, 8)), "i": (TensorProto.INT64, (3,))}, "y")
    feeds = {"x": np.ones((4, 8), np.float32), "i": np.array([0, 3, 1])}
    where = dict(zip(["s", "g", "y"], ["ov@0", "ort@0", after], strict=True))
    ops = [where[op.id] for op in model.graph.topological_ops]
    with Executor(build_program(placed(model, ops, mixed), model, mixed.processors), mixed) as executor:
        expected = reference(model, feeds)["y"]
        for _ in range(3):
            np.testing.assert_allclose(executor.run(feeds)[0]["y"], expected, rtol=1e-4)
            with pytest.raises(SegmentFailedError, match=r"'g'.* failed on 'ort@0'") as caught:
                executor.run(feeds | {"i": np.array([0, 99, 1])}, timeout_s=WATCHDOG_S)
            assert isinstance(caught.value.__cause__, ProcessorLost)
        np.testing.assert_allclose(executor.run(feeds)[0]["y"], expected, rtol=1e-4)


def lying(graph: ModelGraph, name: str, shape: tuple[int, ...], dtype: str) -> ModelGraph:
    """The graph with another type declared for one tensor, so that its honest runtime seems to return a wrong one."""
    tensors = [tensor.model_dump() for tensor in graph.tensors]
    for tensor in tensors:
        if tensor["name"] == name:
            tensor.update(shape=shape, dtype=dtype)
    return ModelGraph.model_validate(graph.model_dump() | {"tensors": tuple(tensors)})


@pytest.mark.parametrize("where", [("ort@0", "ort@0", "ort@1"), ("ov@0", "ov@0", "ov@1"), ("ort@0", "ort@0", "ov@1")])
@pytest.mark.parametrize("kind", [((1, 8, 4, 3), "float32"), ((8, 4, 4), "float32"), ((1, 8, 4, 4), "int32")])
def test_a_wrong_shape_between_segments_never_reaches_a_reader(
    where: tuple[str, ...], kind: tuple[tuple[int, ...], str], mixed: Device, reference: Reference
) -> None:
    """A tensor inside the plan that is not what the graph declares is refused, while compiling or when it is made."""
    nodes = [helper.make_node(op, [a], [b]) for op, a, b in (("Relu", "x", "a"), ("Sin", "a", "b"), ("Cos", "b", "y"))]
    honest = model_of(nodes, {"x": (TensorProto.FLOAT, (1, 8, 4, 4))}, "y")
    model = replace(honest, graph=lying(honest.graph, "b", *kind))
    with pytest.raises((ProcessorError, SegmentFailedError)) as caught:
        compile_and_run(model, where, mixed, random_inputs(model, 0))
    if isinstance(caught.value, SegmentFailedError):
        assert isinstance(caught.value.__cause__, WrongOutput)
        assert caught.value.segment == 0
    works(mixed, reference)


@pytest.mark.parametrize("there", [["ort@0"], ["ort@0", "ort@1"], ["ort@1", "ort@0"]])
def test_a_core_that_is_gone_fails_the_run_and_nothing_else(there: list[str], tmp_path: Path) -> None:
    """A core that this process may not use (any more) is one error, wherever its thread comes in."""
    soc = Soc("test", "test", dict.fromkeys((0, 1, GONE), "core"))
    model = random_model(random.Random(8), 16)
    names = [*there, f"ort@{GONE}"]
    with Device(discover(",".join(names), soc=soc, cache=tmp_path)) as device:
        for turn in (0, 1):
            plan = dealt_plan(model, names[turn:] + names[:turn])
            with Executor(build_program(plan, model, device.processors), device) as executor:
                for watchdog_s in (WATCHDOG_S, None):
                    with pytest.raises(SegmentFailedError, match=rf"failed on 'ort@{GONE}'.*cpu{GONE}") as caught:
                        executor.run(random_inputs(model, 0), timeout_s=watchdog_s)
                    assert isinstance(caught.value.__cause__, ProcessorLost)
        with Executor(build_program(whole_plan(model, there[0]), model, device.processors), device) as executor:
            executor.run(random_inputs(model, 0), timeout_s=WATCHDOG_S)


@pytest.mark.parametrize("runtime", ["ort", "ov"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_tensor_that_does_not_fit_is_one_error(runtime: str, cut: bool, mixed: Device, reference: Reference) -> None:
    """128 TiB between two ops: refused while opening where the tensor crosses a border, else when the runtime tries."""
    huge = onnx.numpy_helper.from_array(np.array([2**23, 2**22], np.int64))
    nodes = [
        helper.make_node("Constant", [], ["shape"], value=huge),
        helper.make_node("Expand", ["x", "shape"], ["big"]),
        helper.make_node("ReduceMax", ["big"], ["y"], keepdims=0),
    ]
    model = model_of(nodes, {"x": (TensorProto.FLOAT, (1, 1))}, "y")
    where = [f"{runtime}@0", f"{runtime}@1" if cut else f"{runtime}@0"]
    with pytest.raises((ProcessorError, SegmentFailedError)) as caught:
        compile_and_run(model, where, mixed, {"x": np.ones((1, 1), np.float32)})
    cause = caught.value.__cause__ if isinstance(caught.value, SegmentFailedError) else caught.value
    # OpenVINO may refuse to describe such a tensor before it tries to allocate it.
    assert isinstance(cause, OutOfMemory if runtime == "ort" else ProcessorError)
    works(mixed, reference)


def starved(runtime: str) -> tuple[str, str]:
    """What compiling 32 MiB of weights says while only 8 MiB are left, and what it computes with room again."""
    weights = onnx.numpy_helper.from_array(np.ones((2048, 4096), np.float32))
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weights),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    segment = whole_network(model_of(nodes, {"x": (TensorProto.FLOAT, (1, 2048))}, "y"))
    with TemporaryDirectory() as cache:
        (processor,) = discover(f"{runtime}@0", cache=Path(cache))
        processor.compile(segment).close()
        used = psutil.Process().memory_info().vms
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**23, limits[1]))
        try:
            said = str(processor.compile(segment))
        except OutOfMemory as error:
            said = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        made = run_once(processor.compile(segment), {"x": np.ones((1, 2048), np.float32)})["y"]
        return said, str(np.unique(made))


@pytest.fixture(scope="module")
def another_process() -> Iterator[ProcessPoolExecutor]:
    """A process whose memory may be limited."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_want_of_memory_is_not_taken_for_an_unsupported_op(runtime: str, another_process: ProcessPoolExecutor) -> None:
    """A real shortage is OutOfMemory with its cure, and with room again all is well."""
    said, made = another_process.submit(starved, runtime).result()
    assert said.startswith(f"{runtime}@0: ")
    assert said.endswith("use fewer processors or a smaller model")
    assert made == "[2048.]"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_disk_without_room_is_one_error(runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where weights cannot be written, nor among temporary files, the error says where, why, and what to do."""
    in_the_way = tmp_path / "a-file"
    in_the_way.touch()
    (processor,) = discover(f"{runtime}@0", cache=in_the_way)
    if runtime == "ort":
        processor.compile(whole_network(read_model(branching_model()))).close()
    monkeypatch.setattr(tempfile, "tempdir", str(in_the_way))
    with pytest.raises(OutOfMemory, match=rf"'{in_the_way}/weights': .*{CACHE_VARIABLE}"):
        processor.compile(whole_network(read_model(branching_model())))


@pytest.mark.parametrize(
    ("number", "meaning"),
    [
        (errno.ENOMEM, OutOfMemory),
        (errno.ENOSPC, OutOfMemory),
        (errno.EDQUOT, OutOfMemory),
        (errno.ENOENT, ProcessorLost),
        (errno.EACCES, ProcessorLost),
    ],
)
def test_only_a_shortage_is_called_one(number: int, meaning: type[ProcessorError]) -> None:
    """A file that is missing or forbidden is the machine's trouble as well, but less work is no cure for it."""
    said = ort.translated(OSError(number, os.strerror(number), "model.onnx"), "ort@0")
    assert type(said) is meaning
    assert os.strerror(number) in str(said)
    assert ("use fewer processors" in str(said)) == (meaning is OutOfMemory)


def test_a_missing_file_is_not_taken_for_an_unsupported_op(tmp_path: Path) -> None:
    """Where somebody has removed the weights, OpenVINO's processor says which file is missing."""
    lights = LightModels(tmp_path)
    model = read_model(branching_model())
    _, folder = lights.get(model)
    shutil.rmtree(folder)
    processor = OpenVinoProcessor(read_soc(), frozenset(read_soc().cores[:1]), lights=lights)
    with pytest.raises(ProcessorLost, match=rf"No such file or directory: '{folder}/[^']*'$"):
        processor.compile(whole_network(model))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_type_that_cannot_cross_borders(runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in bfloat16, which OpenVINO is not trusted with, is refused as ONNX Runtime refuses it, by its op."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    measure_hastily(monkeypatch)
    with (
        Agent(processors="ort" if runtime == "ort" else "ort,ov") as agent,
        pytest.raises(HopeError, match="Could not find an implementation for MatMul"),
    ):
        agent.load(bfloat16_model(), background=False)


@pytest.mark.parametrize("where", [("ort@0", "ov@1"), ("ov@0", "ov@1")])
def test_a_plan_that_hands_over_such_a_type_is_refused(where: tuple[str, str], mixed: Device) -> None:
    """Nobody views its memory as another type: opening is one error that names the type."""
    model = read_model(bfloat16_model())
    with pytest.raises(UnsupportedOp, match="bfloat16"):
        Executor(build_program(placed(model, [*where, where[1], where[1]], mixed), model, mixed.processors), mixed)


def test_a_plan_for_a_processor_that_is_not_here(mixed: Device, reference: Reference) -> None:
    """One line with what there is instead; nothing was compiled."""
    model = random_model(random.Random(8), 16)
    with pytest.raises(PlanMismatchError, match=r"'ov-npu@0', which this device lacks; it has .*ort@0, ort@1, ov@0"):
        build_program(whole_plan(model, "ov-npu@0"), model, mixed.processors)
    works(mixed, reference)


def test_sessions_and_callers_at_once_on_mixed_runtimes(mixed: Device, reference: Reference) -> None:
    """Six callers over three sessions on both runtimes: the same bits as when each runs alone."""
    sessions = []
    for seed in range(3):
        rng = random.Random(seed)
        model = random_model(rng, 14)
        plan = random_legal_plan(model, list(mixed.processors.values()), rng)
        executor = Executor(build_program(plan, model, mixed.processors), mixed)
        feeds = [random_inputs(model, turn) for turn in range(2)]
        alone = [executor.run(own)[0] for own in feeds]
        for own, outputs in zip(feeds, alone, strict=True):
            for name, expected in reference(model, own).items():
                assert np.abs(outputs[name] - expected).max() <= 1e-4 * np.abs(expected).max()
        sessions.append((executor, feeds, alone))

    def call(caller: int) -> None:
        executor, feeds, alone = sessions[caller % 3]
        for turn in range(10):
            outputs, _ = executor.run(feeds[turn % 2], timeout_s=WATCHDOG_S if caller % 2 else None)
            for name, expected in alone[turn % 2].items():
                np.testing.assert_array_equal(outputs[name], expected)

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(call, caller) for caller in range(6)]:
            future.result(WATCHDOG_S)
