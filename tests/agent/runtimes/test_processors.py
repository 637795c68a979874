"""Every processor of this machine, held to the same promises."""

from __future__ import annotations

import errno
import gc
import os
import random
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hope_zoo as zoo
from agent_sdk.device.cores import bound_to
from agent_sdk.device.discovery import discover
from agent_sdk.device.soc import Soc
from agent_sdk.errors import ProcessorError, UnknownNameError
from agent_sdk.model import read_model
from agent_sdk.native import LOOP_VARIABLE
from agent_sdk.runtimes.base import (
    OutOfMemory,
    Processor,
    ProcessorLost,
    Segment,
    UnsupportedOp,
    WrongOutput,
    segment_of,
    whole_network,
)
from agent_sdk.runtimes.host import aligned_empty
from agent_sdk.runtimes.openvino.processor import OpenVinoProcessor
from agent_sdk.runtimes.ort.graph import LEVELS
from agent_sdk.runtimes.ort.processor import OrtProcessor
from hope_schema import TensorType, merge
from hope_schema.graph import DType
from tests.agent.cores import SEVERAL
from tests.agent.models import one_op_model
from tests.agent.runtimes.networks import (
    cut_points,
    error,
    evaluate,
    image,
    random_model,
    run_once,
    run_segments,
    segments_of,
)

RUNTIMES = ["ort", "ov"]


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Processor]:
    """What this machine has, by id."""
    return {processor.id: processor for processor in discover(cache=tmp_path_factory.mktemp("ort"))}


def of(processors: dict[str, Processor], runtime: str) -> list[Processor]:
    """The processors of one runtime."""
    return [processor for processor in processors.values() if processor.spec.runtime == runtime]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_processor_computes_the_network(runtime: str, processors: dict[str, Processor]) -> None:
    """The whole network as one segment, on single cores and gangs."""
    model = random_model(11)
    inputs = image(model)
    expected = evaluate(model, inputs)
    for processor in of(processors, runtime):
        executable = processor.compile(whole_network(model))
        outputs = run_once(executable, {name: processor.place.from_host(array) for name, array in inputs.items()})
        for name, right in expected.items():
            assert error(processor.place.to_host(outputs[name]), right) < 1e-4, processor.id
        executable.close()


@pytest.mark.parametrize("seed", range(6))
def test_mixed_runtimes_compute_the_network(seed: int, processors: dict[str, Processor]) -> None:
    """Segments dealt out over all processors in turn, tensors transferred between them."""
    model = random_model(seed)
    groups = cut_points(model, random.Random(seed), largest=5)
    everyone = list(processors.values())
    plain = {tensor.name for tensor in model.graph.tensors}
    inputs = image(model)
    outputs = run_segments(everyone, segments_of(model, groups, plain), inputs)
    for name, right in evaluate(model, inputs).items():
        assert error(outputs[name], right) < 1e-4, name


def test_single_core_of_one_runtime_is_bit_exact(processors: dict[str, Processor]) -> None:
    """ONNX Runtime's cuts on one core give the very bits of its uncut network."""
    model = read_model(zoo.build("squeezenet"))
    processor = of(processors, "ort")[0]
    inputs = image(model)
    whole = run_once(processor.compile(whole_network(model)), inputs)
    segments = segments_of(model, [[super_op] for super_op in merge(model.graph)], set())
    outputs = run_segments([processor], segments, inputs)
    for name, array in outputs.items():
        assert np.array_equal(array, processor.place.to_host(whole[name]))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_bound_call_keeps_its_buffers(runtime: str, processors: dict[str, Processor]) -> None:
    """The caller may drop its arrays after binding: the runtime never computes on freed memory."""
    model = random_model(4)
    processor = of(processors, runtime)[0]
    executable = processor.compile(whole_network(model))
    inputs = image(model)
    expected = run_once(executable, {name: array.copy() for name, array in inputs.items()})
    outputs = {name: processor.place.allocate(kind) for name, kind in executable.output_types.items()}
    call = executable.bind({name: array.copy() for name, array in inputs.items()}, outputs)
    gc.collect()
    spoil = [np.full(array.shape, np.nan, np.float32) for array in inputs.values() for _ in range(50)]
    for _ in range(2):
        call()
        for name in outputs:
            assert np.array_equal(outputs[name], expected[name])
    del spoil


