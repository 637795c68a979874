"""Was the machine ours while we measured? What other processes took, from the kernel's own books."""

from __future__ import annotations

import os
import time

DISTURBED = 0.05
"""A round counts as disturbed when others took more than this fraction of the cores' time."""
PATIENCE_S = 60.0
"""How long undisturbed rounds are waited for before disturbed ones are taken after all."""


class Watch:
    """Measures, between its making and ``others``, how much of the machine others used."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._busy = _busy_s()
        self._own = time.process_time()

    def others(self) -> float:
        """The fraction of all cores' time that went to other processes and, on a shared host, to other machines."""
        span = (time.perf_counter() - self._at) * (os.cpu_count() or 1)
        return max(0.0, (_busy_s() - self._busy) - (time.process_time() - self._own)) / span


def _busy_s() -> float:
    """Seconds that all cores together have been busy, or taken from us by the host, since boot."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(value) for value in file.readline().split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")
