"""Types and the error that everything about problems shares."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class PlanningError(ValueError):
    """A problem that cannot be planned; the message names the op or the tensor and the reason."""


def check_shapes(holder: object, **shapes: tuple[int, ...]) -> None:
    """Make arrays of some attributes read-only. Raises PlanningError where one, if it is there, has another shape."""
    for name, shape in shapes.items():
        array = getattr(holder, name)
        if array is not None:
            if array.shape != shape:
                raise PlanningError(f"{name} has shape {array.shape}, expected {shape}")
            array.setflags(write=False)


def wrong(right: BoolArray) -> list[list[int]]:
    """The first place at which something does not hold, if there is one."""
    found: list[list[int]] = np.argwhere(~right)[:1].tolist()
    return found
