"""Which processors, and which resources, are as good as each other."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from planner_api.planning.problem import Problem


def equal_processors(problem: Problem) -> list[list[int]]:
    """Processors in classes of which each does everything alike and uses equally many resources of the same kind.

    Resources are of one kind when the same classes use them, which is found by refining until nothing changes.
    """
    machine = problem.machine
    own = [
        (
            problem.latency_us[:, p].tobytes(),
            problem.shares[:, p].tobytes(),
            problem.least_shares[:, p].tobytes(),
            int(machine.place[p]),
            float(machine.launch_us[p]),
            float(machine.end_us[p]),
            float(machine.slowdown[p]),
            0.0 if machine.spread is None else float(machine.spread[p]),
            int(machine.memory[p]),
        )
        for p in range(problem.host)
    ]
    kind = _numbered(own)
    while True:
        classes = [[p for p, other in enumerate(kind) if other == k] for k in range(max(kind) + 1)]
        resources = resource_kinds(problem, classes)
        finer = _numbered(
            [
                (kind[p], tuple(sorted(Counter(resources[r] for r in np.flatnonzero(machine.uses[p])).items())))
                for p in range(problem.host)
            ]
        )
        if max(finer) == max(kind):
            return classes
        kind = finer


def resource_kinds(problem: Problem, classes: Sequence[Sequence[int]]) -> list[int]:
    """The kind of each resource, from classes of processors: which of them use it, and how many of each."""
    kind = {p: k for k, members in enumerate(classes) for p in members}
    users = [np.flatnonzero(column).tolist() for column in problem.machine.uses.T]
    return _numbered([tuple(sorted(Counter(kind[p] for p in processors).items())) for processors in users])


def _numbered(keys: Sequence[object]) -> list[int]:
    number: dict[object, int] = {}
    return [number.setdefault(key, len(number)) for key in keys]
