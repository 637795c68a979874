"""Seeded random weights that keep activations alive, for any graph of convolutions, products and normalisations.

A pass in topological order estimates the mean and variance of every tensor and scales each weight so that its op's
output has variance 1 (He initialisation, with the statistics carried along instead of assumed). Filters with enough
taps are partly centred, which removes most of the common mean that rectifiers add. Not centred, deep random networks
answer almost the same to every input, and comparing two runs would prove little. Wholly centred, they are chaotic:
every layer lets differences grow by up to a fifth (sqrt(pi / (pi - 1)) behind a rectifier), a network of forty layers
blows up float32's rounding a thousandfold, and no two runtimes agree.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

CENTRED_FAN_IN = 16
"""Filters with at least this many taps are centred; smaller (depth-wise) ones would lose too much signal."""

CENTRING = 0.7
"""Share of a filter's mean that is taken away. With 0.6 to 0.75, two random inputs give answers 2 to 90 % apart while
inception_v4, which amplifies most, agrees between two runtimes within 5e-5; with 1, within 1.7e-4."""


@dataclass(frozen=True)
class Moments:
    """Mean and variance of a tensor's elements, as estimated."""

    mean: float
    variance: float

    @property
    def power(self) -> float:
        """Mean square."""
        return self.mean**2 + self.variance


UNIT = Moments(0.0, 1.0)


class _Generator:
    """Draws one parameter at a time; each depends on the seed and its own name, not on what was drawn before."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniform(self, name: str, shape: Sequence[int], low: float, high: float) -> np.ndarray:
        """Return float32 values in [low, high)."""
        rng = np.random.Generator(np.random.PCG64([self.seed, zlib.crc32(name.encode())]))
        values = rng.random(tuple(shape), dtype=np.float32)
        values *= np.float32(high - low)
        values += np.float32(low)
        return values

    def filters(self, name: str, shape: Sequence[int], taps: tuple[int, ...], x: Moments) -> np.ndarray:
        """Return weights whose sums over the axes ``taps`` of inputs with moments ``x`` have variance 1."""
        fan_in = math.prod(shape[axis] for axis in taps)
        centring = CENTRING if fan_in >= CENTRED_FAN_IN else 0.0
        left = (1 - centring) ** 2
        power = max(x.variance * (1 - (1 - left) / fan_in) + x.mean**2 * left, 1e-6)
        bound = math.sqrt(3.0 / (fan_in * power))
        values = self.uniform(name, shape, -bound, bound)
        if centring:
            values -= np.float32(centring) * values.mean(axis=taps, keepdims=True, dtype=np.float32)
        return values


def fill(
    nodes: Iterable[onnx.NodeProto], shapes: Mapping[str, tuple[int, ...]], inputs: Iterable[str], seed: int
) -> list[onnx.TensorProto]:
    """Return an initialiser for every parameter in ``shapes``, in the order the nodes first read them.

    ``nodes`` must be in topological order. ``inputs`` are taken to have mean 0 and variance 1. Raises ValueError for a
    parameter that an op reads in a place this function knows no sensible values for.
    """
    generator = _Generator(seed)
    moments: dict[str, Moments] = dict.fromkeys(inputs, UNIT)
    filled: dict[str, onnx.TensorProto] = {}

    def put(name: str, values: np.ndarray) -> None:
        filled[name] = onnx.TensorProto(
            name=name, dims=values.shape, data_type=onnx.TensorProto.FLOAT, raw_data=values.astype("<f4").tobytes()
        )

    for node in nodes:
        parameters = [name for name in node.input if name in shapes]
        known = [moments[name] for name in node.input if name in moments]
        x = known[0] if known else UNIT
        # Weights that several ops share (the steps of a recurrent layer) are drawn for the first of them.
        if any(name not in filled for name in parameters):
            draw = _PARAMETERS.get(node.op_type)
            if draw is None:
                raise ValueError(f"no rule for the weights of a {node.op_type}")
            for name, values in draw(node, shapes, x, generator).items():
                put(name, values)
        result = _moments(node, known, bool(parameters))
        moments.update(dict.fromkeys(filter(None, node.output), result))
    return list(filled.values())


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


Values = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]


def _bias(node: onnx.NodeProto, shapes: Shapes, generator: _Generator) -> Values:
    return {name: generator.uniform(name, shapes[name], -0.1, 0.1) for name in node.input[2:] if name in shapes}


def _conv(node: onnx.NodeProto, shapes: Shapes, x: Moments, generator: _Generator) -> Values:
    name = node.input[1]
    taps = tuple(range(1, len(shapes[name])))
    return {name: generator.filters(name, shapes[name], taps, x), **_bias(node, shapes, generator)}


def _product(node: onnx.NodeProto, shapes: Shapes, x: Moments, generator: _Generator) -> Values:
    name = node.input[1]
    taps = (1,) if _attribute(node, "transB", 0) else (0,)
    return {name: generator.filters(name, shapes[name], taps, x), **_bias(node, shapes, generator)}


def _normalise(node: onnx.NodeProto, shapes: Shapes, x: Moments, generator: _Generator) -> Values:
    """Statistics near the true ones of what comes in, as training leaves them; variances are above zero."""
    scale, bias, mean, variance = node.input[1:5]
    spread = 0.1 * math.sqrt(x.variance)
    return {
        scale: generator.uniform(scale, shapes[scale], 0.8, 1.2),
        bias: generator.uniform(bias, shapes[bias], -0.1, 0.1),
        mean: generator.uniform(mean, shapes[mean], x.mean - spread, x.mean + spread),
        variance: generator.uniform(variance, shapes[variance], 0.8 * x.variance, 1.2 * x.variance),
    }


def _scale(node: onnx.NodeProto, shapes: Shapes, x: Moments, generator: _Generator) -> Values:
    return {name: generator.uniform(name, shapes[name], 0.8, 1.2) for name in node.input if name in shapes}


def _shift(node: onnx.NodeProto, shapes: Shapes, x: Moments, generator: _Generator) -> Values:
    return {name: generator.uniform(name, shapes[name], -0.1, 0.1) for name in node.input if name in shapes}


_PARAMETERS: Mapping[str, Callable[[onnx.NodeProto, Shapes, Moments, _Generator], Values]] = {
    "Conv": _conv,
    "Gemm": _product,
    "MatMul": _product,
    "BatchNormalization": _normalise,
    "Mul": _scale,
    "Add": _shift,
}


def _moments(node: onnx.NodeProto, x: list[Moments], weighted: bool) -> Moments:
    """Estimate the moments of the node's output from those of its activation inputs."""
    first = x[0] if x else UNIT
    kind = node.op_type
    if kind in ("Conv", "Gemm", "MatMul", "BatchNormalization"):
        return UNIT
    if kind == "Relu":
        return _rectified(first)
    if kind == "Sigmoid":
        return Moments(0.5, 0.04)
    if kind == "Tanh":
        return Moments(0.0, 0.4)
    if kind in ("MaxPool", "AveragePool", "GlobalAveragePool"):
        taps = next((math.prod(a.ints) for a in node.attribute if a.name == "kernel_shape"), 49)
        if kind == "MaxPool":
            # Mean of the largest of n normal values; neighbours are correlated, so the variance falls less.
            return Moments(first.mean + math.sqrt(first.variance * math.log(max(taps, 1))), first.variance / 2)
        return Moments(first.mean, first.variance / math.sqrt(taps))
    if kind in ("Add", "Sum"):
        return Moments(sum(m.mean for m in x), sum(m.variance for m in x))
    if kind == "Mul" and not weighted:
        return Moments(math.prod(m.mean for m in x), math.prod(m.power for m in x) - math.prod(m.mean**2 for m in x))
    if kind == "Concat":
        mean = sum(m.mean for m in x) / len(x)
        return Moments(mean, sum(m.power for m in x) / len(x) - mean**2)
    return first


