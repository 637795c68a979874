"""The torch runtime behind the engine's interface, on torch's CPU device; streams and events are simulated."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from agent_sdk import Agent
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.errors import CompilationFailed, OutOfMemory, ProcessorLost, UnsupportedOp
from agent_sdk.explain import to_perfetto
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.verify import Judge
from agent_sdk.machine.soc import Soc, accelerator_names
from agent_sdk.measure.profiler import profile
from agent_sdk.measure.truth import observations
from agent_sdk.model import Content, Model, read_model
from agent_sdk.model.feeds import draw
from agent_sdk.model.united import united
from agent_sdk.runtimes import offered
from agent_sdk.runtimes.base import Timed, segment_of, whole_network
from agent_sdk.runtimes.torch import processor as torch_processor
from agent_sdk.runtimes.torch.choice import Choice, choices, parsed
from agent_sdk.runtimes.torch.driver import Eager, Recording
from agent_sdk.runtimes.torch.executable import TorchExecutable, Way, narrowest, ways_of
from agent_sdk.runtimes.torch.kernel import Kernel, build, drawn, recipes, translated
from agent_sdk.runtimes.torch.place import DevicePlace
from agent_sdk.runtimes.torch.precision import Precision
from agent_sdk.runtimes.torch.processor import TorchProcessor
from agent_sdk.runtimes.torch.schedule import Schedule
from agent_sdk.runtimes.torch.shares import Occupancy
from hope_schema import (
    LatencyColumns,
    Missing,
    MissingLatency,
    Profile,
    TensorType,
    TransferColumns,
    by_recipe,
    merge,
)
from planner_api.planning import plan
from tests.agent.haste import measure_hastily
from tests.agent.model.random_models import RandomModel
from tests.agent.models import BRANCHING, one_op_model
from tests.agent.runtimes.networks import run_once
from tests.agent.runtimes.torch.simulated import Simulated

SOC = Soc(name="test", frequency="fixed", core_class={0: "core"})


def processor(precision: str = "fp32", *, channels_last: bool = False) -> TorchProcessor:
    """The CPU as torch drives it."""
    made = TorchProcessor(SOC, Choice("cpu", precision))
    made.precision = Precision(precision, channels_last)
    return made


def images() -> bytes:
    """A network with all that is folded, and windows of every awkward kind."""
    rng = np.random.default_rng(3)
    weights: list[onnx.TensorProto] = []

    def weight(*shape: int, low: float | None = None) -> str:
        values = rng.standard_normal(shape) / 3 if low is None else rng.uniform(low, 2, shape)
        weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{len(weights)}"))
        return weights[-1].name

    def batch(source: str, target: str, channels: int = 8) -> onnx.NodeProto:
        own = [weight(channels), weight(channels), weight(channels), weight(channels, low=0.5)]
        return helper.make_node("BatchNormalization", [source, *own], [target])

    node = helper.make_node
    nodes = [
        node("Conv", ["x", weight(8, 3, 3, 3)], ["a"], auto_pad="SAME_UPPER", strides=[2, 2]),
        batch("a", "b"),
        node("Mul", ["b", weight(8, 1, 1)], ["c"]),
        node("Add", [weight(1, 8, 1, 1), "c"], ["d"]),
        node("Relu", ["d"], ["e"]),
        node("Conv", ["e", weight(8, 1, 5, 5), weight(8)], ["f"], group=8, pads=[2, 1, 2, 3]),
        node("Conv", ["e", weight(8, 8, 1, 1), weight(8)], ["g"]),
        node("Relu", ["g"], ["h"]),
        node("Sub", ["f", weight(8, 1, 1)], ["i"]),
        batch("h", "j"),
        node("Sigmoid", ["j"], ["k"]),
        node("AveragePool", ["k"], ["l"], kernel_shape=[3, 3], pads=[0, 0, 2, 1], strides=[1, 1], count_include_pad=1),
        node("AveragePool", ["i"], ["m"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], ceil_mode=1),
        node("MaxPool", ["h"], ["n"], kernel_shape=[3, 3], pads=[0, 1, 1, 0], strides=[2, 2], ceil_mode=1),
        node("Conv", ["n", weight(8, 8, 1, 1)], ["o"]),
        node("Concat", ["m", "o"], ["p"], axis=1),
        node("LRN", ["p"], ["q"], size=5, alpha=0.3, bias=1.5),
        node("GlobalAveragePool", ["q"], ["r"]),
        node("Flatten", ["r"], ["s"]),
        node("Gemm", ["s", weight(10, 16), weight(10)], ["y"], transB=1),
        node("GlobalMaxPool", ["l"], ["z"]),
        node("Conv", ["q", weight(1, 16, 1, 1)], ["t"]),
        node("Add", ["t", weight(4, 1, 1)], ["u"]),
    ]
    infos = {"x": [1, 3, 17, 17], "y": [1, 10], "z": [1, 8, 1, 1], "u": [1, 4, 4, 4]}
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in infos.items()]
    graph = helper.make_graph(nodes, "images", made[:1], made[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9).SerializeToString()


def encoder() -> bytes:
    """One block of a transformer encoder, as exporters write it."""
    rng = np.random.default_rng(4)
    node, weights = helper.make_node, {}

    def weight(*shape: int) -> str:
        weights[f"w{len(weights)}"] = (rng.standard_normal(shape) / 4).astype(np.float32)
        return f"w{len(weights) - 1}"

    def shape(*values: int) -> str:
        weights[f"w{len(weights)}"] = np.array(values, np.int64)
        return f"w{len(weights) - 1}"

    nodes = [node("LayerNormalization", ["x", weight(16), weight(16)], ["n"])]
    for name in "qkv":
        nodes += [
            node("MatMul", ["n", weight(16, 16)], [f"{name}0"]),
            node("Add", [weight(16), f"{name}0"], [f"{name}1"]),
            node("Reshape", [f"{name}1", shape(1, 6, 4, 4)], [f"{name}2"]),
            node("Transpose", [f"{name}2"], [f"{name}3"], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", ["q3", "k3"], ["a0"]),
        node("Softmax", ["a0"], ["a1"], axis=-1),
        node("MatMul", ["a1", "v3"], ["a2"]),
        node("Transpose", ["a2"], ["a3"], perm=[0, 2, 1, 3]),
        node("Reshape", ["a3", shape(1, 6, 16)], ["a4"]),
        node("Add", ["x", "a4"], ["r"]),
        node("MatMul", ["r", weight(16, 32)], ["g"]),
        node("Gelu", ["g"], ["h"]),
        node("Split", ["h"], ["h1", "h2"], axis=-1, num_outputs=2),
        node("Add", ["h1", "h2"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 6, 16]) for name in "xy"]
    made = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "encoder", info[:1], info[1:], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def turned() -> bytes:
    """Branches in which a turned tensor is read twice: by what has to copy it to relabel it, and by another op."""
    weights = [numpy_helper.from_array(np.array(shape, np.int64), name) for name, shape in
               (("five", [1, 2, 4, 6, 6]), ("four", [1, 8, 6, 6]), ("row", [1, 288]))]  # fmt: skip
    node, nodes = helper.make_node, []
    for i, kind in enumerate(["Selu", "Elu", "Tanh"]):
        nodes += [
            node(kind, ["x"], [f"a{i}"]),
            node("Reshape", [f"a{i}", "five"], [f"b{i}"]),
            node("Transpose", [f"b{i}"], [f"c{i}"], perm=[0, 2, 1, 3, 4]),
            node("Relu", [f"c{i}"], [f"e{i}"]),
            node("Reshape", [f"c{i}", "four"], [f"d{i}"]),
            node("Reshape", [f"e{i}", "row"], [f"f{i}"]),
            node("Softmax", [f"d{i}"], [f"g{i}"], axis=1),
            node("Reshape", [f"g{i}", "row"], [f"h{i}"]),
        ]
    nodes.append(node("Sum", [f"{name}{i}" for i in range(3) for name in "fh"], ["y"]))
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 8, 6, 6]), ("y", [1, 288]))]
    graph = helper.make_graph(nodes, "turned", infos[:1], infos[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def computed(
    own: TorchProcessor, model: Model, times: tuple = (), executable: TorchExecutable | None = None
) -> tuple[float, TorchExecutable]:
    """The largest relative error of a network against ONNX Runtime, and the executable."""
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(model.graph.tensor[n].shape).astype(np.float32) for n in model.graph.inputs}
    session = ort.InferenceSession(model.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = dict(zip(model.graph.outputs, session.run(list(model.graph.outputs), feeds), strict=True))
    executable = executable or own.compile(replace(whole_network(model), times=times))
    made = run_once(executable, {name: own.place.from_host(array) for name, array in feeds.items()})
    errors = [np.abs(own.place.to_host(made[n]) - wanted[n]).max() / max(1e-6, np.abs(wanted[n]).max()) for n in wanted]
    return float(max(errors)), executable


def timed(model: Model, seed: int) -> tuple[Timed, ...]:
    """A network's super-ops timed at random, as plans do."""
    draw, now, times, ends = random.Random(seed), 0.0, [], {}
    for super_op in merge(model.graph):
        start = max([now * draw.choice([0.0, 0.5, 1.0]), *(ends.get(name, 0.0) for name in super_op.inputs)])
        finish = start + draw.choice([1.0, 4.0])
        ends.update(dict.fromkeys(super_op.outputs, finish))
        now = max(now, finish)
        times.append(Timed(tuple(op.id for op in super_op.ops), start, finish))
    return tuple(times)


