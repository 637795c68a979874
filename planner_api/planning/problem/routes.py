"""Ways between places that no channel joins: the cheapest over several."""

from __future__ import annotations

import numpy as np

from planner_api.planning.problem.arrays import BoolArray, FloatArray, IntArray


def routes(direct_us: FloatArray, fixed: BoolArray) -> IntArray:
    """Return for every two places the one before the second on the way from the first: `Machine.hop`.

    The ways from one place make a tree, so a tensor reaches every place over one channel, whoever wants it there.

    Args:
        direct_us: (L, L) what the channel from place to place costs; ``inf`` where there is none.
        fixed: (L, L) True where the way is the channel, however cheap a detour were: figures of one host are measured
            as its engine moves tensors. Between hosts the cheapest way is taken.
    """
    cost = direct_us.copy()
    for k in range(len(cost)):
        cost = np.minimum(cost, cost[:, k, None] + cost[None, k, :])
    # A channel to which there is a cheaper way is on no way at all.
    channel = np.where(fixed | (direct_us <= cost), direct_us, np.inf)
    found, hop = channel.copy(), np.repeat(np.arange(len(cost))[:, None], len(cost), axis=1)
    changed = True
    while changed:
        changed = False
        for k in range(len(cost)):
            longer = found[:, k, None] + channel[None, k, :]
            better = ~fixed & (longer < found)
            if better.any():
                found, hop, changed = np.where(better, longer, found), np.where(better, k, hop), True
    return hop
