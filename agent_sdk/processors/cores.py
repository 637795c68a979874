"""How sets of cores are written."""

from __future__ import annotations

from collections.abc import Sequence


def name_cores(cores: Sequence[int]) -> str:
    """Ascending cores as people write them: ``0``, ``0-3``, ``0+2``."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