@pytest.mark.parametrize("source", [images(), encoder(), BRANCHING], ids=["images", "encoder", "branching"])
@pytest.mark.parametrize(
    ("precision", "last", "tolerance"), [("fp32", False, 1e-4), ("fp32", True, 1e-4), ("fp16", True, 1e-2)]
)
def test_a_network_gives_what_onnx_runtime_gives(source: bytes, precision: str, last: bool, tolerance: float) -> None:
    """Folded, in either layout and in either precision, the outputs agree."""
    error, _ = computed(processor(precision, channels_last=last), read_model(source))
    assert error <= tolerance


@pytest.mark.parametrize("seed", range(6))
def test_streams_do_not_change_the_outputs(seed: int) -> None:
    """Random networks, timed at random as plans do, come out right on simulated streams in any legal order."""
    model = read_model(RandomModel(seed, 25).proto)
    own = processor()
    own.driver = Simulated(seed)
    error, _ = computed(own, model, timed(model, seed))
    assert error <= 1e-4


@pytest.mark.parametrize("far", [False, True], ids=["host", "far"])
@pytest.mark.parametrize("seed", range(3))
def test_networks_in_one_recording_answer_as_alone(seed: int, far: bool) -> None:
    """However a device orders what is in it, nothing races, all of it is over at the end, and floats are looked at."""
    members = [read_model(source) for source in (images(), encoder(), images())]
    model = united(members)
    own = processor()
    own.driver = Simulated(seed)
    if far:
        own.place = DevicePlace("cpu", own.device)
    executable = own.compile(replace(whole_network(model), times=timed(model, seed)))
    feeds = [draw(member, place) for place, member in enumerate(members)]
    inputs = {name: own.place.from_host(array) for name, array in model.feed(feeds).items()}
    outputs = {name: own.place.allocate(kind) for name, kind in executable.output_types.items()}
    call = executable.bind(inputs, outputs)
    assert call.recording.races() == []
    assert call.recording.finished()
    call()
    found = model.answers({name: own.place.to_host(buffer) for name, buffer in outputs.items()})
    for member, feed, answers in zip(members, feeds, found, strict=True):
        session = ort.InferenceSession(member.proto.SerializeToString(), providers=["CPUExecutionProvider"])
        for name, right in zip(member.graph.outputs, session.run(list(member.graph.outputs), feed), strict=True):
            assert np.allclose(answers[name], right, atol=1e-4)
    assert call.looked == (frozenset(inputs) | frozenset(outputs) if far else frozenset())
    assert not call.odd


