"""When two nodes compute the same: every runtime computes such twins once."""

import math
from collections.abc import Hashable, Mapping
from typing import Final

import onnx
from onnx import TensorProto, numpy_helper

from agent_sdk.model.nodes import DEFAULT_DOMAINS, domain_of, nested

RANDOM_OPS: Final = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Ops that are no function of their inputs and therefore never folded or merged."""
KNOWN_DOMAINS: Final = frozenset({"", "ai.onnx.ml"})
TRAINING_INPUT: Final = 2
"""Where a Dropout may be told that it is in training and has to draw at random."""
FEW: Final = 8
"""Elements up to which runtimes look whether two constants are equal, and share them then."""
WHOLE_NUMBERS: Final = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})
"""Element types of constants that say what an op does (pads, axes, shapes). All others may be weights."""


def repeatable(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a node computes the same whenever it is given the same; of foreign operators nobody knows."""
    if domain_of(node) not in KNOWN_DOMAINS:
        return False
    if node.op_type == "Dropout" and len(node.input) > TRAINING_INPUT and node.input[TRAINING_INPUT]:
        training = constants.get(node.input[TRAINING_INPUT])
        return training is not None and not numpy_helper.to_array(training).any()
    return all(inner.op_type not in RANDOM_OPS for inner in nested([node]))


def renames(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a node's first output is its first input, by another name."""
    return node.op_type in ("Identity", "Dropout") and node.domain in DEFAULT_DOMAINS and repeatable(node, constants)


def identity(node: onnx.NodeProto, same: Mapping[str, str], constants: Mapping[str, onnx.TensorProto]) -> Hashable:
    """What a node computes: equal for two nodes that have the same type, attributes, inputs and kind of outputs.

    Args:
        same: tensor names to the one that stands for all tensors equal to them; who is absent stands for itself.
        constants: initialisers by name. Weights are told apart by name alone, equal ones too: a model that is trained
            further keeps its graph.
    """
    attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
    inputs = tuple(same.get(name) or _content(constants.get(name)) or name for name in node.input)
    return domain_of(node), node.op_type, tuple(attributes), inputs, tuple(map(bool, node.output))


def _content(tensor: onnx.TensorProto | None) -> Hashable:
    """What a small constant of whole numbers holds; None for any other tensor."""
    if tensor is None or tensor.data_type not in WHOLE_NUMBERS or math.prod(tensor.dims) > FEW:
        return None
    return tensor.data_type, tuple(tensor.dims), numpy_helper.to_array(tensor).tobytes()
