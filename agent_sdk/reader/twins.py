"""Which tensors of a graph are equal by construction, whatever the numbers: every runtime computes them once."""

from __future__ import annotations

import math
from typing import Final

import onnx

from agent_sdk.reader.model import Model

PASS_THROUGH: Final = frozenset({"Identity", "Dropout"})
"""Types whose first output is their input, by another name."""
FEW: Final = 8
"""Elements up to which runtimes look whether two constants are equal (bounds, pads, axes), and share them then."""


def tensor_classes(model: Model) -> dict[str, str]:
    """Tensor to the representative of all tensors that are equal to it by construction.

    Twins (same type, attributes and inputs) and what only renames its input are one class, because runtimes
    merge the former and drop the latter.
    """
    classes = {name: name for name in model.graph.inputs}
    shared: dict[bytes, str] = {}
    constants = {
        name: shared.setdefault(_content(tensor), name)
        for name, tensor in model.constants.items()
        if math.prod(tensor.dims) <= FEW
    }
    seen: dict[tuple[object, ...], str] = {}
    for node in model.proto.graph.node:
        outputs = list(node.output)
        if node.op_type in PASS_THROUGH and node.domain in ("", "ai.onnx"):
            classes[outputs[0]] = classes.get(node.input[0], outputs[0])
            for name in filter(None, outputs[1:]):
                classes[name] = name
            continue
        attributes = tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute))
        inputs = tuple(classes.get(name) or constants.get(name, name) for name in node.input)
        for index, name in enumerate(outputs):
            if name:
                classes[name] = seen.setdefault((node.domain, node.op_type, attributes, inputs, index), name)
    return classes


def _content(tensor: onnx.TensorProto) -> bytes:
    """A constant without its name."""
    unnamed = onnx.TensorProto()
    unnamed.CopyFrom(tensor)
    unnamed.ClearField("name")
    return unnamed.SerializeToString(deterministic=True)
