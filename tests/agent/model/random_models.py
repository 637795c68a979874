"""Small random ONNX models with all that a reader has to undo: symbolic batch, constants, shape arithmetic, waste."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 4
SIDE = 6


class RandomModel:
    """Grows a random float network over (N, 4, 6, 6) tensors; ``proto`` has a symbolic batch and shuffled nodes."""

    def __init__(self, seed: int, steps: int) -> None:
        self.rng = random.Random(seed)
        self.numpy = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: list[onnx.TensorProto] = []
        self.count = 0
        self.alive = ["x", "y"]
        grow = [self.conv, self.relu, self.add, self.pool, self.concat, self.by_shape, self.constant, self.dropout]
        for _ in range(steps):
            name = self.rng.choice(grow)()
            if name:
                self.alive.append(name)
        outputs = sorted({self.alive[-1], *self.rng.sample(self.alive, 2)} - {"x", "y"}) or [self.relu()]
        self.rng.shuffle(self.nodes)
        shape = ["batch", CHANNELS, SIDE, SIDE]
        graph = helper.make_graph(
            self.nodes,
            f"random {seed}",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.initialisers,
        )
        self.proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def fresh(self) -> str:
        """Return a name not used yet."""
        self.count += 1
        return f"t{self.count}"

    def node(self, kind: str, inputs: list[str], outputs: int = 1, **attributes: object) -> str:
        """Append a node and return its first output."""
        names = [self.fresh() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0]

    def weights(self, *shape: int) -> str:
        """Append random weights and return their name."""
        name = self.fresh()
        values = self.numpy.standard_normal(shape).astype(np.float32) / np.float32(3)
        self.initialisers.append(numpy_helper.from_array(values, name))
        return name

    def pick(self) -> str:
        """Return a tensor of the common shape."""
        return self.rng.choice(self.alive)

    def conv(self) -> str:
        """Convolution with or without bias."""
        kernel = self.rng.choice([1, 3])
        inputs = [self.pick(), self.weights(CHANNELS, CHANNELS, kernel, kernel)]
        if self.rng.random() < 0.5:
            inputs.append(self.weights(CHANNELS))
        return self.node("Conv", inputs, pads=[kernel // 2] * 4)

    def relu(self) -> str:
        """Rectifier."""
        return self.node("Relu", [self.pick()])

    def add(self) -> str:
        """Sum of two tensors, perhaps the same one twice."""
        return self.node("Add", [self.pick(), self.pick()])

    def pool(self) -> str:
        """Maximum."""
        return self.node("MaxPool", [self.pick()], kernel_shape=[3, 3], pads=[1, 1, 1, 1])

    def concat(self) -> str:
        """Join two tensors and mix them down to the common shape."""
        joined = self.node("Concat", [self.pick(), self.pick()], axis=1)
        return self.node("Conv", [joined, self.weights(CHANNELS, 2 * CHANNELS, 1, 1)])

    def by_shape(self) -> str:
        """Flatten and restore through a target computed from shapes, as exporters write it."""
        x = self.pick()
        zero = self.node("Constant", [], value_ints=[0])
        tail = self.node("Constant", [], value=numpy_helper.from_array(np.array([-1], np.int64)))
        batch = self.node("Gather", [self.node("Shape", [x]), zero], axis=0)
        flat = self.node("Reshape", [x, self.node("Concat", [batch, tail], axis=0)])
        return self.node("Reshape", [self.node("Relu", [flat]), self.node("Shape", [x])])

    def constant(self) -> str:
        """Arithmetic on constants alone, then added to an activation."""
        values = numpy_helper.from_array(np.full((1, CHANNELS, 1, 1), 0.5, np.float32))
        half = self.node("Constant", [], value=values)
        return self.node("Add", [self.pick(), self.node("Sqrt", [self.node("Mul", [half, half])])])

    def dropout(self) -> str:
        """An op with an optional output that nobody reads."""
        return self.node("Dropout", [self.pick()], outputs=2)


def evaluate(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a model with ONNX Runtime on one thread, as written."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def sorted_proto(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with its nodes in topological order, which ONNX Runtime demands."""
    known = {"", "x", "y", *(tensor.name for tensor in proto.graph.initializer)}
    left = list(proto.graph.node)
    order = []
    while left:
        ready = [node for node in left if known.issuperset(node.input)]
        order += ready
        known.update(name for node in ready for name in node.output)
        left = [node for node in left if node not in ready]
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.node[:]
    copy.graph.node.extend(order)
    return copy
