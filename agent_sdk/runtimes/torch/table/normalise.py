"""Normalisations. Their sums are taken in float32, whatever the activations are held in."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from agent_sdk.runtimes.torch.node import Node
from agent_sdk.runtimes.torch.table.registry import Call, op


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape((-1,) + (1,) * (x.dim() - 2))


@op("BatchNormalization")
def _batch(node: Node) -> Call:
    if node.get("training_mode", 0) or len([name for name in node.outputs if name]) > 1:
        raise node.refuse("batch normalisation in training mode")
    epsilon = node.get("epsilon", 1e-5)
    return lambda x, scale, bias, mean, variance: F.batch_norm(x, mean, variance, scale, bias, eps=epsilon)


@op("hope:Affine")
def _affine(node: Node) -> Call:
    return lambda x, scale, shift: torch.addcmul(shift, x, scale)


@op("InstanceNormalization")
def _instance(node: Node) -> Call:
    epsilon = node.get("epsilon", 1e-5)

    # NOTE: not the functional one, which refuses a single element per channel, as that of groups does.
    return lambda x, scale, bias: torch.instance_norm(x, scale, bias, None, None, True, 0.0, epsilon, True)


@op("GroupNormalization")
def _group(node: Node) -> Call:
    groups, epsilon = node.get("num_groups"), node.get("epsilon", 1e-5)

    def call(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        if scale.shape[0] == x.shape[1]:
            return torch.group_norm(x, groups, scale, bias, epsilon)
        normal = torch.group_norm(x, groups, eps=epsilon)  # until version 21: one scale per group
        times = x.shape[1] // groups
        return normal * _per_channel(scale.repeat_interleave(times), x) + _per_channel(bias.repeat_interleave(times), x)

    return call


@op("LayerNormalization")
def _layer(node: Node) -> Call:
    (axis,) = node.axes(node.get("axis", -1))
    shape, epsilon = node.shape()[axis:], node.get("epsilon", 1e-5)
    asked = [index for index, name in enumerate(node.outputs) if name]

    def call(x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        scale = scale.expand(shape)
        bias = bias if bias is None else bias.expand(shape)
        if asked == [0]:
            return F.layer_norm(x, shape, scale, bias, epsilon)
        found = torch.native_layer_norm(x, shape, scale, bias, epsilon)
        return tuple(found[index] for index in asked)

    return call


@op("RMSNormalization")
def _rms(node: Node) -> Call:
    (axis,) = node.axes(node.get("axis", -1))
    shape, epsilon = node.shape()[axis:], node.get("epsilon", 1e-5)
    return lambda x, scale: F.rms_norm(x, shape, eps=epsilon) * scale


@op("LRN")
def _lrn(node: Node) -> Call:
    size, alpha, beta, bias = node.get("size"), node.get("alpha", 1e-4), node.get("beta", 0.75), node.get("bias", 1.0)
    before, after = (size - 1) // 2, size // 2

    def call(x: Tensor) -> Tensor:
        # NOTE: squares of float16 activations overflow.
        wide = x.float() if x.dtype == torch.float16 else x
        squares = wide * wide
        padded = F.pad(squares, (0, 0) * (x.dim() - 2) + (before, after))
        total = padded.narrow(1, 0, x.shape[1])
        for shift in range(1, size):
            total = total + padded.narrow(1, shift, x.shape[1])
        return (wide / torch.pow(total * (alpha / size) + bias, beta)).to(x.dtype)

    return call


@op("Softmax", "LogSoftmax")
def _softmax(node: Node) -> Call:
    call = torch.softmax if node.type == "Softmax" else torch.log_softmax
    shape = node.shape()
    if node.version >= 13:
        (axis,) = node.axes(node.get("axis", -1))
        return partial(call, dim=axis)
    (axis,) = node.axes(node.get("axis", 1))
    rows = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    if rows[1] == shape[axis]:
        return partial(call, dim=axis)
    return lambda x: call(x.reshape(rows), dim=1).reshape(shape)


@op("Hardmax")
def _hardmax(node: Node) -> Call:
    if node.version < 13:
        raise node.refuse("versions before 13 of this type")
    (axis,) = node.axes(node.get("axis", -1))

    def call(x: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter_(axis, x.argmax(axis, keepdim=True), 1.0)

    return call


@op("LpNormalization")
def _lp(node: Node) -> Call:
    (axis,) = node.axes(node.get("axis", -1))
    power = node.get("p", 2)

    def call(x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, power, axis, keepdim=True)
        made: Tensor = (x / norm).masked_fill(norm == 0, 0.0)
        return made

    return call


@op("MeanVarianceNormalization")
def _mean_variance(node: Node) -> Call:
    axes = node.axes(node.get("axes", [0, 2, 3]))

    def call(x: Tensor) -> Tensor:
        mean = x.mean(axes, keepdim=True)
        return (x - mean) / (torch.sqrt((x * x).mean(axes, keepdim=True) - mean * mean) + 1e-9)

    return call
