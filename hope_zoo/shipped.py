"""The real ONNX Model Zoo graphs that ship inside the ``onnx`` package, with seeded weights.

There each weight is a node that makes a constant tensor; so is their expected output, and comparing with it
would prove nothing. Those nodes (and the ``Unsqueeze`` and ``Reshape`` that only reshape a weight) become initialisers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import numpy_helper

from hope_zoo.weights import Topology

FILES: Mapping[str, str] = {
    "inception_v1": "light_inception_v1.onnx",
    "inception_v2": "light_inception_v2.onnx",
    "resnet50": "light_resnet50.onnx",
    "densenet121": "light_densenet121.onnx",
    "shufflenet": "light_shufflenet.onnx",
    "squeezenet": "light_squeezenet.onnx",
    "vgg19": "light_vgg19.onnx",
    "alexnet": "light_bvlc_alexnet.onnx",
    "zfnet512": "light_zfnet512.onnx",
}
"""Our name to the file's."""

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def topology(name: str) -> Topology:
    """Return the named graph (batch 1, 224 x 224)."""
    source = onnx.load(FOLDER / FILES[name])
    graph = source.graph
    held = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {t.name: tuple(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    nodes = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(numpy_helper.to_array(held[node.input[0]]).tolist())
        elif node.op_type in ("Unsqueeze", "Reshape") and node.input[0] in shapes:
            shapes[node.output[0]] = _reshaped(node, shapes[node.input[0]], held)
        else:
            nodes.append(node)
    read = {name for node in nodes for name in node.input}
    constants = [t for t in graph.initializer if t.data_type != onnx.TensorProto.FLOAT and t.name in read]
    return Topology(
        name=name,
        nodes=nodes,
        parameters={name: shape for name, shape in shapes.items() if name in read},
        constants=constants,
        inputs={i.name: _shape(i) for i in graph.input if i.name not in held},
        outputs={o.name: _shape(o) for o in graph.output},
        opset=next(entry.version for entry in source.opset_import if entry.domain == ""),
    )


def _shape(info: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)


def _reshaped(node: onnx.NodeProto, shape: tuple[int, ...], held: Mapping[str, onnx.TensorProto]) -> tuple[int, ...]:
    """Return the shape a weight has after a node that only reshapes it."""
    if node.op_type == "Unsqueeze":
        result = list(shape)
        for axis in sorted(next(a.ints for a in node.attribute if a.name == "axes")):
            result.insert(axis, 1)
        return tuple(result)
    target = numpy_helper.to_array(held[node.input[1]]).tolist()
    result = [shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    if -1 in result:
        result[result.index(-1)] = math.prod(shape) // -math.prod(result)
    return tuple(result)
