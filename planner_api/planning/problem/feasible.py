"""Where an op can be at all, once transfers that do not exist are taken into account."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from planner_api.planning.problem import PlanningError, Problem


def prune(problem: Problem) -> Problem:
    """Take from each op the processors on which its inputs, readers or outputs could never be served.

    Arc consistency: a placement goes when some neighbour has no placement left that a tensor can move from or
    to. Repeated until nothing changes. The optimum is untouched.

    Raises:
        PlanningError: an op has no placement left; names the tensor that cannot move.
    """
    lists, place, host = problem.lists, problem.machine.place, problem.machine.host
    moves = np.isfinite(problem.transfer_us)
    if moves.all():
        return problem
    possible = np.isfinite(problem.latency_us)
    edges = [
        (lists.producer[tensor], tensor, op)
        for op, tensors in enumerate(problem.reads)
        for tensor in tensors
        if lists.producer[tensor] >= 0
    ]
    for op, tensors in enumerate(problem.reads):
        for tensor in tensors:
            if lists.producer[tensor] < 0:
                possible[op] &= moves[tensor, host, place]
                _still_possible(problem, possible, op, tensor)
    for tensor in lists.outputs:
        if lists.producer[tensor] >= 0:
            op = lists.producer[tensor]
            possible[op] &= moves[tensor, place, host]
            _still_possible(problem, possible, op, tensor)
    changed = True
    while changed:
        changed = False
        for producer, tensor, reader in edges:
            matrix = moves[tensor][place[:, None], place]
            served = matrix[possible[producer]].any(axis=0) & possible[reader]
            serving = matrix[:, served].any(axis=1) & possible[producer]
            if (served != possible[reader]).any() or (serving != possible[producer]).any():
                changed = True
                possible[reader], possible[producer] = served, serving
                _still_possible(problem, possible, reader, tensor)
    if (possible == np.isfinite(problem.latency_us)).all():
        return problem
    return dataclasses.replace(problem, latency_us=np.where(possible, problem.latency_us, math.inf))


def _still_possible(problem: Problem, possible: np.ndarray, op: int, tensor: int) -> None:
    if not possible[op].any():
        producer = int(problem.producer[tensor])
        source = f"op '{problem.ops[producer]}'" if producer >= 0 and producer != op else "the host"
        raise PlanningError(
            f"tensor '{problem.tensors[tensor]}' cannot move between {source} and op '{problem.ops[op]}': "
            f"no transfer was measured between any two processors that can run them, nor a row to fit one from"
        )


def any_placement(problem: Problem) -> list[int]:
    """Some placement in which every tensor can move where it is read, where constructive methods run into a dead end.

    Each op goes to the fastest processor that leaves all others a placement.

    Raises:
        PlanningError: an op has none.
    """
    problem = prune(problem)
    for op in problem.lists.order:
        able = np.flatnonzero(np.isfinite(problem.latency_us[op]))
        if len(able) > 1:
            problem = _settled(problem, op, sorted(able, key=problem.latency_us[op].__getitem__))
    return [int(np.argmin(row)) for row in problem.latency_us]


def _settled(problem: Problem, op: int, able: Sequence[int]) -> Problem:
    """The problem with an op on the first of some processors that leaves all others a placement."""
    for processor in able:
        latency = problem.latency_us.copy()
        latency[op] = math.inf
        latency[op, processor] = problem.latency_us[op, processor]
        with suppress(PlanningError):
            return prune(dataclasses.replace(problem, latency_us=latency))
    raise PlanningError("transfers are missing, and no placement that does without them was found")
