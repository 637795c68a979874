"""Where a network of ordinary floats makes what is no number, and hides it again: 0 / 0, or the root of less than 0.

Followed through what moves, scales and adds it, to an op that makes an ordinary value of it. What goes on through sums
of many (a matrix product, a convolution) reaches the outputs as a rule, and is seen there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from agent_sdk.model.nodes import type_of

HIDING: Final = frozenset(
    {"ArgMax", "ArgMin", "Clip", "DynamicQuantizeLinear", "GlobalMaxPool", "Greater", "GreaterOrEqual", "HardSigmoid"}
    | {"Hardmax", "LRN", "Less", "LessOrEqual", "Max", "MaxPool", "Min", "QuantizeLinear", "ReduceMax", "ReduceMin"}
    | {"Relu", "Sign", "ThresholdedRelu", "TopK", "IsNaN", "Equal"}
)
"""Ops whose answer may be an ordinary one though they read what is no number."""
PASSING: Final = frozenset(
    {"Add", "Sub", "Mul", "Neg", "Abs", "Sum", "Cast", "Identity", "Dropout", "Reshape", "Flatten", "Squeeze"}
    | {"Unsqueeze", "Transpose", "Slice", "Split", "Expand", "Tile", "Concat", "Gather"}
)
"""Ops that hand it on."""
UNDEFINED: Final = frozenset({"Acos", "Acosh", "Asin", "Atanh", "Mod"})
"""Ops that are undefined for many numbers."""
KEEPING: Final = PASSING - {"Sub", "Neg"} | {"Sqrt", "Mul", "Div", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"}
"""Ops that make numbers above 0 of numbers above 0, and of such that are not below it too."""
SQUARES: Final = frozenset(
    {"Abs", "Exp", "Relu", "Sigmoid", "Softmax", "HardSigmoid", "ReduceL1", "ReduceL2", "ReduceSumSquare"}
)
"""Ops that make nothing below 0."""


@dataclass
class Springs:
    """Takes note of nodes in topological order."""

    constants: Mapping[str, onnx.TensorProto]
    undefined: set[str] = field(default_factory=set)
    _above: dict[str, bool] = field(default_factory=dict)
    _from_zero: dict[str, bool] = field(default_factory=dict)

    def hides(self, node: onnx.NodeProto) -> bool:
        """Whether a node may hide what is no number. Takes note of what it makes."""
        kind = type_of(node)
        tainted = any(name in self.undefined for name in node.input)
        if self._makes_undefined(kind, node.input) or (tainted and kind in PASSING):
            self.undefined.update(node.output)
        above = kind in KEEPING and all(map(self._positive, _values(kind, node.input)))
        above |= (
            kind in ("Add", "Sum", "Max")
            and any(map(self._positive, node.input))
            and (kind == "Max" or all(map(self._not_negative, node.input)))
        )
        above |= kind == "Clip" and len(node.input) > 1 and self._positive(node.input[1])
        from_zero = above or kind in SQUARES or (kind == "Mul" and len(set(node.input)) == 1)
        from_zero |= kind == "Pow" and self._all(node.input[1], lambda value: value % 2 == 0)
        from_zero |= kind in KEEPING and all(map(self._not_negative, _values(kind, node.input)))
        for name in node.output:
            self._above[name], self._from_zero[name] = above, from_zero
        return tainted and kind in HIDING

    def _makes_undefined(self, kind: str, inputs: Iterable[str]) -> bool:
        names = [*inputs]
        if kind == "Div":
            return not self._positive(names[1]) and not self._all(names[1], lambda value: value != 0)
        if kind == "Log":
            return not self._not_negative(names[0])
        if kind == "Sqrt":
            return not self._not_negative(names[0])
        if kind == "Pow":
            whole = self._all(names[1], lambda value: value == np.round(value))
            return not whole and not self._not_negative(names[0])
        return kind in UNDEFINED

    def _all(self, name: str, holds: Callable[[np.ndarray], np.ndarray]) -> bool:
        return name in self.constants and bool(np.all(holds(numpy_helper.to_array(self.constants[name]))))

    def _positive(self, name: str) -> bool:
        if name not in self._above:
            self._above[name] = self._all(name, lambda value: value > 0)
        return self._above[name]

    def _not_negative(self, name: str) -> bool:
        if name not in self._from_zero:
            self._from_zero[name] = self._positive(name) or self._all(name, lambda value: value >= 0)
        return self._from_zero[name]


def _values(kind: str, inputs: Iterable[str]) -> list[str]:
    names = [name for name in inputs if name]
    return names if kind in ("Add", "Mul", "Div", "Sum", "Concat") else names[:1]
