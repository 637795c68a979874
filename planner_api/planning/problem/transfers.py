"""The rule that fills missing transfer costs: one line per direction, fitted to the costs that are known."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hope_schema import Channel, TransferColumns
from hope_schema.graph import BYTES_PER_ELEMENT
from planner_api.planning.problem.arrays import FloatArray

Type = tuple[tuple[int, ...], str]
"""Shape and dtype of a tensor: contract models hash and compare slowly, and there may be 100 000 rows."""


def elements(shape: Iterable[int]) -> int:
    """What a transfer's cost grows with: the product of max(d, 1) over the dimensions."""
    return math.prod(max(dimension, 1) for dimension in shape)


def size_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.ceil(elements(shape) * BYTES_PER_ELEMENT[dtype])


@dataclass(frozen=True)
class Line:
    """``cost = intercept_us + slope_us * elements``, both coefficients non-negative."""

    intercept_us: float
    slope_us: float

    def cost_us(self, count: int) -> float:
        return self.intercept_us + self.slope_us * count


def fit(counts: Sequence[int], costs_us: Sequence[float]) -> Line:
    """Fit a line by unweighted least squares with slope >= 0 and intercept >= 0.

    With two coefficients the constrained optimum is the free one when that is feasible, and otherwise lies on
    one of the two borders.

    Raises:
        ValueError: nothing to fit to.
    """
    if not counts or len(counts) != len(costs_us):
        raise ValueError("a line needs at least one (elements, cost) pair")
    x, y = np.array(counts, dtype=float), np.array(costs_us, dtype=float)
    apart, mean_y = x - x.mean(), float(y.mean())
    lines = [Line(mean_y, 0.0), Line(0.0, float(x @ y / (x @ x)))]
    if apart.any():
        slope = float(apart @ y / (apart @ apart))
        lines.append(Line(mean_y - slope * float(x.mean()), slope))
    feasible = [line for line in lines if line.intercept_us >= 0 and line.slope_us >= 0]
    return min(feasible, key=lambda line: float(((y - line.intercept_us - line.slope_us * x) ** 2).sum()))


class TransferTable:
    """Measured transfers, looked up by tensor type and direction, with the rules for what is missing.

    For a direction (source place, target place), in this order:

    1. the measured cost of that tensor type;
    2. the channel's own line, where it says one; for what crosses it as float16 half of the bytes, and the change;
    3. the direction's line over bytes, fitted to what was measured in that direction;
    4. within one memory: free;
    5. otherwise there is no channel (``inf``), and tensors go over other places (`routes`), or not at all.
    """

    def __init__(self, rows: TransferColumns, channels: Sequence[Channel] = ()) -> None:
        self._known: dict[tuple[str, str], dict[Type, float]] = defaultdict(dict)
        for tensor, source, target, us in zip(rows.tensor, rows.source, rows.target, rows.us, strict=True):
            self._known[source, target][tensor.shape, tensor.dtype] = us
        self._lines: dict[tuple[str, str], Line] = {
            direction: fit([size_bytes(*key) for key in known], list(known.values()))
            for direction, known in self._known.items()
        }
        self._as_float16: dict[tuple[str, str], Line] = {}
        for way in channels:
            self._known[way.source, way.target]
            if way.fixed_us is not None and way.us_per_byte is not None:
                self._lines[way.source, way.target] = Line(way.fixed_us, way.us_per_byte)
                if way.halves("float32") and way.float16_us_per_byte is not None:
                    line = Line(way.fixed_us, way.us_per_byte / 2 + way.float16_us_per_byte)
                    self._as_float16[way.source, way.target] = line

    def joins(self, source: str, target: str) -> bool:
        """Whether there is a channel from place to place."""
        return (source, target) in self._lines or source.split("/", 1)[0] == target.split("/", 1)[0]

    def costs(self, types: Sequence[Type], source: str, target: str) -> tuple[FloatArray, str]:
        """Cost of the channel from place to place for each type. Also a sentence on what was filled, or ''."""
        if (source, target) not in self._lines:
            if self.joins(source, target):
                return np.zeros(len(types)), ""
            return np.full(len(types), math.inf), "never measured and nothing to fit from, so nothing moves that way"
        known, line = self._known[source, target], self._lines[source, target]
        float32 = self._as_float16.get((source, target), line)
        costs = np.array(
            [
                known[type_]
                if type_ in known
                else (float32 if type_[1] == "float32" else line).cost_us(size_bytes(*type_))
                for type_ in types
            ]
        )
        missing = sum(type_ not in known for type_ in types)
        if not missing or not known:
            return costs, ""
        return costs, (
            f"{missing} of {len(types)} types of tensors never measured, taken from the fitted line "
            f"{line.intercept_us:.4g} µs + {line.slope_us:.4g} µs/byte over {len(known)} rows"
        )
