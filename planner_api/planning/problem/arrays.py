"""Types and the error that everything about problems shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class PlanningError(ValueError):
    """A problem that cannot be planned; the message names the op or the tensor and the reason."""
