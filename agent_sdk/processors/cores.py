"""Sets of cores: how they are written, and how a thread is bound to one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager


def name_cores(cores: Sequence[int]) -> str:
    """Ascending cores as people write them: ``0``, ``0-3``, ``0+2``."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@contextmanager
def bound_to(cores: Set[int]) -> Iterator[None]:
    """Bind the calling thread to ``cores`` and put its mask back afterwards."""
    before = os.sched_getaffinity(0)
    if before == cores:
        yield
        return
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