@pytest.mark.parametrize("lanes", ["native", "python"])
@pytest.mark.parametrize("outwards", [False, True])
def test_a_timed_change_of_layout_keeps_its_memory(
    lanes: str, outwards: bool, processors: dict[str, Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads and writes lives as long as the call: freed, it would be written over what came to stand there."""
    monkeypatch.setenv(LOOP_VARIABLE, lanes)
    made: list[weakref.ref[np.ndarray]] = []

    def noted(kind: TensorType) -> np.ndarray:
        array = aligned_empty(kind)
        made.append(weakref.ref(array))
        return array

    monkeypatch.setattr("agent_sdk.runtimes.ort.processor.aligned_empty", noted)
    call = of(processors, "ort")[0].conversion(TensorType(shape=(1, 64, 56, 56), dtype="float32"), outwards=outwards)
    if call is None:
        pytest.skip("this machine's kernels know no blocked layout")
    gc.collect()
    call()
    assert [ref() is None for ref in made] == [False, False]


def double_model() -> onnx.ModelProto:
    """An op that ONNX knows and ONNX Runtime does not implement for its type: a convolution in double precision."""
    infos = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, 2, 4, 4]) for name in ("x", "y")]
    weights = helper.make_tensor("w", TensorProto.DOUBLE, [2, 2, 1, 1], [1.0] * 4)
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "double", infos[:1], infos[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_unsupported_is_said(processors: dict[str, Processor]) -> None:
    """An op that the runtime does not implement raises UnsupportedOp, naming processor and op."""
    model = read_model(double_model())
    (super_op,) = merge(model.graph)
    processor = of(processors, "ort")[0]
    with pytest.raises(UnsupportedOp, match=r"ort@.*Conv"):
        processor.compile(segment_of(super_op, model))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_wrong_buffer_is_refused(runtime: str, processors: dict[str, Processor]) -> None:
    """Binding an output buffer of another shape is an error, not a write past its end."""
    model = read_model(one_op_model("Relu"))
    processor = of(processors, runtime)[0]
    executable = processor.compile(whole_network(model))
    with pytest.raises(WrongOutput, match=processor.id):
        executable.bind({"x": np.zeros((1, 4), np.float32)}, {"y": np.zeros((1, 3), np.float32)})


@pytest.mark.parametrize("dtype", get_args(DType))
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_buffer_of_any_type_has_its_shape_or_is_refused(
    runtime: str, dtype: DType, processors: dict[str, Processor]
) -> None:
    """What NumPy has no type of its own for is unsupported, although the onnx package registers types for it."""
    processor = of(processors, runtime)[0]
    kind = TensorType(shape=(4, 8), dtype=dtype)
    if dtype == "bfloat16" or dtype.endswith("int4"):
        with pytest.raises(UnsupportedOp, match=dtype):
            processor.place.allocate(kind)
        with pytest.raises(UnsupportedOp, match=dtype):
            processor.place.view(np.zeros(64, np.uint8), kind)
    else:
        assert processor.place.view(processor.place.allocate(kind), kind).shape == (4, 8)


def test_a_buffer_that_onnx_runtime_cannot_read_is_refused(processors: dict[str, Processor]) -> None:
    """Its own error, which is of no class of ours, names the processor."""
    executable = of(processors, "ort")[0].compile(whole_network(read_model(one_op_model("Relu"))))
    foreign = np.zeros((1, 4), np.dtype("bfloat16"))
    with pytest.raises(ProcessorError, match=r"ort@.*numpy"):
        executable.bind({"x": foreign}, {"y": np.zeros((1, 4), np.float32)})


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_closed_segments_refuse(runtime: str, processors: dict[str, Processor]) -> None:
    """After close, binding is an error with a reason, and nothing runs anywhere."""
    processor = of(processors, runtime)[0]
    executable = processor.compile(whole_network(read_model(one_op_model("Relu"))))
    executable.close()
    with pytest.raises(ProcessorError, match="closed"):
        executable.bind({"x": np.zeros((1, 4), np.float32)}, {"y": np.zeros((1, 4), np.float32)})


def test_equal_cores_are_one_kind(processors: dict[str, Processor]) -> None:
    """Two equal cores share their kind, a gang does not, and resources say who excludes whom."""
    for runtime in RUNTIMES:
        own = of(processors, runtime)
        singles = [processor for processor in own if processor.spec.threads == 1]
        gangs: list[Any] = [processor for processor in own if processor.spec.threads > 1]
        assert len({processor.spec.kind for processor in singles}) <= len({p.spec.core_class for p in singles})
        for gang in gangs:
            assert gang.spec.kind not in {processor.spec.kind for processor in singles}
            assert set(gang.spec.resources) == {f"cpu{core}" for core in gang.caller_cores | set(gang.cores)}


@SEVERAL
def test_a_gangs_workers_are_bound_to_the_other_cores(processors: dict[str, Processor]) -> None:
    """The runtime counts cores from 1 and leaves out the caller: its worker must end up on the gang's second core."""
    gang = next(processor for processor in of(processors, "ort") if processor.spec.threads > 1)
    assert isinstance(gang, OrtProcessor)

    def masks() -> list[set[int]]:
        return [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]

    before = masks().count({gang.cores[1]})
    executable = gang.compile(whole_network(random_model(4)))
    end = time.monotonic() + 10
    while masks().count({gang.cores[1]}) == before and time.monotonic() < end:
        time.sleep(0.01)  # the worker binds itself once it runs
    assert masks().count({gang.cores[1]}) == before + 1
    executable.close()


def test_single_cores_start_no_threads() -> None:
    """One thread means the caller's: no worker that could spin beside it."""
    options = OrtProcessor(Soc("test", "test", {0: "core"}), frozenset({0})).options(LEVELS[0])
    assert options.intra_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_buffers_are_aligned_and_shared(processors: dict[str, Processor]) -> None:
    """Buffers start on a cache line, and processors in host memory look at each other's without a copy."""
    everyone = list(processors.values())
    for processor in everyone:
        buffer = processor.place.allocate(TensorType(shape=(3, 5), dtype="float32"))
        assert buffer.ctypes.data % 64 == 0
        for other in everyone:
            assert other.place.same_memory(processor.place)
            assert np.shares_memory(other.place.to_host(buffer), buffer)


def test_a_view_may_begin_anywhere(processors: dict[str, Processor]) -> None:
    """Several tensors may stand in one buffer, one behind the other."""
    place = next(iter(processors.values())).place
    both = place.allocate(TensorType(shape=(32,), dtype="uint8"))
    first, second = (place.view(both, TensorType(shape=(2, 2), dtype="float32"), offset) for offset in (0, 16))
    place.from_host(np.ones((2, 2), np.float32), first)
    place.from_host(np.full((2, 2), 2, np.float32), second)
    assert np.array_equal(place.to_host(both).view(np.float32), [1, 1, 1, 1, 2, 2, 2, 2])


def test_transfers_into_a_buffer_copy(processors: dict[str, Processor]) -> None:
    """With a target the tensor is copied there; another type is refused, not converted."""
    first, *_, last = (processor.place for processor in processors.values())
    source = first.from_host(np.arange(6, dtype=np.float32).reshape(2, 3))
    into = last.allocate(TensorType(shape=(2, 3), dtype="float32"))
    assert last.bring(source, first, into) is into
    assert np.array_equal(into, source)
    with pytest.raises(TypeError):
        last.from_host(np.zeros((2, 3), np.float64), into)


def test_unknown_processors_are_named(tmp_path: Path) -> None:
    """An unknown id names what there is; a runtime's name means all of its processors."""
    with pytest.raises(UnknownNameError, match="gpu@7"):
        discover("gpu@7", cache=tmp_path)
    with pytest.raises(UnknownNameError):
        discover("", cache=tmp_path)
    chosen = discover("ort", cache=tmp_path)
    assert {processor.spec.runtime for processor in chosen} == {"ort"}
    assert [processor.id for processor in discover("ort@0,ort@0", cache=tmp_path)] == ["ort@0"]


def discovered(spec: str | None, cache: Path, packages: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What a new process finds, and whether it has imported OpenVINO; ``packages`` come before the installed ones."""
    command = (
        "import sys, pathlib; from agent_sdk.device.discovery import discover; "
        f"print([p.id for p in discover({spec!r}, cache=pathlib.Path({str(cache)!r}))], 'openvino' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    paths = os.pathsep.join(str(path) for path in (packages, root) if path)
    return subprocess.run(
        [sys.executable, "-c", command], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )


def test_a_runtime_that_is_not_named_is_left_alone(tmp_path: Path, processors: dict[str, Processor]) -> None:
    """Whoever wants ONNX Runtime alone does not wait for OpenVINO to be imported."""
    ids = [processor.id for processor in of(processors, "ort")]
    assert discovered("ort", tmp_path).stdout == f"{ids} False\n"
    assert discovered(ids[0], tmp_path).stdout == f"{ids[:1]} False\n"


def broken_openvino(failure: str, folder: Path) -> Path:
    """Where OpenVINO is found first, and fails when it is imported."""
    (folder / "openvino").mkdir()
    (folder / "openvino" / "__init__.py").write_text(f"raise {failure}('lib.so: cannot open')")
    return folder


@pytest.mark.parametrize("failure", ["ImportError", "RuntimeError", "OSError"])
def test_a_runtime_that_does_not_start_is_left_out(
    failure: str, tmp_path: Path, processors: dict[str, Processor]
) -> None:
    """A broken OpenVINO costs its own processors: it is told, and the others are found."""
    found = discovered(None, tmp_path, broken_openvino(failure, tmp_path))
    assert found.stdout == f"{[processor.id for processor in of(processors, 'ort')]} False\n"
    assert "OpenVINO" in found.stderr
    assert "lib.so: cannot open" in found.stderr


def test_naming_a_runtime_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    """Nothing is said of it where it is not named."""
    broken_openvino("ImportError", tmp_path)
    assert discovered("ort@0", tmp_path, tmp_path).stderr == ""
    assert "UnknownNameError: unknown processor 'ov@0'; did you mean ort@0" in (
        discovered("ov@0", tmp_path, tmp_path).stderr
    )


def test_providers_of_one_device_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA and TensorRT share a GPU, what computes on the cores claims them, and others have hardware of their own."""
    kinds = ("Tensorrt", "CUDA", "MIGraphX", "Dnnl", "Xnnpack", "OpenVINO", "Azure", "WebGpu", "CPU")
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: [f"{kind}ExecutionProvider" for kind in kinds])
    soc = Soc("test", "test", dict.fromkeys((0, 1), "core"))
    found = {processor.id: processor.spec.resources for processor in discover(soc=soc, cache=tmp_path)}
    cores = ("cpu0", "cpu1")
    assert {name: resources for name, resources in found.items() if name.startswith("ort-")} == {
        "ort-tensorrt@0": ("cuda0",),
        "ort-cuda@0": ("cuda0",),
        "ort-migraphx@0": ("rocm0",),
        "ort-dnnl@0": cores,
        "ort-xnnpack@0": cores,
        "ort-openvino@0": cores,
        "ort-webgpu@0": ("webgpu0",),
    }


@pytest.mark.parametrize(
    ("runtime", "accelerator"),
    [("ort", "CUDAExecutionProvider"), ("ort", "DnnlExecutionProvider"), ("openvino", "GPU")],
)
def test_an_accelerator_does_not_compute_on_the_callers_thread(runtime: str, accelerator: str) -> None:
    """On a machine with one core too, the CPU time of its caller is not its latency; the core's own is."""
    maker = {"ort": OrtProcessor, "openvino": OpenVinoProcessor}[runtime]
    soc = Soc("test", "test", {0: "core"})
    assert maker(soc, frozenset({0})).on_caller_thread
    assert not maker(soc, frozenset({0}), accelerator).on_caller_thread


@pytest.mark.parametrize(
    ("what", "instead", "meaning", "said"),
    [
        (
            "agent_sdk.runtimes.ort.processor.TemporaryFolder",
            Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
            OutOfMemory,
            "tracing: .*No space left",
        ),
        ("agent_sdk.runtimes.ort.profile.Path.read_bytes", lambda path: b'[{"cat": "No', OutOfMemory, "is cut off"),
        ("tempfile.tempdir", "/absent", ProcessorLost, "tracing: .*No such file"),
    ],
    ids=["full", "cut off", "no folder"],
)
def test_a_trace_that_cannot_be_written(
    what: str,
    instead: object,
    meaning: type[ProcessorError],
    said: str,
    processors: dict[str, Processor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is an error of the processor's, which costs the profile this trace only; a full disk is told as such.

    ONNX Runtime does not notice that it writes to a full disk: the trace is cut off.
    """
    (processor, *_) = of(processors, "ort")
    model = random_model(11)
    assert processor.time_ops(model, time.monotonic())
    monkeypatch.setattr(what, instead)
    with pytest.raises(meaning, match=said):
        processor.time_ops(model, time.monotonic())


def test_binding_a_thread_is_undone() -> None:
    """A thread's mask is what it was before, also after an error."""
    before = os.sched_getaffinity(0)
    seen = []

    def fail() -> None:
        with bound_to(frozenset({min(before)})):
            seen.append(os.sched_getaffinity(0))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [{min(before)}]
    assert os.sched_getaffinity(0) == before


def test_segments_are_checked() -> None:
    """A segment without outputs, or that exports what it does not make, is refused."""
    model = read_model(one_op_model("Relu"))
    with pytest.raises(ValueError, match="output"):
        Segment(model, ("y",), ("x",), (), frozenset(), frozenset())
    with pytest.raises(ValueError, match="exports"):
        Segment(model, ("y",), ("x",), ("y",), frozenset({"x"}), frozenset())
