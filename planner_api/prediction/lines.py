"""CoDL's latency formula (its section on the predictor) as a robust regression per type: a few numbers per kind.

The time of an op is a sum of what it does, each times what one unit of it takes: products in whole blocks, by the
algorithm that kernels of that window use (a matrix product, Winograd's, or the window directly), bytes in and out,
weights, and a launch. The unit times are fitted, never negative, to relative errors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner_api.planning.problem import FloatArray
from planner_api.prediction.features import CONVOLUTIONS, POOLS, Features

TERMS = ("launch", "matrix", "winograd", "window", "read", "written", "weights", "unpacked", "inputs", "followers")
"""What the time of an op is a sum of."""
UNIT = 1e4
"""Elements and products are counted in this many, so that all coefficients are of one size."""
TOLERANCE = 0.15
"""Relative error up to which a figure counts fully; beyond it its pull stays the same however wild it is (Huber)."""
PASSES = 8
LEAST_US = 0.5
"""No op takes less: the clocks of devices tick no finer."""
ELSE = ""
"""The line of all types that move data and multiply nothing, for those among them that were never measured."""


def terms(op: Features) -> FloatArray:
    """What an op does, in the order of ``TERMS``."""
    products = op.multiplications / UNIT
    matrix = winograd = window = 0.0
    if op.type in CONVOLUTIONS and op.kernel != (1, 1):
        if op.kernel[0] == op.kernel[1] and op.stride == 1:
            winograd = products
        else:
            window = products
    elif op.type in POOLS or op.type == "DepthwiseConv":
        window = products
    elif multiplies(op):
        matrix = products
    read, written = op.read / UNIT, op.written / UNIT
    unpacked = 0.0 if op.packed else read + written
    inputs = max(0.0, op.inputs - 1.0)
    row = (1.0, matrix, winograd, window, read, written, op.weights / UNIT, unpacked, inputs, op.followers * written)
    return np.array(row)


def multiplies(op: Features) -> bool:
    """Whether an op computes more than it moves."""
    return op.type in CONVOLUTIONS or op.type in POOLS or op.type == "DepthwiseConv" or op.weights > op.filters


@dataclass(frozen=True)
class Lines:
    """Microseconds per term, by type of op. Plain numbers: what a device is sent."""

    coefficients: Mapping[str, tuple[float, ...]]

    @classmethod
    def fit(cls, ops: Sequence[Features], us: Sequence[float]) -> Lines:
        """Fit each type to its own figures, and the types that only move data together once more."""
        groups: dict[str, list[int]] = defaultdict(list)
        for index, op in enumerate(ops):
            groups[op.type].append(index)
            if not multiplies(op):
                groups[ELSE].append(index)
        rows = np.array([terms(op) for op in ops])
        times = np.maximum(np.array(us, dtype=float), LEAST_US)
        return cls({type_: _fit(rows[group], times[group]) for type_, group in groups.items()})

    def us(self, op: Features) -> float:
        """Predicted microseconds; of a type of which nothing is known, a nanosecond per product."""
        known = self.coefficients.get(op.type)
        if known is None and not multiplies(op):
            known = self.coefficients.get(ELSE)
        if known is None:
            return max(LEAST_US, op.multiplications / 1000)
        return max(LEAST_US, float(np.dot(known, terms(op))))


def load() -> Any:
    """Import what fits lines: half a second and 40 MB that who only predicts, or plans what was measured, never needs.

    A process whose threads may fit at once calls this before it has any: threads that import one package wait for each
    other, in a circle too.
    """
    from scipy.optimize import nnls

    return nnls


def _fit(rows: FloatArray, us: FloatArray) -> tuple[float, ...]:
    """Non-negative least squares on relative errors, reweighted so that wild figures bend it little."""
    nnls = load()
    relative, weight = rows / us[:, None], np.ones(len(us))
    solution = np.zeros(rows.shape[1])
    for _ in range(PASSES):
        solution, _ = nnls(relative * weight[:, None], weight)
        error = np.abs(relative @ solution - 1)
        weight = np.sqrt(np.minimum(1.0, TOLERANCE / np.maximum(error, 1e-12)))
    return tuple(solution.tolist())
