"""Every processor of this machine, held to the same promises."""

from __future__ import annotations

import errno
import gc
import os
import random
import time
import weakref
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hope_zoo as zoo
from agent_sdk.errors import OutOfMemory, ProcessorError, ProcessorLost, UnsupportedOp, WrongOutput
from agent_sdk.model import read_model
from agent_sdk.native import LANES_VARIABLE
from agent_sdk.runtimes.base import Processor, Segment, segment_of, whole_network
from agent_sdk.runtimes.host import aligned_empty
from hope_schema import TensorType, merge
from tests.agent.models import one_op_model
from tests.agent.runtimes.blocks import blocked
from tests.agent.runtimes.networks import (
    RUNTIMES,
    cut_points,
    error,
    evaluate,
    image,
    of,
    random_model,
    run_once,
    run_segments,
    segments_of,
)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_processor_computes_the_network(runtime: str, processors: list[Processor]) -> None:
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
def test_mixed_runtimes_compute_the_network(seed: int, processors: list[Processor]) -> None:
    """Segments dealt out over all processors in turn, tensors transferred between them."""
    model = random_model(seed)
    groups = cut_points(model, random.Random(seed), largest=5)
    everyone = processors
    plain = {tensor.name for tensor in model.graph.tensors}
    inputs = image(model)
    outputs = run_segments(everyone, segments_of(model, groups, plain), inputs)
    for name, right in evaluate(model, inputs).items():
        assert error(outputs[name], right) < 1e-4, name


def test_single_core_of_one_runtime_is_bit_exact(processors: list[Processor]) -> None:
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
def test_a_bound_call_keeps_its_buffers(runtime: str, processors: list[Processor]) -> None:
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


@pytest.mark.parametrize("lanes", ["native", "sequence"])
@pytest.mark.parametrize("shape", [(1, 64, 9, 7), (2, 12, 5, 4)])
@pytest.mark.parametrize("outwards", [False, True])
def test_a_change_of_layout_is_right_and_keeps_its_memory(
    lanes: str, outwards: bool, shape: tuple[int, ...], processors: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NumPy makes it, blocks that are not full too; what it reads and writes lives as long as the call."""
    monkeypatch.setenv(LANES_VARIABLE, lanes)
    change = of(processors, "ort")[0].conversion(TensorType(shape=shape, dtype="float32"), outwards=outwards)
    if change is None:
        pytest.skip("this machine's kernels know no blocked layout")
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    source, target = (aligned_empty(kinds[name]) for kinds, name in
                      ((change.input_types, "x"), (change.output_types, "y")))  # fmt: skip
    source[...] = blocked(array) if outwards else array
    call, held = change.bind({"x": source}, {"y": target}), weakref.ref(source)
    del source
    gc.collect()
    call()
    np.testing.assert_array_equal(target, array if outwards else blocked(array))
    assert held() is not None
    change.close()


def double_model() -> onnx.ModelProto:
    """An op that ONNX knows and ONNX Runtime does not implement for its type: a convolution in double precision."""
    infos = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, 2, 4, 4]) for name in ("x", "y")]
    weights = helper.make_tensor("w", TensorProto.DOUBLE, [2, 2, 1, 1], [1.0] * 4)
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "double", infos[:1], infos[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_unsupported_is_said(processors: list[Processor]) -> None:
    """An op that the runtime does not implement raises UnsupportedOp, naming processor and op."""
    model = read_model(double_model())
    (super_op,) = merge(model.graph)
    processor = of(processors, "ort")[0]
    with pytest.raises(UnsupportedOp, match=r"ort@.*Conv"):
        processor.compile(segment_of(super_op, model))


PASSING = [
    ("Dropout", "", TensorProto.FLOAT),
    ("Dropout", "half", TensorProto.FLOAT),
    ("Max", "", TensorProto.UINT8),
    ("Min", "", TensorProto.INT8),
    ("Sum", "", TensorProto.FLOAT),
]


@pytest.mark.parametrize(("op", "ratio", "dtype"), PASSING)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_passes_an_input_through_is_right_or_refused(
    runtime: str, op: str, ratio: str, dtype: int, processors: list[Processor]
) -> None:
    """An output that is an input as it came, beside one that is computed: of this run, not of one before."""
    nodes = [helper.make_node(op, ["x", *ratio.split()], ["y"]), helper.make_node("Expand", ["x", "shape"], ["z"])]
    infos = [helper.make_tensor_value_info(name, dtype, [1, 3] if name == "x" else shape) for name, shape in
             (("x", []), ("y", [1, 3]), ("z", [2, 3]))]  # fmt: skip
    weights = [helper.make_tensor("shape", TensorProto.INT64, [2], [2, 3])]
    if ratio:
        weights.append(helper.make_tensor("half", TensorProto.FLOAT, [], [0.5]))
    graph = helper.make_graph(nodes, "passing", infos[:1], infos[1:], weights)
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    for processor in of(processors, runtime)[:2]:
        try:
            executable = processor.compile(whole_network(model))
        except UnsupportedOp:
            assert runtime != "ort"
            continue
        for value in (1, 2, 3):
            x = np.full((1, 3), value, helper.tensor_dtype_to_np_dtype(dtype))
            outputs = run_once(executable, {"x": processor.place.from_host(x)})
            for name, right in (("y", x), ("z", np.broadcast_to(x, (2, 3)))):
                assert np.array_equal(processor.place.to_host(outputs[name]), right), (processor.id, name)
        executable.close()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_wrong_buffer_is_refused(runtime: str, processors: list[Processor]) -> None:
    """Binding an output buffer of another shape is an error, not a write past its end."""
    model = read_model(one_op_model("Relu"))
    processor = of(processors, runtime)[0]
    executable = processor.compile(whole_network(model))
    with pytest.raises(WrongOutput, match=processor.id):
        executable.bind({"x": np.zeros((1, 4), np.float32)}, {"y": np.zeros((1, 3), np.float32)})


def test_a_buffer_that_onnx_runtime_cannot_read_is_refused(processors: list[Processor]) -> None:
    """Its own error, which is of no class of ours, names the processor."""
    executable = of(processors, "ort")[0].compile(whole_network(read_model(one_op_model("Relu"))))
    foreign = np.zeros((1, 4), np.dtype("bfloat16"))
    with pytest.raises(ProcessorError, match=r"ort@.*numpy"):
        executable.bind({"x": foreign}, {"y": np.zeros((1, 4), np.float32)})


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_closed_segments_refuse(runtime: str, processors: list[Processor]) -> None:
    """After close, binding is an error with a reason, and nothing runs anywhere."""
    processor = of(processors, runtime)[0]
    executable = processor.compile(whole_network(read_model(one_op_model("Relu"))))
    executable.close()
    with pytest.raises(ProcessorError, match="closed"):
        executable.bind({"x": np.zeros((1, 4), np.float32)}, {"y": np.zeros((1, 4), np.float32)})


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
    processors: list[Processor],
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


def test_segments_are_checked() -> None:
    """A segment without outputs, or that exports what it does not make, is refused."""
    model = read_model(one_op_model("Relu"))
    with pytest.raises(ValueError, match="output"):
        Segment(model, ("y",), ("x",), (), frozenset(), frozenset())
    with pytest.raises(ValueError, match="exports"):
        Segment(model, ("y",), ("x",), ("y",), frozenset({"x"}), frozenset())
