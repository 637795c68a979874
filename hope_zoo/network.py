"""Writes float32 networks op by op; a tensor is known by its name, and shapes are kept along the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hope_zoo.weights import Topology

OPSET = 17
"""Operator set of the networks built in code."""

Size = tuple[int, int]


def square(kernel: int | Size) -> Size:
    """Return a kernel or stride as (height, width)."""
    return (kernel, kernel) if isinstance(kernel, int) else kernel


class Network:
    """A network under construction.

    Every method appends ops and returns the name of the tensor they make, which is the ``name`` given (scoped with
    slashes, as TensorFlow writes them). Batch normalisation after a convolution is taken as folded into its weights
    and bias, as converters for phones do.
    """

    def __init__(self, name: str, inputs: Mapping[str, tuple[int, ...]]) -> None:
        self.name = name
        self.inputs = dict(inputs)
        self.shape: dict[str, tuple[int, ...]] = dict(inputs)
        self._nodes: list[onnx.NodeProto] = []
        self._parameters: dict[str, tuple[int, ...]] = {}
        self._constants: dict[str, onnx.TensorProto] = {}

    def op(self, kind: str, inputs: Sequence[str], name: str, shape: tuple[int, ...], **attributes: Any) -> str:
        """Append one op whose only output has the given name and shape."""
        if name in self.shape:
            raise ValueError(f"tensor '{name}' stands twice in '{self.name}'")
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        self.shape[name] = shape
        return name

    def parameter(self, name: str, shape: tuple[int, ...]) -> str:
        """Declare weights, to be drawn later."""
        self._parameters[name] = shape
        return name

    def constant(self, name: str, values: Sequence[int] | Sequence[float] | float) -> str:
        """Declare an integer vector (bounds, pads), or float32 numbers (scales, or a single one), with fixed values."""
        array = np.asarray(values)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        self._constants[name] = numpy_helper.from_array(array, name)
        return name

    def conv(
        self,
        x: str,
        channels: int,
        kernel: int | Size,
        name: str,
        *,
        stride: int = 1,
        same: bool = True,
        groups: int = 1,
        bias: bool = True,
    ) -> str:
        """Convolution with bias; ``same`` pads as TensorFlow's SAME does, else there is no padding."""
        size, step = square(kernel), square(stride)
        weights = [self.parameter(f"{name}/weights", (channels, self.shape[x][1] // groups, *size))]
        if bias:
            weights.append(self.parameter(f"{name}/bias", (channels,)))
        pads, out = self._window(x, size, step, same)
        return self.op(
            "Conv", [x, *weights], name, (1, channels, *out), kernel_shape=size, strides=step, pads=pads, group=groups
        )

    def conv_relu(
        self, x: str, channels: int, kernel: int | Size, scope: str, *, stride: int = 1, same: bool = True
    ) -> str:
        """Convolution and rectifier, named ``scope/Conv2D`` and ``scope/Relu``."""
        return self.relu(self.conv(x, channels, kernel, f"{scope}/Conv2D", stride=stride, same=same), f"{scope}/Relu")

    def relu(self, x: str, name: str) -> str:
        """Rectifier."""
        return self.op("Relu", [x], name, self.shape[x])

    def max_pool(self, x: str, kernel: int, name: str, *, stride: int = 1, same: bool = True) -> str:
        """Maximum over a square window."""
        pads, out = self._window(x, square(kernel), square(stride), same)
        shape = (*self.shape[x][:2], *out)
        return self.op("MaxPool", [x], name, shape, kernel_shape=square(kernel), strides=square(stride), pads=pads)

    def avg_pool(self, x: str, kernel: int, name: str, *, stride: int = 1, same: bool = True) -> str:
        """Mean over a square window; padding does not count, as in TensorFlow."""
        pads, out = self._window(x, square(kernel), square(stride), same)
        shape = (*self.shape[x][:2], *out)
        return self.op("AveragePool", [x], name, shape, kernel_shape=square(kernel), strides=square(stride), pads=pads)

    def concat(self, parts: Sequence[str], name: str) -> str:
        """Join along channels."""
        first = self.shape[parts[0]]
        channels = sum(self.shape[part][1] for part in parts)
        return self.op("Concat", parts, name, (first[0], channels, *first[2:]), axis=1)

    def add(self, a: str, b: str, name: str) -> str:
        """Sum of two tensors of one shape."""
        return self.op("Add", [a, b], name, self.shape[a])

    def batch_norm(self, x: str, name: str) -> str:
        """Batch normalisation where no convolution stands right before it."""
        parts = [
            self.parameter(f"{name}/{part}", (self.shape[x][1],)) for part in ("gamma", "beta", "mean", "variance")
        ]
        return self.op("BatchNormalization", [x, *parts], name, self.shape[x])

    def pad(self, x: str, pads: tuple[int, int, int, int], name: str, *, value: float = 0.0) -> str:
        """Pad height and width by (top, left, bottom, right)."""
        top, left, bottom, right = pads
        bounds = self.constant(f"{name}/pads", [0, 0, top, left, 0, 0, bottom, right])
        batch, channels, height, width = self.shape[x]
        shape = (batch, channels, height + top + bottom, width + left + right)
        return self.op("Pad", [x, bounds, self.constant(f"{name}/value", float(value))], name, shape)

    def crop(self, x: str, name: str) -> str:
        """Drop the first row and the first column."""
        batch, channels, height, width = self.shape[x]
        bounds = {"starts": [1, 1], "ends": [height, width], "axes": [2, 3]}
        constants = [self.constant(f"{name}/{key}", values) for key, values in bounds.items()]
        return self.op("Slice", [x, *constants], name, (batch, channels, height - 1, width - 1))

    def classify(self, x: str, classes: int, scope: str) -> str:
        """Global mean, fully connected layer and softmax."""
        channels = self.shape[x][1]
        mean = self.op("GlobalAveragePool", [x], f"{scope}/Mean", (1, channels, 1, 1))
        flat = self.op("Flatten", [mean], f"{scope}/Flatten", (1, channels), axis=1)
        weights = self.parameter(f"{scope}/Logits/weights", (channels, classes))
        bias = self.parameter(f"{scope}/Logits/bias", (classes,))
        logits = self.op("Gemm", [flat, weights, bias], f"{scope}/Logits", (1, classes))
        return self.op("Softmax", [logits], f"{scope}/Predictions", (1, classes), axis=1)

    def topology(self, *outputs: str) -> Topology:
        """Return what was written so far, with the outputs named."""
        return Topology(
            name=self.name,
            nodes=tuple(self._nodes),
            parameters=self._parameters,
            constants=tuple(self._constants.values()),
            inputs=self.inputs,
            outputs={name: self.shape[name] for name in outputs},
            opset=OPSET,
        )

    def same_pads(self, x: str, kernel: Size, stride: Size) -> tuple[int, int, int, int]:
        """Return TensorFlow's SAME padding as (top, left, bottom, right): the odd row and column go last."""
        totals = []
        for size, window, step in zip(self.shape[x][2:], kernel, stride, strict=True):
            totals.append(max((math.ceil(size / step) - 1) * step + window - size, 0))
        height, width = totals
        return (height // 2, width // 2, height - height // 2, width - width // 2)

    def _window(self, x: str, kernel: Size, stride: Size, same: bool) -> tuple[list[int], Size]:
        top, left, bottom, right = pads = self.same_pads(x, kernel, stride) if same else (0, 0, 0, 0)
        _, _, height, width = self.shape[x]
        return list(pads), (
            (height + top + bottom - kernel[0]) // stride[0] + 1,
            (width + left + right - kernel[1]) // stride[1] + 1,
        )
