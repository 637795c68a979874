"""How far two right answers may lie apart: what a network's number types round to, over its depth."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from hope_schema import ModelGraph, Op

FLOAT32: Final = 1e-3
"""Of the largest value: what float32 kernels, which add up in another order, may differ by."""
SWITCH: Final = 1e-4
"""Of the largest value: what another runtime may change of a float32 answer when it takes over."""
WIDEST: Final = 0.1
"""More than this no rounding explains."""
STEP: Final[Mapping[str, float]] = {
    "float16": 2.0**-11,
    "tf32": 2.0**-11,
    "bfloat16": 2.0**-8,
    "int8": 1 / 127,
    "uint8": 1 / 127,
    "int4": 1 / 7,
    "uint4": 1 / 7,
}
"""The relative error of rounding once to a type: half a unit in the last place, or of a quantised range, whose largest
value is half its steps away from zero, one step."""
QUANTISING: Final = ("Quantize", "QLinear", "Integer", "QGemm", "QAttention")
"""What the names of operators that compute with quantised numbers contain; other integers are indices and masks."""


@dataclass(frozen=True)
class Rounding:
    """What a network's types round to.

    Attributes:
        dtype: the coarsest type that it computes with.
        tolerance: how far right answers may differ, relative to the largest value.
        differs: whether runtimes round differently beyond what float32 explains, so that one of them has to be kept to.
    """

    dtype: str
    tolerance: float
    differs: bool

    @property
    def cause(self) -> str:
        """What differences within the tolerance are due to."""
        return f"rounding of {self.dtype} between runtimes"


def rounding(graph: ModelGraph, precision: str = "model") -> Rounding:
    """The rounding of a network: its steps add up at random, like a walk of as many as lie on one path (their root).

    ``precision`` is what float32 is computed in: ``tf32``, ``float16``, or what the model says.
    """
    coarsest, step = "float32", 0.0
    for op in graph.ops:
        for dtype in _computed_in(graph, op, precision):
            if STEP.get(dtype, 0.0) > step:
                coarsest, step = dtype, STEP[dtype]
    if not step:
        return Rounding(coarsest, FLOAT32, differs=False)
    steps = longest_path(graph, {op.id for op in graph.ops if coarsest in _computed_in(graph, op, precision)})
    return Rounding(coarsest, max(FLOAT32, min(WIDEST, step * math.sqrt(steps))), differs=True)


def nearest(array: np.ndarray, precision: str) -> np.ndarray:
    """Float32 as ``tf32`` or ``float16`` holds it; what is of another type, too large, or no number stays as it is."""
    if array.dtype != np.float32:
        return array
    if precision == "float16":
        with np.errstate(over="ignore"):
            rounded = array.astype(np.float16).astype(np.float32)
    else:  # ten bits of mantissa, as float16, and the exponents of float32
        rounded = ((np.ascontiguousarray(array).view(np.int32) + 0x1000) & ~0x1FFF).view(np.float32)
    return np.where(np.isfinite(array) & np.isfinite(rounded), rounded, array)


def longest_path(graph: ModelGraph, counted: Collection[str]) -> int:
    behind: dict[str, int] = {}
    for op in graph.topological_ops:
        before = (behind[graph.producer[name]] for name in op.inputs if name in graph.producer)
        behind[op.id] = max(before, default=0) + (op.id in counted)
    return max(behind.values())


def _computed_in(graph: ModelGraph, op: Op, precision: str) -> set[str]:
    """The types that an op rounds to: floats that it makes, and integers where it quantises or reads quantised ones."""
    narrowed = {} if precision == "model" else {"float32": precision}
    made: set[str] = {narrowed.get(graph.tensor[name].dtype, graph.tensor[name].dtype) for name in op.outputs}
    if not any(mark in f"{op.type}+{op.attributes.get('ops', '')}" for mark in QUANTISING):
        return {dtype for dtype in made if "float" in dtype or dtype == precision}
    touched = made | {graph.tensor[name].dtype for name in op.inputs} | {kind.dtype for kind in op.parameters}
    return {*touched} or {"int8"}
