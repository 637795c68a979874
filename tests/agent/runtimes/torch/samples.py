"""Networks for the torch runtime, and what computes and times them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from agent_sdk.machine.soc import Soc
from agent_sdk.model import Model
from agent_sdk.runtimes.base import Timed, whole_network
from agent_sdk.runtimes.torch.choice import Choice
from agent_sdk.runtimes.torch.executable import TorchExecutable
from agent_sdk.runtimes.torch.precision import Precision
from agent_sdk.runtimes.torch.processor import TorchProcessor
from hope_schema import merge
from tests.agent.runtimes.networks import run_once

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
