"""Ops of one super-op that become one call: batch norm, scale and shift go into the weights before them.

Done in float64 and once per network, so that what runs is a convolution with a bias, and an activation behind it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agent_sdk.runtimes.torch.node import Node

AFFINE = "hope:Affine"
"""x · scale + shift, per channel: what is left of a batch norm that follows no weights."""
WEIGHTED = frozenset({"Conv", AFFINE})
SHIFTS = frozenset({"Add", "Sub", "Mul", "Div"})


def fold(nodes: Sequence[Node], kept: frozenset[str]) -> list[Node]:
    """The same ops as fewer nodes, in the same order. ``kept`` are the tensors that others read."""
    folded: list[Node] = []
    readers: dict[str, int] = {}
    for node in nodes:
        for name in node.inputs:
            readers[name] = readers.get(name, 0) + 1
    for node in nodes:
        node = _affine(node) or node
        before = folded[-1] if folded else None
        found = _scale_and_shift(node)
        if (
            before is not None
            and found is not None
            and before.type in WEIGHTED
            and all(name in before.constants for name in before.inputs[1:] if name)
            and before.outputs[0] == found[0]
            and before.outputs[0] not in kept
            and readers[before.outputs[0]] == 1
        ):
            folded[-1] = _absorbed(before, node, *found[1:])
        else:
            folded.append(node)
    return folded


def _affine(node: Node) -> Node | None:
    """A batch norm with constant statistics, as a scale and a shift."""
    if node.type != "BatchNormalization" or node.get("training_mode", 0) or any(node.outputs[1:]):
        return None
    if any(name not in node.constants for name in node.inputs[1:]):
        return None
    gamma, beta, mean, variance = (node.constants[name].astype(np.float64) for name in node.inputs[1:])
    scale = gamma / np.sqrt(variance + node.get("epsilon", 1e-5))
    shape = (-1,) + (1,) * (len(node.shape()) - 2)
    return _made(node, AFFINE, node.inputs[0], scale.reshape(shape), (beta - mean * scale).reshape(shape))


def _made(node: Node, kind: str, activation: str, first: np.ndarray, second: np.ndarray) -> Node:
    dtype = node.types[activation].dtype
    names = (f"{node.outputs[0]}/scale", f"{node.outputs[0]}/shift")
    return replace(
        node,
        type=kind,
        inputs=(activation, *names),
        constants=dict(zip(names, (first.astype(dtype), second.astype(dtype)), strict=True)),
    )


def _scale_and_shift(node: Node) -> tuple[str, np.ndarray, np.ndarray] | None:
    """The one activation that the op reads, and what it multiplies and adds per channel; None where it does not."""
    if node.type == AFFINE:
        scale, shift = (node.constants[name].astype(np.float64) for name in node.inputs[1:])
        return node.inputs[0], scale, shift
    if node.type not in SHIFTS or len(node.inputs) != 2:
        return None
    given = [name for name in node.inputs if name in node.constants]
    others = [name for name in node.inputs if name not in node.constants]
    if len(given) != 1 or not node.types[others[0]].dtype.startswith("float"):
        return None
    first = node.inputs[0] == given[0]
    shape = tuple(node.types[others[0]].shape)
    value = node.constants[given[0]].astype(np.float64)
    if len(shape) < 2 or value.ndim > len(shape):
        return None
    value = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    if any(size not in (1, shape[1] if axis == 1 else 1) for axis, size in enumerate(value.shape)):
        return None
    value = value.reshape((-1,) + (1,) * (len(shape) - 2))
    one, zero = np.ones(()), np.zeros(())
    if node.type == "Mul":
        return others[0], value, zero
    if node.type == "Div":
        return None if first else (others[0], 1 / value, zero)
    if node.type == "Add":
        return others[0], one, value
    return (others[0], -one, value) if first else (others[0], one, -value)


def _absorbed(before: Node, node: Node, scale: np.ndarray, shift: np.ndarray) -> Node:
    """``before`` with a scale and a shift behind it taken into its constants; it writes what ``node`` wrote."""
    rank = len(before.types[before.inputs[0]].shape)
    channels = before.types[before.outputs[0]].shape[1]
    column = np.broadcast_to(scale, (channels,) + (1,) * (rank - 2)).reshape(channels)
    offset = np.broadcast_to(shift, (channels,) + (1,) * (rank - 2)).reshape(channels)
    first = before.constants[before.inputs[1]].astype(np.float64)
    second = before.constants[before.inputs[2]].astype(np.float64) if before.has(2) else np.zeros(channels)
    if before.type == "Conv":
        weight = first * column.reshape((-1,) + (1,) * (first.ndim - 1))
        bias = second * column + offset
    else:
        shape = (-1,) + (1,) * (rank - 2)
        weight = first * column.reshape(shape)
        bias = second * column.reshape(shape) + offset.reshape(shape)
    dtype = before.constants[before.inputs[1]].dtype
    names = (f"{node.outputs[0]}/weight", f"{node.outputs[0]}/bias")
    return replace(
        before,
        inputs=(before.inputs[0], *names),
        outputs=node.outputs,
        constants=dict(zip(names, (weight.astype(dtype), bias.astype(dtype)), strict=True)),
        types={**before.types, **node.types},
    )
