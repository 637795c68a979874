"""What a latency depends on: type, shapes, strides and groups of a super-op."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hope_schema import Op, SuperOp

LANES = 4
"""Channels that a kernel computes at once: the basic unit φ of CoDL's formula, and the block of packed layouts."""
POOLS = frozenset({"AveragePool", "MaxPool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"})
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
TERMS = ("launch", "matrix", "winograd", "window", "read", "written", "weights", "unpacked", "inputs", "followers")
"""What the time of an op is a sum of."""
UNIT = 1e4
"""Elements and products are counted in this many, so that all coefficients are of one size."""


@dataclass(frozen=True)
class Features:
    """An op as numbers. A rank below four counts missing axes as one.

    Attributes:
        type: of the op that does the work; ``DepthwiseConv`` where every channel is a group of its own.
        channels, filters: channels of the first input and of the output.
        pixels: output elements per channel, batch included.
        kernel: rows and columns of the window; (1, 1) where there is none.
        stride: of the window, along the rows.
        groups: into which channels are divided.
        read, written: elements of the activations on either side.
        weights: elements of the constants.
        inputs: activations read.
        packed: every channel count is a multiple of ``LANES``.
        followers: element-wise ops fused behind.
    """

    type: str
    channels: int
    filters: int
    pixels: int
    kernel: tuple[int, int]
    stride: int
    groups: int
    read: int
    written: int
    weights: int
    inputs: int
    packed: bool
    followers: int = 0

    @property
    def multiplications(self) -> float:
        """Products that it sums up, with channels in whole blocks."""
        window = self.kernel[0] * self.kernel[1]
        if self.type in CONVOLUTIONS:
            return self.pixels * blocks(self.channels) * blocks(self.filters) * window / self.groups
        if self.type == "DepthwiseConv" or self.type in POOLS:
            return self.pixels * blocks(self.filters) * window
        return float(self.written) * max(1.0, self.weights / max(self.filters, 1))

    @property
    def multiplies(self) -> bool:
        """Whether it computes more than it moves."""
        computing = self.type in CONVOLUTIONS or self.type in POOLS or self.type == "DepthwiseConv"
        return computing or self.weights > self.filters

    @cached_property
    def terms(self) -> NDArray[np.float64]:
        """What it does, in the order of ``TERMS``."""
        products = self.multiplications / UNIT
        matrix = winograd = window = 0.0
        if self.type in CONVOLUTIONS and self.kernel != (1, 1):
            if self.kernel[0] == self.kernel[1] and self.stride == 1:
                winograd = products
            else:
                window = products
        elif self.type in POOLS or self.type == "DepthwiseConv":
            window = products
        elif self.multiplies:
            matrix = products
        read, written = self.read / UNIT, self.written / UNIT
        unpacked = 0.0 if self.packed else read + written
        inputs, followers = max(0.0, self.inputs - 1.0), self.followers * written
        return np.array(
            (1.0, matrix, winograd, window, read, written, self.weights / UNIT, unpacked, inputs, followers)
        )

    @cached_property
    def point(self) -> tuple[float, ...]:
        """Where it lies among others: what it does not say in logarithms it says as 0 or 1."""
        sizes = (self.channels, self.filters, self.pixels, self.kernel[0] * self.kernel[1], self.stride)
        return (
            *(math.log(max(size, 1)) for size in sizes),
            float(self.kernel[0] != self.kernel[1]),
            float(self.kernel != (1, 1)),
            float(self.packed),
            math.log(max(self.inputs, 1)),
            math.log(self.groups),
            float(self.followers),
        )


def blocks(channels: int) -> int:
    """CoDL's ⌈x/Φ⌉·⌈Φ/φ⌉ with Φ = φ: channels in whole blocks. How many cores there are is a constant of a kind."""
    return -(-channels // LANES) * LANES


def features(super_op: SuperOp) -> Features:
    """Features of a super-op; a part of one is an op like any other (see ``hope_schema.cutting``)."""
    tensor = super_op.graph.tensor
    anchor = max(super_op.ops, key=_parameters)
    shapes = [tensor[name].shape for name in super_op.inputs]
    first = _four(shapes[0]) if shapes else (1, 1, 1, 1)
    out = _four(tensor[anchor.outputs[0]].shape)
    rows, columns = _window(anchor, first)
    groups = max(1, _integer(anchor, "group", 1))
    read = sum(math.prod(shape) for shape in shapes)
    weights = sum(_parameters(op) for op in super_op.ops)
    batch, filters, height, width = out
    depthwise = anchor.type == "Conv" and groups > 1 and groups == first[1]
    return Features(
        type="DepthwiseConv" if depthwise else anchor.type,
        channels=first[1],
        filters=filters,
        pixels=batch * height * width,
        kernel=(rows, columns),
        stride=_integer(anchor, "strides", 1),
        groups=groups,
        read=read,
        written=batch * filters * height * width,
        weights=weights,
        inputs=len(shapes),
        packed=all(_four(shape)[1] % LANES == 0 for shape in shapes) and filters % LANES == 0,
        followers=len(super_op.ops) - 1,
    )


def _four(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Batch, channels, rows and columns; of a matrix the last axis is the channels."""
    sizes = [max(1, size) for size in shape]
    if len(sizes) == 3:
        return sizes[0], sizes[2], sizes[1], 1
    if len(sizes) < 3:
        batch, channels = ([1, 1, *sizes])[-2:]
        return batch, channels, 1, 1
    return sizes[0], sizes[1], sizes[2], math.prod(sizes[3:])


def _parameters(op: Op) -> int:
    return sum(math.prod(parameter.shape) for parameter in op.parameters)


def _window(op: Op, first: tuple[int, int, int, int]) -> tuple[int, int]:
    shape = op.attributes.get("kernel_shape")
    match shape:
        case (int(rows), int(columns)):
            return rows, columns
        case (int(rows),):
            return rows, 1
    if op.type.startswith("Global"):
        return first[2], first[3]
    if op.type in CONVOLUTIONS and op.parameters and len(op.parameters[0].shape) == 4:
        return op.parameters[0].shape[2], op.parameters[0].shape[3]
    return 1, 1


def _integer(op: Op, name: str, default: int) -> int:
    value = op.attributes.get(name, default)
    value = value[0] if isinstance(value, tuple) and value else value
    return int(value) if isinstance(value, (int, float)) else default
