"""A GPU that was idle runs at a sixth of its clock for a while: what is timed then says nothing of what comes later."""

import time
from collections.abc import Callable
from typing import Final

STEADY_S: Final = 0.5
"""So long nothing has become faster: the clock is up."""
FASTER: Final = 0.99
"""What takes less than this part of the least so far has become faster."""
MOST_S: Final = 4.0
"""After so long what there is has to do."""


def rouse(call: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> float:
    """Keep a device at work until it is not becoming faster any more.

    Args:
        call: some work, returns what it took on the device.
        clock: the time in seconds.

    Returns:
        The least that the work took.
    """
    began = since = clock()
    least = call()
    while clock() - since < STEADY_S and clock() - began < MOST_S:
        took = call()
        if took < FASTER * least:
            since = clock()
        least = min(least, took)
    return least
