"""Random convolutional networks with all that makes a runtime fuse, block, merge and drop; and random cuts of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from agent_sdk.model import Model, read_model
from agent_sdk.runtimes.base import Buffer, Executable, Processor, Segment
from hope_schema import SuperOp, merge

SIDE = 8
RUNTIMES = ("ort", "ov")


def run_once(executable: Executable, inputs: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """Run a compiled segment once and return its output buffers, freshly allocated."""
    outputs = {name: executable.processor.place.allocate(kind) for name, kind in executable.output_types.items()}
    executable.bind(inputs, outputs)()
    return outputs


class Network:
    """Grows a network over (1, C, 8, 8) tensors; C is mostly a multiple of the block size, sometimes just even."""

    def __init__(self, seed: int, steps: int) -> None:
        self.rng = random.Random(seed)
        self.numpy = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.channels = {"x": 3}
        self.conv("x", 16)
        grow = (
            [self.conv] * 4 + [self.residual, self.twins, self.concat, self.batch_norm, self.padded, self.lrn]
            + [self.pool, self.relu, self.scale, self.renamed, self.depthwise]
        )  # fmt: skip
        for _ in range(steps):
            self.rng.choice(grow)(self.pick())
        read = {name for node in self.nodes for name in node.input}
        outputs = [name for name in self.channels if name not in read and name != "x"]
        if self.rng.random() < 0.5:
            outputs.append(self.pick())
        graph = helper.make_graph(
            self.nodes,
            f"random {seed}",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in dict.fromkeys(outputs)],
            self.weights,
        )
        self.proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def pick(self) -> str:
        """A tensor that exists, late ones rather than early ones; never the input."""
        names = list(self.channels)[1:]
        return self.rng.choice(names[-6:])

    def node(self, kind: str, inputs: list[str], channels: int, **attributes: object) -> str:
        """Append a node and return its output."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        self.channels[name] = channels
        return name

    def weight(self, *shape: int) -> str:
        """Append random weights that keep activations alive."""
        name = f"w{len(self.weights)}"
        values = self.numpy.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv(self, source: str, channels: int | None = None) -> str:
        """A convolution, often with an activation behind it."""
        channels = channels or self.rng.choice([16, 16, 32, 20, 6])
        kernel = self.rng.choice([1, 3])
        inputs = [source, self.weight(channels, self.channels[source], kernel, kernel), self.weight(channels)]
        made = self.node("Conv", inputs, channels, pads=[kernel // 2] * 4)
        return self.relu(made) if self.rng.random() < 0.6 else made

    def depthwise(self, source: str) -> str:
        """A depthwise convolution."""
        channels = self.channels[source]
        return self.node("Conv", [source, self.weight(channels, 1, 3, 3)], channels, group=channels, pads=[1] * 4)

    def relu(self, source: str) -> str:
        """An activation."""
        return self.node(self.rng.choice(["Relu", "Sigmoid", "Tanh"]), [source], self.channels[source])

    def residual(self, source: str) -> str:
        """Conv + Add + Relu, which the runtime fuses into one kernel across our super-ops."""
        channels = self.channels[source]
        made = self.node("Conv", [source, self.weight(channels, channels, 1, 1)], channels)
        return self.node("Relu", [self.node("Add", [made, source], channels)], channels)

    def twins(self, source: str) -> str:
        """The same op twice on the same input, which the runtime merges."""
        first, second = (self.node("Relu", [source], self.channels[source]) for _ in range(2))
        left = self.conv(first, 16)
        right = self.conv(second, 16)
        return self.node("Add", [left, right], 16)

    def concat(self, source: str) -> str:
        """Two tensors side by side."""
        other = self.pick()
        return self.node("Concat", [source, other], self.channels[source] + self.channels[other], axis=1)

    def batch_norm(self, source: str) -> str:
        """A normalisation on its own or behind a convolution."""
        channels = self.channels[source]
        inputs = [source, *(self.weight(channels) for _ in range(3)), self.weight(channels)]
        values = np.abs(numpy_helper.to_array(self.weights[-1])) + 0.5
        self.weights[-1].CopyFrom(numpy_helper.from_array(values, self.weights[-1].name))
        return self.node("BatchNormalization", inputs, channels)

    def padded(self, source: str) -> str:
        """Padding by an op of its own in front of a convolution."""
        self.weights.append(numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), f"w{len(self.weights)}"))
        made = self.node("Pad", [source, self.weights[-1].name], self.channels[source])
        del self.channels[made]
        return self.node("Conv", [made, self.weight(16, self.channels[source], 3, 3)], 16)

    def lrn(self, source: str) -> str:
        """Local response normalisation, which stays in the plain layout."""
        return self.node("LRN", [source], self.channels[source], size=5)

    def pool(self, source: str) -> str:
        """Pooling."""
        kind = self.rng.choice(["MaxPool", "AveragePool"])
        return self.node(kind, [source], self.channels[source], kernel_shape=[3, 3], pads=[1] * 4)

    def scale(self, source: str) -> str:
        """Multiplication by a constant per channel."""
        channels = self.channels[source]
        name = self.weight(channels, 1, 1)
        return self.node("Mul", [source, name], channels)

    def renamed(self, source: str) -> str:
        """An op that only renames."""
        return self.node(self.rng.choice(["Identity", "Dropout"]), [source], self.channels[source])


