"""Where a network of ordinary floats makes what is no number, and hides it again: 0 / 0, or the root of less than 0.

Followed through all ops behind it, to one that makes an ordinary value of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from agent_sdk.model.nodes import reads, type_of
from hope_schema import TensorType

HIDING: Final = frozenset(
    {"Celu", "Clip", "Exp", "GlobalMaxPool", "GridSample", "HardSigmoid", "Hardmax", "LRN", "LogSoftmax", "Max"}
    | {"MaxPool", "Min", "ReduceMax", "ReduceMin", "Relu", "Shrink", "Sign", "Softmax", "ThresholdedRelu", "TopK"}
)
"""Ops whose answer may be an ordinary one though they read what is no number, as what is no float always is."""
UNDEFINED: Final = frozenset({"Acos", "Acosh", "Asin", "Atanh", "Mod"})
"""Ops that are undefined for many numbers."""
POLES: Final = frozenset({"Log", "Reciprocal", "ReduceLogSum"})
"""Ops that are infinite for 0; some are undefined below."""
KEEPING: Final = frozenset(
    {"Abs", "Add", "Cast", "Concat", "Div", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Mul", "ReduceMax"}
    | {"ReduceMean", "ReduceMin", "ReduceSum", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sum", "Tile"}
    | {"Transpose", "Unsqueeze"}
)
"""Ops that make numbers above 0 of numbers above 0, and of such that are not below it too."""
SQUARES: Final = frozenset(
    {"Abs", "Exp", "Relu", "Sigmoid", "Softmax", "HardSigmoid", "ReduceL1", "ReduceL2", "ReduceSumSquare"}
)
"""Ops that make nothing below 0."""


@dataclass
class Springs:
    """Takes note of nodes in topological order."""

    constants: Mapping[str, onnx.TensorProto]
    types: Mapping[str, TensorType]
    undefined: set[str] = field(default_factory=set)
    _above: dict[str, bool] = field(default_factory=dict)
    _from_zero: dict[str, bool] = field(default_factory=dict)

    def hides(self, node: onnx.NodeProto) -> bool:
        """Whether a node may hide what is no number. Takes note of what it makes."""
        kind = type_of(node)
        tainted = any(name in self.undefined for name in reads(node))
        floats = [name for name in node.output if name not in self.types or "float" in self.types[name].dtype]
        if tainted or self._makes_undefined(kind, node.input):
            self.undefined.update(floats)
        from_zero = _holds(kind, node.input, self._not_negative)
        above = _holds(kind, node.input, self._positive) and kind != "Cast"  # 0.5 becomes 0
        above |= kind in ("Add", "Sum") and from_zero and any(map(self._positive, node.input))
        from_zero |= above or kind in SQUARES or (kind == "Mul" and len(set(node.input)) == 1)
        from_zero |= kind == "Pow" and self._all(node.input[1], lambda value: value % 2 == 0)
        for name in node.output:
            self._above[name], self._from_zero[name] = above, from_zero
        return tainted and (kind in HIDING or len(floats) < len(node.output))

    def _makes_undefined(self, kind: str, inputs: Sequence[str]) -> bool:
        """Whether an op makes what is no number, or of 0 what is infinite, which times 0 is none."""
        if kind == "Div":
            return not self._positive(inputs[1]) and not self._all(inputs[1], lambda value: value != 0)
        if kind in POLES:
            return not self._positive(inputs[0])
        if kind == "Sqrt":
            return not self._not_negative(inputs[0])
        if kind == "Pow" and not self._positive(inputs[0]):
            whole = self._all(inputs[1], lambda value: value == np.round(value))
            from_zero = self._all(inputs[1], lambda value: value >= 0)
            return not (from_zero and (whole or self._not_negative(inputs[0])))
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


def _holds(kind: str, inputs: Sequence[str], test: Callable[[str], bool]) -> bool:
    """Whether what is true of an op's inputs, that they are above 0 or not below, is true of what it makes."""
    if kind == "Max":
        return any(map(test, inputs))
    if kind == "Clip":
        return len(inputs) > 1 and test(inputs[1])
    read = inputs if kind in ("Add", "Mul", "Div", "Sum", "Concat") else inputs[:1]
    return kind in KEEPING and all(map(test, read))
