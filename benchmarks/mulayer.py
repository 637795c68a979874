"""μLayer (Kim et al. 2019) as HOPE compares with it: every layer split over two processors, one layer after the other.

Not a plan of ours: no part is ever placed. What it would take is a sum over the layers, on figures that it does not
have to measure: a part of an op takes its part of the op's time, and processors share one layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner_api.planning.problem import FloatArray, PlanningError

RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""What the first processor may take of a layer (its section 4)."""


def mulayer_us(latency_us: FloatArray, splittable: Sequence[bool], sync_us: float) -> float:
    """Time of a network in microseconds.

    Args:
        latency_us: (n, 2) latency of every op on either processor; ``inf`` where it is not supported.
        splittable: (n,) whether an op may be computed in two parts.
        sync_us: what it costs that both processors wait for each other after a split layer.

    Raises:
        PlanningError: not two processors.
    """
    if latency_us.ndim != 2 or latency_us.shape[1] != 2:
        raise PlanningError("μLayer splits layers over two processors")
    first, second = latency_us[:, 0], latency_us[:, 1]
    best = np.minimum(first, second)
    for ratio in RATIOS[1:-1]:
        split = np.maximum(ratio * first, (1 - ratio) * second) + sync_us
        best = np.where(splittable, np.minimum(best, split), best)
    return float(best.sum())