def random_model(seed: int, steps: int = 18) -> Model:
    """A random network, read as the agent reads it."""
    return read_model(Network(seed, steps).proto)


def residual_network(activation: str | None, channels: int, groups: int = 1, **attributes: float) -> Model:
    """A convolution, another one to whose result the first is added, perhaps an activation, and one more."""
    rng = np.random.default_rng(channels)
    shape = (channels, channels // groups, 3, 3)
    weights = [rng.standard_normal(shape).astype(np.float32) / channels for _ in range(3)]
    held = [numpy_helper.from_array(array, f"w{index}") for index, array in enumerate(weights)]
    held.append(numpy_helper.from_array(rng.standard_normal(channels).astype(np.float32), "bias"))
    how = {"pads": [1] * 4, "group": groups}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "bias"], ["first"], **how),
        helper.make_node("Conv", ["first", "w1", "bias"], ["second"], **how),
        helper.make_node("Add", ["second", "first"], ["sum"]),
    ]
    if activation is not None:
        nodes.append(helper.make_node(activation, ["sum"], ["active"], **attributes))
    nodes.append(helper.make_node("Conv", [nodes[-1].output[0], "w2", "bias"], ["y"], **how))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, SIDE, SIDE]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "residual", ends[:1], ends[1:], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return read_model(made.SerializeToString(), name=f"residual {activation} {channels}")


def bfloat16_model() -> onnx.ModelProto:
    """Two matrix products in bfloat16 that change nothing of a float32 tensor; NumPy has no such type."""
    weights = helper.make_tensor("w", TensorProto.BFLOAT16, [8, 8], np.eye(8, dtype=np.float32).ravel())
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.BFLOAT16),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "bfloat16", infos[:1], infos[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def cut_points(model: Model, rng: random.Random, largest: int) -> list[list[SuperOp]]:
    """The super-ops in topological order, in runs of random lengths."""
    super_ops = list(merge(model.graph))
    groups = []
    while super_ops:
        size = rng.randint(1, largest)
        groups.append(super_ops[:size])
        super_ops = super_ops[size:]
    return groups


def segments_of(model: Model, groups: list[list[SuperOp]], plain: set[str]) -> list[Segment]:
    """Segments of consecutive groups; borders in ``plain`` (and the graph's own) leave and arrive plain."""
    graph = model.graph
    plain = plain | set(graph.inputs) | set(graph.outputs)
    made = []
    for group in groups:
        ops = [op for super_op in group for op in super_op.ops]
        ids = {op.id for op in ops}
        own = {name for op in ops for name in op.outputs}
        inputs = tuple(dict.fromkeys(name for op in ops for name in op.inputs if name not in own))
        outputs = tuple(
            name
            for op in ops
            for name in op.outputs
            if name in graph.outputs or any(reader not in ids for reader in graph.consumers.get(name, ()))
        )
        if outputs:
            made.append(
                Segment(
                    model=model,
                    ops=tuple(op.id for op in ops),
                    inputs=inputs,
                    outputs=outputs,
                    exports=frozenset(outputs) & plain,
                    imports=frozenset(inputs) & plain,
                )
            )
    return made


def borders(segments: list[Segment]) -> set[str]:
    """Every tensor that crosses from one segment to another."""
    return {name for segment in segments for name in segment.inputs}


def run_segments(
    processors: list[Processor], segments: list[Segment], inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run segment i on processor i modulo their number, one after the other, by transfers as the engine makes them."""
    made: dict[str, tuple[Buffer, Processor]] = {}
    for index, segment in enumerate(segments):
        processor = processors[index % len(processors)]
        executable = processor.compile(segment)
        read = {}
        for name in segment.inputs:
            if name in inputs:
                read[name] = processor.place.from_host(inputs[name])
            else:
                buffer, source = made[name]
                assert processor.place.memory == source.place.memory
                read[name] = buffer
        written = run_once(executable, read)
        made |= {name: (buffer, processor) for name, buffer in written.items()}
        executable.close()
    outputs = segments[0].model.graph.outputs
    return {name: made[name][1].place.to_host(made[name][0]) for name in outputs if name in made}


def evaluate(model: Model, inputs: dict[str, np.ndarray], outputs: list[str] | None = None) -> dict[str, np.ndarray]:
    """The source ops as written, unoptimised, on one thread: the independent answer."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    if outputs is not None:
        del proto.graph.output[:]
        for name in outputs:
            kind = model.graph.tensor[name]
            proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, kind.shape))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def image(model: Model, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(model.graph.tensor[name].shape).astype(np.float32) for name in model.graph.inputs}


def error(ours: np.ndarray, expected: np.ndarray) -> float:
    """Largest |Δ| ÷ largest |reference|."""
    return float(np.abs(ours - expected).max() / max(1e-30, float(np.abs(expected).max())))


def of(processors: Sequence[Processor], runtime: str) -> list[Processor]:
    """The processors of one runtime."""
    return [processor for processor in processors if processor.spec.runtime == runtime]
