"""Of two voters that contradict each other, the one whom others refuse elsewhere. Pure: no SQL."""

import numpy as np
from numpy.typing import NDArray

from planner_api.profiles.statistics import FloatArray, Names

JUDGED = 4
"""Figures that a device must have voted on beside two others before it is judged by them ..."""
REFUSED = 0.25
"""... and the share of them on which it was refused, from which on it is doubted."""


def outdone(us: FloatArray, device: Names, accepted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which votes (F, V) do not count: of two on a figure the doubted device's, where the other is not.

    ``accepted`` says which votes lie near the median of theirs, which of two always do.
    """
    finite = np.isfinite(us)
    voters = finite.sum(axis=1)
    judged = finite & (voters >= 3)[:, None]
    pairs = finite & (voters == 2)[:, None]
    if not judged.any() or not pairs.any():
        return np.zeros_like(finite)
    names, owner = np.unique(device, return_inverse=True)
    owner = owner.reshape(device.shape)
    all_of_them = np.bincount(owner[judged], minlength=len(names))
    refused = np.bincount(owner[judged & ~accepted], minlength=len(names))
    doubted = (all_of_them >= JUDGED) & (refused > REFUSED * all_of_them)
    found: NDArray[np.bool_] = pairs & doubted[owner]
    found[found.sum(axis=1) == 2] = False
    return found
