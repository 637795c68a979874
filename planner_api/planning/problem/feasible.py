"""Where an op can be at all, once transfers that do not exist are taken into account."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from planner_api.planning.problem import PlanningError, Problem

MAX_DEAD_ENDS = 1000
"""Dead ends after which the search for any placement gives up."""


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
    """Some placement in which every tensor can move where it is read; fast processors first.

    A complete search with arc consistency after every choice, for problems on which constructive methods run
    into a dead end because transfers are missing.

    Raises:
        PlanningError: there is none, or none was found before too many dead ends.
    """
    lists = problem.lists
    stack = [(prune(problem), 0)]
    dead_ends = 0
    while stack:
        current, place = stack.pop()
        while place < len(lists.order) and np.isfinite(current.latency_us[lists.order[place]]).sum() == 1:
            place += 1
        if place == len(lists.order):
            return [int(np.argmin(row)) for row in current.latency_us]
        op = lists.order[place]
        row = current.latency_us[op]
        branches = []
        for processor in np.argsort(row, kind="stable")[: int(np.isfinite(row).sum())]:
            latency = current.latency_us.copy()
            latency[op] = math.inf
            latency[op, processor] = row[processor]
            try:
                branches.append((prune(dataclasses.replace(current, latency_us=latency)), place + 1))
            except PlanningError:
                dead_ends += 1
        stack.extend(reversed(branches))
        if dead_ends > MAX_DEAD_ENDS:
            raise PlanningError("transfers are missing, and no placement that does without them was found")
    raise PlanningError("transfers are missing, and no placement can do without them")
