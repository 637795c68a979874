"""Takes apart what ONNX Runtime fused into a convolution: the sum and the activation behind it.

A border between two segments may fall inside such a kernel, where the frozen graph holds no tensor. The convolution
alone, the sum and the activation do the same one after the other, in the same layout.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import starmap
from typing import Final

import onnx
from onnx import helper

from hope_schema import ModelGraph, Op

FUSED: Final = frozenset({"Conv", "FusedConv"})
"""Kernels with inputs X, W, B, and the other summand; an attribute names their activation."""
ABSORBING: Final = "Clip"
"""The runtime drops a Relu before it, and its bounds are the tighter ones of both."""
SUMS: Final = frozenset({"Add", "Sum"})
_SUMMAND: Final = 3


@dataclass(frozen=True)
class Step:
    """One kernel, and the class of source tensors that its one output holds."""

    node: onnx.NodeProto
    klass: str


def activation(node: onnx.NodeProto) -> str:
    """The type of the activation that was fused into a kernel, empty if none."""
    return "".join(attribute.s.decode() for attribute in node.attribute if attribute.name == "activation")


def summand(node: onnx.NodeProto) -> str:
    """The tensor that a fused convolution adds to its own, empty if none."""
    return str(node.input[_SUMMAND]) if len(node.input) > _SUMMAND else ""


def take_apart(
    node: onnx.NodeProto, source: ModelGraph, class_of: Mapping[str, str], meaning: Mapping[str, tuple[str, bool]]
) -> list[Step]:
    """The steps of a fused convolution, the last of which writes what it writes; empty if it cannot be done.

    Args:
        node: a kernel of the frozen graph.
        source: the graph before anything was fused.
        class_of: source tensors to their classes.
        meaning: frozen tensors to the class that they hold, and whether blocked.
    """
    if node.op_type not in FUSED or node.output[0] not in meaning:
        return []
    followers: list[tuple[Op, str]] = []  # what follows the convolution, the last first, and the class it computes
    klass = meaning[node.output[0]][0]
    if activation(node):
        op = source.op.get(source.producer.get(klass, ""))
        if op is None or op.type != activation(node) or op.type == ABSORBING or len(op.inputs) != 1:
            return []
        followers.append((op, klass))
        klass = class_of[op.inputs[0]]
    if summand(node):
        op = source.op.get(source.producer.get(klass, ""))
        if op is None or op.type not in SUMS or len(op.inputs) != 2 or summand(node) not in meaning:
            return []
        own = {class_of[name] for name in op.inputs} - {meaning[summand(node)][0]}
        if len(own) != 1:
            return []
        followers.append((op, klass))
        (klass,) = own
    return _chain(node, klass, followers[::-1]) if followers else []


def _chain(node: onnx.NodeProto, klass: str, followers: list[tuple[Op, str]]) -> list[Step]:
    made = [f"{node.output[0]}/step_{index}" for index in range(len(followers))] + [node.output[0]]
    alone = deepcopy(node)
    alone.name = f"{node.name}/alone"
    if node.op_type == "FusedConv":
        alone.op_type, alone.domain = "Conv", ""
    del alone.input[_SUMMAND:], alone.attribute[:]
    alone.attribute.extend(a for a in node.attribute if not a.name.startswith("activation"))
    alone.output[0] = made[0]
    steps = [Step(alone, klass)]
    for (op, after), before, name in zip(followers, made, made[1:], strict=False):
        reads = [before, summand(node)] if op.type in SUMS else [before]
        follower = helper.make_node(op.type, reads, [name], name=f"{name}/{op.type}")
        follower.attribute.extend(starmap(helper.make_attribute, op.attributes.items()))
        steps.append(Step(follower, after))
    return steps