def test_every_way_to_carry_out_a_plan_computes_the_same() -> None:
    """Where a plan overlaps ops, other ways to start them stand beside it, of as many streams, and all answer alike."""
    model = read_model(BRANCHING)
    rows = [Timed(tuple(op.id for op in super_op.ops), float(place // 2), place // 2 + 1.0)
            for place, super_op in enumerate(merge(model.graph))]  # fmt: skip
    own = processor()
    own.driver = Simulated(1)
    segment = replace(whole_network(model), times=tuple(rows))
    kernels = [own.kernel(super_op, model) for super_op in merge(model.graph)]
    ways = ways_of(kernels, segment, (1, 3, 4, 6))  # over 4 and 6 as over 3
    assert [way.schedule.streams for way in ways[:2]] == [2, 1]
    assert len(ways) == 3
    for way in ways:
        executable = own.compile(segment)
        executable.compiled[:] = [way]
        error, _ = computed(own, model, executable=executable)
        assert error <= 1e-4


def test_without_times_ops_follow_each_other() -> None:
    """Networks side by side have streams of their own where a plan times them, and else one for all."""
    model = united([read_model(BRANCHING)] * 2)
    own = processor()
    kernels = [own.kernel(super_op, model) for super_op in merge(model.graph)]
    segment = whole_network(model)
    [way] = ways_of(kernels, segment, (1, 3))
    assert way.schedule.streams == 1
    assert way.kernels == tuple(kernels)
    assert len(ways_of(kernels, replace(segment, times=timed(model, 0)), (1, 3))) > 1


def test_of_ways_as_fast_the_one_on_fewest_streams_is_kept() -> None:
    """A stream costs memory, so another is taken only for what can be measured."""
    ways = [Way((), Schedule((), streams, ())) for streams in (4, 1, 3, 6)]
    assert narrowest(ways, [100.5, 140.0, 100.9, 100.0]).schedule.streams == 3
    assert narrowest(ways, [100.0, 100.5, 100.0, 99.9]).schedule.streams == 1
    assert narrowest(ways, [104.0, 140.0, 103.0, 100.0]).schedule.streams == 6


@pytest.mark.parametrize(("precision", "rtol", "atol"), [("fp32", 1e-4, 1e-5), ("fp16", 1e-2, 2e-3)])
def test_every_recipe_computes_the_same(precision: str, rtol: float, atol: float) -> None:
    """Whatever way of running a super-op turns out to be fastest, the numbers do not depend on it."""
    own, model = Precision(precision, channels_last=True), read_model(images())
    several: dict[str, int] = {}
    for super_op in merge(model.graph):
        count = recipes(super_op, model, own, torch.device("cpu"))
        kernels = [build(super_op, model, own, torch.device("cpu"), recipe) for recipe in range(count)]
        read = drawn(kernels[0], own, torch.device("cpu"))
        for kernel in kernels[1:]:
            for one, other in zip(kernels[0](*read), kernel(*read), strict=True):
                torch.testing.assert_close(one, other, rtol=rtol, atol=atol)
        several[super_op.ops[0].type] = max(several.get(super_op.ops[0].type, 0), count)
    assert several["AveragePool"] == 3  # torch's own, one mean over all windows, and a convolution
    assert several["MaxPool"] == 2


@given(shape=st.lists(st.integers(0, 5), max_size=5), precision=st.sampled_from(["fp32", "tf32", "fp16"]))
@example(shape=[1, 1, 1, 1], precision="fp32")  # all its layouts are one
@settings(max_examples=40, deadline=None)
def test_what_is_taken_is_the_same_tensor_as_it_is_held(shape: list[int], precision: str) -> None:
    """In the precision's type and layout, whatever its rank; what is so already is not copied."""
    own = Precision(precision, channels_last=True)
    plain = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    taken = own.taken(plain)
    assert torch.equal(taken, own.laid_out(plain.to(own.dtype(plain.dtype))))
    assert taken.is_contiguous(memory_format=torch.channels_last if len(shape) == 4 else torch.contiguous_format)
    assert own.taken(taken).data_ptr() == taken.data_ptr()


def test_what_is_folded_becomes_one_call() -> None:
    """Scale, shift and batch norm behind a convolution cost no call of their own."""
    model = read_model(images())
    super_op = next(one for one in merge(model.graph) if len(one.ops) == 5)
    kernel = build(super_op, model, Precision("fp32"), torch.device("cpu"))
    assert [op.type for op in super_op.ops] == ["Conv", "BatchNormalization", "Mul", "Add", "Relu"]
    assert len(kernel.lines) == 2


def test_views_are_found() -> None:
    """An output that shares memory with an input is known to."""
    model = read_model(encoder())
    kernels = [build(one, model, Precision("fp32"), torch.device("cpu")) for one in merge(model.graph)]
    assert {"q3", "h1", "h2"} & {name for kernel in kernels for name in kernel.views}


@pytest.mark.parametrize("seed", range(4))
def test_what_relabels_a_turned_tensor_is_known_to_copy_it(seed: int) -> None:
    """How a tensor comes decides who shares its memory: a copy waits for what it reads, and has memory of its own."""
    model = read_model(turned())
    own = processor()
    own.driver = Simulated(seed)
    executable = own.compile(replace(whole_network(model), times=timed(model, seed)))
    call = executable.bind(
        {name: own.place.allocate(kind) for name, kind in executable.input_types.items()},
        {name: own.place.allocate(kind) for name, kind in executable.output_types.items()},
    )
    assert executable.way.schedule.streams > 1
    assert call.recording.races() == []


def test_precision_leaves_torch_as_it_was() -> None:
    """The process's switches are set while kernels are launched, and given back."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with Precision("fp32").switched():
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"


def test_ids_say_device_precision_and_part() -> None:
    """What stands in ``--processors`` is read, and written the same way; anything else is no torch processor."""
    for text in ("cuda:0", "cuda:12/tf32", "cuda:0/fp16/8sm", "cuda:0/16sm", "cpu", "cpu/fp16", "xpu:1", "mps"):
        choice = parsed(text)
        assert choice is not None
        assert choice.id == text
    assert parsed("cuda:0", "fp16") == Choice("cuda:0", "fp16")
    assert parsed("cuda:0/fp32", "fp16") == Choice("cuda:0")
    for text in ("cuda", "cuda:", "cuda:0/bf16", "cpu/8sm", "cuda:0/0sm", "ort@0", "cuda:0/8sm/fp16", ""):
        assert parsed(text) is None
        assert choices(text, "mixed") == []
    assert [one.id for one in choices("cuda:0/8sm", "mixed")] == ["cuda:0/8sm", "cuda:0/tf32/8sm", "cuda:0/fp16/8sm"]
    assert [one.id for one in choices("cpu", "mixed")] == ["cpu", "cpu/fp16"]
    assert choices("cuda:0/tf32", "mixed") == [Choice("cuda:0", "tf32")]


def test_shares_are_slopes() -> None:
    """A kernel whose copies do not feel each other has the least share; one whose copies take turns, all of it."""
    assert Occupancy({1: 10.0, 2: 10.0, 4: 10.0}).share == 1 / 16
    assert Occupancy({1: 10.0, 2: 20.0, 4: 40.0}).share == 1.0
    assert Occupancy({1: 10.0, 2: 12.0, 4: 25.0}).share == pytest.approx(0.5)


def test_an_op_without_a_call_is_unsupported() -> None:
    """The planner is told, not surprised."""
    own = processor()
    known, unknown = (read_model(one_op_model(kind, shape=(3, 3))) for kind in ("Relu", "EyeLike"))
    own.compile(segment_of(merge(known.graph)[0], known)).close()
    with pytest.raises(UnsupportedOp, match="EyeLike"):
        own.compile(segment_of(merge(unknown.graph)[0], unknown))


def test_torchs_errors_are_told_apart() -> None:
    """Memory, missing kernels and failures of the runtime each mean something else to the planner."""
    assert isinstance(translated(torch.OutOfMemoryError("CUDA out of memory."), "x", ProcessorLost), OutOfMemory)
    missing = NotImplementedError("\"add_stub\" not implemented for 'UInt16'")
    assert isinstance(translated(missing, "x", CompilationFailed), UnsupportedOp)
    assert isinstance(translated(RuntimeError("illegal access"), "x", ProcessorLost), ProcessorLost)


def test_a_recording_that_fails_says_so() -> None:
    """A device that refuses to record is a refused segment; one that fails while replaying is lost."""

    class Broken(Simulated):
        def signal(self, stream: int) -> int:
            raise RuntimeError("operation not permitted when stream is capturing")

    own, model = processor(), read_model(BRANCHING)
    executable = own.compile(whole_network(model))
    call = executable.bind(
        {name: own.place.allocate(kind) for name, kind in executable.input_types.items()},
        {name: own.place.allocate(kind) for name, kind in executable.output_types.items()},
    )
    call.recording.replay = lambda: (_ for _ in ()).throw(RuntimeError("illegal memory access"))
    with pytest.raises(ProcessorLost, match="illegal memory access"):
        call()
    own.driver = Broken()
    with pytest.raises(CompilationFailed, match="stream is capturing"):
        run_once(executable, {name: own.place.allocate(kind) for name, kind in executable.input_types.items()})
    executable.close()
    with pytest.raises(ProcessorLost, match="closed"):
        executable.bind({}, {})


def test_what_a_rehearsal_took_is_given_back_before_recording() -> None:
    """A graph cannot take what torch keeps for later, so the device would hold everything twice."""
    said: list[str] = []

    class Telling(Simulated):
        def recording(self, streams: int, *, rehearsal: bool = False) -> AbstractContextManager[Recording]:
            said.append("rehearsal" if rehearsal else "recording")
            return super().recording(streams, rehearsal=rehearsal)

        def release(self) -> None:
            said.append("release")

    own = processor()
    own.driver = Telling()
    computed(own, read_model(BRANCHING))
    assert "rehearsal release recording" in " ".join(said)


def test_without_torch_or_a_gpu_there_is_one_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names a processor that cannot be had is told what it needs; nobody else notices."""
    if not torch.cuda.is_available():
        with pytest.raises(ProcessorLost, match="cuda:0"):
            offered.discover("cuda:0", soc=SOC)
    monkeypatch.setattr(offered, "installed", lambda: False)
    with pytest.raises(ProcessorLost, match=r"hope-inference\[torch\]"):
        offered.discover("cuda:0", soc=SOC)
    assert all(one.spec.runtime != "torch" for one in offered.discover("ort", soc=SOC))


def test_a_gpu_that_does_not_start_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """Where nobody asked for it by name, the others are planned with."""

    def broken(soc: Soc, choice: Choice) -> None:
        raise ProcessorLost(f"{choice.id}: the driver does not answer")

    monkeypatch.setattr(offered, "accelerators", lambda precision: [Choice("cuda:0")])
    monkeypatch.setattr(offered, "_torch", broken)
    with caplog.at_level("WARNING"):
        assert offered.discover(soc=SOC)
    assert "the driver does not answer" in caplog.text


def test_nothing_stays_behind() -> None:
    """Compiled and run a hundred times over, a network leaves no kernel behind once it is gone."""
    own = processor()
    seen = []
    for _ in range(100):
        model = read_model(one_op_model("Relu"))
        executable = own.compile(whole_network(model))
        run_once(executable, {name: own.place.allocate(kind) for name, kind in executable.input_types.items()})
        seen.append(weakref.ref(executable.way.schedule))
        executable.close()
    del model, executable
    gc.collect()
    assert sum(one() is not None for one in seen) == 0
    assert not own._kernels


def test_the_socs_name_tells_its_gpus(tmp_path: Path) -> None:
    """Devices with different GPUs keep different profiles."""
    for slot, model in enumerate(["NVIDIA H200", "NVIDIA H200", "NVIDIA T4"]):
        folder = tmp_path / f"0000:0{slot}:00.0"
        folder.mkdir()
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 41\n")
    assert accelerator_names(tmp_path) == ["2xNVIDIA H200", "NVIDIA T4"]
    assert accelerator_names(tmp_path / "none") == []


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
