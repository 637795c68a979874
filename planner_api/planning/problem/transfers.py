"""The rule that fills missing transfer costs: one line per direction, fitted to the costs that are known."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hope_schema import HOST, Processor, TensorType, TransferColumns
from hope_schema.graph import BYTES_PER_ELEMENT


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


class TransferTable:
    """Measured transfers, looked up by tensor type and direction, with the rules for what is missing.

    For a direction (source kind, target kind), in this order:

    1. the measured cost of that tensor type;
    2. the direction's line over bytes, fitted to what was measured in that direction;
    3. between processors of one runtime on one host: free, they share memory and layout;
    4. from or to the host: free;
    5. through the host, where both halves have measured rows;
    6. otherwise no tensor moves that way (``inf``).
    """

    def __init__(self, rows: TransferColumns) -> None:
        # Keyed by plain tuples: hashing and comparing contract models is slow, and there may be 100 000 rows.
        self._known: dict[tuple[str, str], dict[tuple[tuple[int, ...], str], float]] = defaultdict(dict)
        for tensor, source, target, us in zip(rows.tensor, rows.source, rows.target, rows.us, strict=True):
            self._known[source, target][tensor.shape, tensor.dtype] = us
        self._lines: dict[tuple[str, str], Line] = {
            direction: fit([_bytes(*key) for key in known], list(known.values()))
            for direction, known in self._known.items()
        }

    def costs(
        self, types: Sequence[TensorType], source: Processor | None, target: Processor | None
    ) -> tuple[list[float], str]:
        """Cost of moving each tensor type; None stands for the host. Also a sentence on what was filled, or ''."""
        a, b = source.kind if source else HOST, target.kind if target else HOST
        if (a, b) in self._known:
            return self._measured(types, a, b)
        if source is None or target is None:
            return [0.0] * len(types), "never measured, taken as free"
        if (source.runtime, source.host) == (target.runtime, target.host):
            return [0.0] * len(types), "never measured, taken as free within one runtime on one host"
        if (a, HOST) in self._known and (HOST, b) in self._known:
            up, down = self._measured(types, a, HOST)[0], self._measured(types, HOST, b)[0]
            return [one + two for one, two in zip(up, down, strict=True)], "never measured, taken through the host"
        return [math.inf] * len(types), "never measured and nothing to fit from, so nothing moves that way"

    def _measured(self, types: Sequence[TensorType], source: str, target: str) -> tuple[list[float], str]:
        known, line = self._known[source, target], self._lines[source, target]
        keys = [(tensor.shape, tensor.dtype) for tensor in types]
        missing = sum(1 for key in keys if key not in known)
        costs = [known[key] if key in known else line.cost_us(_bytes(*key)) for key in keys]
        if not missing:
            return costs, ""
        return costs, (
            f"{missing} of {len(types)} tensors never measured, taken from the fitted line "
            f"{line.intercept_us:.4g} us + {line.slope_us:.4g} us/byte over {len(known)} rows"
        )


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.ceil(elements(shape) * BYTES_PER_ELEMENT[dtype])
