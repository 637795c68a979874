"""Sets of cores: how they are written, and how a thread is bound to one."""

import os
import re
from collections.abc import Sequence

from agent_sdk.errors import ProcessorLost


def name_cores(cores: Sequence[int]) -> str:
    """Ascending cores as people write them: ``0``, ``0-3``, ``0+2``."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def parse_cores(text: str) -> frozenset[int]:
    """The cores of a name, see ``name_cores``; none where it is not one."""
    if not re.fullmatch(r"\d{1,4}(-\d{1,4})?(\+\d{1,4}(-\d{1,4})?)*", text):
        return frozenset()
    runs = [part.partition("-") for part in text.split("+")]
    return frozenset(core for first, _, last in runs for core in range(int(first), int(last or first) + 1))


def bind_to(cores: frozenset[int]) -> None:
    """Move the calling thread to some CPUs; an empty set leaves it where it is. Raises ProcessorLost."""
    try:
        if cores:
            os.sched_setaffinity(0, cores)
    except OSError as error:
        raise gone(cores, error.strerror) from error


def gone(cores: frozenset[int], reason: str | None) -> ProcessorLost:
    """What to raise where the system does not let a thread run on some CPUs."""
    named = ", ".join(f"cpu{core}" for core in sorted(cores))
    return ProcessorLost(f"{named}: this process may not run there (any more): {reason}; use the other processors")


class bound_to:  # noqa: N801  reads as a verb in `with bound_to(cores)`
    """Bind the calling thread to some CPUs for a while; an empty set leaves it where it is.

    Afterwards it is back, wherever the body has left it. Raises ProcessorLost.
    """

    def __init__(self, cores: frozenset[int]) -> None:
        self._cores = cores

    def __enter__(self) -> None:
        self._before = os.sched_getaffinity(0)
        if self._before != self._cores:
            bind_to(self._cores)

    def __exit__(self, *_: object) -> None:
        if self._cores and os.sched_getaffinity(0) != self._before:
            try:  # noqa: SIM105  a run ends here, its caches cold: `suppress` would add 14 µs to the 20 of the kernel
                os.sched_setaffinity(0, self._before)
            except OSError:  # where the thread came from may be gone as well; the kernel has moved it then
                pass
