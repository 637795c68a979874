"""The rule that fills missing transfer costs: one line per direction, fitted to the costs that are known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def elements(shape: Iterable[int]) -> int:
    """What a transfer's cost grows with: the product of max(d, 1) over the dimensions."""
    return math.prod(max(dimension, 1) for dimension in shape)


@dataclass(frozen=True)
class Line:
    """``cost = intercept_us + slope_us * elements``, both coefficients non-negative."""

    intercept_us: float
    slope_us: float

    def cost_us(self, count: int) -> float:
        """Cost in microseconds of moving ``count`` elements."""
        return self.intercept_us + self.slope_us * count


def fit(counts: Sequence[int], costs_us: Sequence[float]) -> Line:
    """Fit a line by unweighted least squares with slope >= 0 and intercept >= 0.

    With two coefficients the constrained optimum is the free one when that is feasible, and otherwise lies on
    one of the two borders.

    Raises:
        ValueError: nothing to fit to.
    """
    n = len(counts)
    if n == 0 or n != len(costs_us):
        raise ValueError("a line needs at least one (elements, cost) pair")
    mean_x, mean_y = sum(counts) / n, sum(costs_us) / n
    spread = sum((x - mean_x) ** 2 for x in counts)
    if spread > 0:
        slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(counts, costs_us, strict=True)) / spread
        intercept = mean_y - slope * mean_x
        if slope >= 0 and intercept >= 0:
            return Line(intercept, slope)
    through_origin = sum(x * y for x, y in zip(counts, costs_us, strict=True)) / sum(x * x for x in counts)
    flat, steep = Line(mean_y, 0.0), Line(0.0, through_origin)
    return min(
        (flat, steep),
        key=lambda line: sum((y - line.cost_us(x)) ** 2 for x, y in zip(counts, costs_us, strict=True)),
    )
