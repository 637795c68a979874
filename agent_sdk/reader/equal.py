"""When two nodes compute the same, whatever the numbers: every runtime computes such twins once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Final

import onnx

DEFAULT_DOMAINS: Final = frozenset({"", "ai.onnx"})
FEW: Final = 8
"""Elements up to which runtimes look whether two constants (bounds, pads, axes) are equal, and share them then."""


def identity(node: onnx.NodeProto, same: Mapping[str, str], constants: Mapping[str, onnx.TensorProto]) -> Hashable:
    """What a node computes: equal for two nodes that have the same type, attributes, inputs and kind of outputs.

    Args:
        node: a node that is a function of its inputs.
        same: tensor names to the one that stands for all tensors equal to them; who is absent stands for itself.
        constants: initialisers by name.
    """
    attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
    inputs = tuple(same.get(name) or _content(constants.get(name)) or name for name in node.input)
    domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
    return domain, node.op_type, tuple(attributes), inputs, tuple(map(bool, node.output))


def _content(tensor: onnx.TensorProto | None) -> bytes:
    """A small constant without its name; empty for any other tensor."""
    if tensor is None or math.prod(tensor.dims) > FEW:
        return b""
    unnamed = onnx.TensorProto()
    unnamed.CopyFrom(tensor)
    unnamed.ClearField("name")
    return bytes(unnamed.SerializeToString(deterministic=True))
