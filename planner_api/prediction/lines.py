"""CoDL's latency formula (its section on the predictor) as a robust regression per type: a few numbers per kind.

The time of an op is a sum of what it does, each times what one unit of it takes: products in whole blocks, by the
algorithm that kernels of that window use (a matrix product, Winograd's, or the window directly), bytes in and out,
weights, and a launch. The unit times are fitted, never negative, to relative errors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner_api.planning.problem import FloatArray
from planner_api.prediction.features import Features

TOLERANCE = 0.15
"""Relative error up to which a figure counts fully; beyond it its pull stays the same however wild it is (Huber)."""
PASSES = 8
NEGLIGIBLE = 1e-10
"""Relative gain below which least squares are as small as they get."""
LEAST_US = 0.5
"""No op takes less: the clocks of devices tick no finer."""
ELSE = ""
"""The line of all types that move data and multiply nothing, for those among them that were never measured."""


@dataclass(frozen=True)
class Lines:
    """Microseconds per term, by type of op."""

    coefficients: Mapping[str, tuple[float, ...]]

    @classmethod
    def fit(cls, ops: Sequence[Features], us: Sequence[float]) -> Lines:
        """Fit each type to its own figures, and the types that only move data together once more."""
        groups: dict[str, list[int]] = defaultdict(list)
        for index, op in enumerate(ops):
            groups[op.type].append(index)
            if not op.multiplies:
                groups[ELSE].append(index)
        rows = np.array([op.terms for op in ops])
        times = np.maximum(np.array(us, dtype=float), LEAST_US)
        return cls({type_: _fit(rows[group], times[group]) for type_, group in groups.items()})

    def us(self, ops: Sequence[Features]) -> FloatArray:
        """Predicted microseconds; of a type of which nothing is known, a nanosecond per product."""
        us = np.empty(len(ops))
        groups: dict[tuple[float, ...] | None, list[int]] = defaultdict(list)
        for index, op in enumerate(ops):
            line = op.type if op.type in self.coefficients or op.multiplies else ELSE
            groups[self.coefficients.get(line)].append(index)
        for known, group in groups.items():
            if known is None:
                us[group] = [ops[index].multiplications / 1000 for index in group]
            else:
                us[group] = np.array([ops[index].terms for index in group]) @ known
        return np.maximum(us, LEAST_US)


def _fit(rows: FloatArray, us: FloatArray) -> tuple[float, ...]:
    """Non-negative least squares on relative errors, reweighted so that wild figures bend it little."""
    relative, weight = rows / us[:, None], np.ones(len(us))
    solution = np.zeros(rows.shape[1])
    for _ in range(PASSES):
        solution = non_negative(relative * weight[:, None], weight)
        error = np.abs(relative @ solution - 1)
        weight = np.sqrt(np.minimum(1.0, TOLERANCE / np.maximum(error, 1e-12)))
    return tuple(solution.tolist())


def non_negative(rows: FloatArray, wanted: FloatArray) -> FloatArray:
    """The x >= 0 for which ``rows @ x`` is nearest to ``wanted`` (Lawson and Hanson 1974, chapter 23).

    NOTE: SciPy has the same, and takes half a second and 40 MB to import.
    """
    norms = np.linalg.norm(rows, axis=0)
    scale, least = np.where(norms > 0, norms, 1.0), NEGLIGIBLE * np.linalg.norm(wanted)
    columns, x, free = rows / scale, np.zeros(len(scale)), np.zeros(len(scale), dtype=bool)
    for _ in range(3 * len(x)):  # each turn comes nearer; rounding alone could keep it from ending
        gain = np.where(free, 0.0, columns.T @ (wanted - columns @ x))
        # Of terms that say the same the one of most units is taken: of what an op does, not of what it holds.
        best = int(np.where(gain > least, gain * scale, 0.0).argmax())
        if gain[best] <= least:
            break
        free[best] = True
        while True:
            nearest = np.zeros(len(x))
            nearest[free] = np.linalg.lstsq(columns[:, free], wanted, rcond=None)[0]
            below = np.flatnonzero(free & (nearest <= 0))
            if not below.size:
                break
            # As far as no coefficient falls below zero; one that gets there first is held there.
            reach = x[below] / np.maximum(x[below] - nearest[below], 1e-300)
            x = np.maximum(x + reach.min() * (nearest - x), 0.0)
            free[below[reach == reach.min()]] = False
            x[~free] = 0.0
        x = nearest
    return x / scale