def _rectified(x: Moments) -> Moments:
    """Moments of max(0, x) for a normal x."""
    if x.variance <= 0:
        return Moments(max(x.mean, 0.0), 0.0)
    sigma = math.sqrt(x.variance)
    ratio = x.mean / sigma
    above = 0.5 * (1 + math.erf(ratio / math.sqrt(2)))
    density = math.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    mean = x.mean * above + sigma * density
    power = x.power * above + x.mean * sigma * density
    return Moments(mean, max(power - mean**2, 0.0))


@dataclass(frozen=True)
class Topology:
    """A float32 network without its weights.

    ``nodes`` are in topological order; ``parameters`` are the shapes of the weights to draw; ``constants`` have fixed
    values (targets of reshapes, pads); ``inputs`` and ``outputs`` map names to shapes.
    """

    name: str
    nodes: Sequence[onnx.NodeProto]
    parameters: Mapping[str, tuple[int, ...]]
    constants: Sequence[onnx.TensorProto]
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    opset: int

    def draw(self, seed: int) -> onnx.ModelProto:
        """Return the model with weights drawn from ``seed``."""
        model = onnx.ModelProto(ir_version=8, producer_name="hope")
        model.opset_import.append(helper.make_opsetid("", self.opset))
        graph = model.graph
        graph.name = self.name
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.constants)
        for tensor in fill(self.nodes, self.parameters, self.inputs, seed):
            graph.initializer.append(tensor)
        for field, tensors in ((graph.input, self.inputs), (graph.output, self.outputs)):
            field.extend(
                helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in tensors.items()
            )
        return model
