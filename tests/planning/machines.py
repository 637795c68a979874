"""HOPE's machine with what phones do not have: processors that share resources, moves that queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner_api.planning import Machine
from planner_api.planning.problem import BoolArray


def apart(processors: Sequence[str], conflicts: BoolArray | None = None, *, queued: bool = False) -> Machine:
    """`Machine.apart`, where pairs of processors share a resource, or every way between two places has a queue.

    Args:
        processors: P names.
        conflicts: (P, P) symmetric, True where two share a resource; None: nothing is shared.
        queued: each ordered pair of places has a queue for its moves; else they take the reader's time (eq. 1).
    """
    machine = Machine.apart(processors)
    p = len(processors)
    if conflicts is not None:
        pairs = [(a, b) for a in range(p) for b in range(a) if conflicts[a, b]]
        shared = np.zeros((p, len(pairs)), dtype=np.bool_)
        for resource, pair in enumerate(pairs):
            shared[list(pair), resource] = True
        machine = replace(machine, uses=np.hstack([machine.uses, shared]))
    if queued:
        ways = [(a, b) for a in range(p + 1) for b in range(p + 1) if a != b]
        busy = np.full((p + 1, p + 1), -1, dtype=np.int64)
        for number, way in enumerate(ways):
            busy[way] = number
        names = tuple(f"{machine.places[a]}>{machine.places[b]}" for a, b in ways)
        machine = replace(machine, busy=busy, queues=names)
    return machine
