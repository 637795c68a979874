"""Ops that compute each element by itself, with broadcasting."""

import math
from collections.abc import Mapping
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from agent_sdk.runtimes.torch.node import Node
from agent_sdk.runtimes.torch.table.registry import Call, op

AS_THEY_ARE: Mapping[str, Call] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "BitwiseNot": torch.bitwise_not, "Ceil": torch.ceil, "Cos": torch.cos,
    "Cosh": torch.cosh, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "HardSwish": F.hardswish,
    "IsNaN": torch.isnan, "Log": torch.log, "Mish": F.mish, "Neg": torch.neg, "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid,
    "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": F.softplus, "Softsign": F.softsign,
    "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh,
    "Add": torch.add, "And": torch.logical_and, "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor, "Equal": torch.eq, "Greater": torch.gt, "GreaterOrEqual": torch.ge,
    "Less": torch.lt, "LessOrEqual": torch.le, "Mul": torch.mul, "Or": torch.logical_or,
    "Sub": torch.sub, "Where": torch.where, "Xor": torch.logical_xor,
}  # fmt: skip
TUNED: Mapping[str, tuple[Call, str, str, Any]] = {
    "Celu": (F.celu, "alpha", "alpha", 1.0),
    "Elu": (F.elu, "alpha", "alpha", 1.0),
    "Gelu": (F.gelu, "approximate", "approximate", "none"),
    "LeakyRelu": (F.leaky_relu, "negative_slope", "alpha", 0.01),
    "ThresholdedRelu": (partial(F.threshold, value=0.0), "threshold", "alpha", 1.0),
}
"""What has one attribute: the call, its argument's name, the attribute's, and what that is by default."""
FOLDS: Mapping[str, Call] = {"Max": torch.maximum, "Min": torch.minimum, "Sum": torch.add}


@op(*AS_THEY_ARE)
def _plain(node: Node) -> Call:
    return AS_THEY_ARE[node.type]


@op(*TUNED)
def _tuned(node: Node) -> Call:
    call, name, attribute, default = TUNED[node.type]
    return partial(call, **{name: node.get(attribute, default)})


@op(*FOLDS)
def _folded(node: Node) -> Call:
    call = FOLDS[node.type]
    return lambda *xs: reduce(call, xs)


@op("Identity", "Dropout")
def _identity(node: Node) -> Call:
    if len([name for name in node.outputs if name]) > 1 or (node.has(2) and bool(node.constant(2))):
        raise node.refuse("dropping out in training mode, or its mask is asked for")
    return lambda x, *_: x


@op("Mean")
def _mean(node: Node) -> Call:
    return lambda *xs: reduce(torch.add, xs) / len(xs)


@op("Div")
def _div(node: Node) -> Call:
    whole = node.dtype().startswith(("int", "uint"))
    return partial(torch.div, rounding_mode="trunc") if whole else torch.div


@op("Mod")
def _mod(node: Node) -> Call:
    return torch.fmod if node.get("fmod", 0) else torch.remainder


@op("Pow")
def _pow(node: Node) -> Call:
    power = node.constants.get(node.inputs[1])
    if power is not None and power.size == 1 and power.ndim <= len(node.shape()):
        exponent = power.item()
        whole = isinstance(exponent, float) and exponent.is_integer()
        value = int(exponent) if whole else exponent
        if value == 2:
            return lambda x, _: x * x
        if value == 0.5:
            return lambda x, _: torch.sqrt(x).to(x.dtype)
        return lambda x, _: torch.pow(x, value).to(x.dtype)
    return lambda x, y: torch.pow(x, y).to(x.dtype)


@op("Clip")
def _clip(node: Node) -> Call:
    low, high = (node.argument(index, name) for index, name in ((1, "min"), (2, "max")))
    if low == 0 and high is None:
        return lambda x, *_: torch.relu(x)
    if low is None and high is None:
        return lambda x, *_: x
    return lambda x, *_: torch.clamp(x, low, high)


@op("PRelu")
def _prelu(node: Node) -> Call:
    return lambda x, slope: torch.where(x < 0, x * slope, x)


@op("Selu")
def _selu(node: Node) -> Call:
    alpha = node.get("alpha", 1.67326319217681884765625)
    gamma = node.get("gamma", 1.05070102214813232421875)
    return lambda x: gamma * F.elu(x, alpha)


@op("HardSigmoid")
def _hard_sigmoid(node: Node) -> Call:
    alpha, beta = node.get("alpha", 0.2), node.get("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return F.hardsigmoid
    return lambda x: torch.clamp(x * alpha + beta, 0, 1)


@op("Swish")
def _swish(node: Node) -> Call:
    alpha = node.get("alpha", 1.0)
    return F.silu if alpha == 1.0 else lambda x: x * torch.sigmoid(alpha * x)


@op("Shrink")
def _shrink(node: Node) -> Call:
    edge, bias = node.get("lambd", 0.5), node.get("bias", 0.0)

    def shrink(x: Tensor) -> Tensor:
        zero = torch.zeros_like(x)
        return torch.where(x < -edge, x + bias, torch.where(x > edge, x - bias, zero))

    return shrink


@op("IsInf")
def _is_inf(node: Node) -> Call:
    up, down = node.get("detect_positive", 1), node.get("detect_negative", 1)
    return {(1, 1): torch.isinf, (1, 0): torch.isposinf, (0, 1): torch.isneginf}.get(
        (up, down), lambda x: torch.zeros_like(x, dtype=torch.bool)
    )


@op("Cast")
def _cast(node: Node) -> Call:
    target: Any = getattr(torch, node.held(node.result().dtype), None)
    if target is None:
        raise node.refuse(f"torch has no type {node.result().dtype}")
    return lambda x: x.to(target)
