"""Setting aside ops that depend on no input: they can run at any time and only hide the structure of the graph."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from planner_api.planning.problem import Problem


def constant_ops(problem: Problem) -> set[int]:
    """Ops that read nothing but what other such ops write, unless that is all there is."""
    lists = problem.lists
    constant: set[int] = set()
    for op in lists.order:
        if all(lists.producer[tensor] in constant for tensor in lists.reads[op]) and not any(
            problem.is_output[tensor] for tensor in lists.writes[op]
        ):
            constant.add(op)
    return constant if len(constant) < len(problem.ops) else set()


def without(problem: Problem, dropped: set[int]) -> tuple[Problem, list[int]]:
    """The problem without some ops and what they write, and the ops that are left.

    Every bound of the smaller problem holds for the larger one: taking an op and its transfers out of a schedule
    makes nothing later.
    """
    lists = problem.lists
    kept = [op for op in range(len(problem.ops)) if op not in dropped]
    tensors = [tensor for tensor, producer in enumerate(lists.producer) if producer not in dropped]
    new_op = {op: index for index, op in enumerate(kept)}
    new_tensor = {tensor: index for index, tensor in enumerate(tensors)}
    return dataclasses.replace(
        problem,
        ops=tuple(problem.ops[op] for op in kept),
        latency_us=problem.latency_us[kept],
        producer=np.array([new_op.get(lists.producer[tensor], -1) for tensor in tensors], dtype=np.int64),
        reads=tuple(tuple(new_tensor[tensor] for tensor in lists.reads[op] if tensor in new_tensor) for op in kept),
        is_output=problem.is_output[tensors],
        transfer_us=problem.transfer_us[tensors],
        tensors=tuple(problem.tensors[tensor] for tensor in tensors),
        share=None if problem.share is None else problem.share[kept],
        job=None if problem.job is None else problem.job[kept],
        in_parts=None,
        earlier=None,
    ), kept


def put_back(
    problem: Problem, kept: Sequence[int], assignment: Sequence[int], sequence: Sequence[int]
) -> tuple[list[int], list[int]]:
    """A placement and an order of the whole problem from those of the smaller one.

    Each op that was set aside runs just before its first reader, on its reader's processor where that supports it.
    """
    lists = problem.lists
    home = [-1] * len(problem.ops)
    for op, processor in zip(kept, assignment, strict=True):
        home[op] = processor
    order = [kept[op] for op in sequence]
    place: dict[int, float] = {op: float(position) for position, op in enumerate(order)}
    for op in reversed(lists.order):
        if home[op] < 0:
            reader = min(lists.after[op], key=lambda later: place[later], default=None)
            place[op] = -1.0 if reader is None else place[reader]
            wish = 0 if reader is None else home[reader]
            row = lists.latency[op]
            home[op] = wish if np.isfinite(row[wish]) else int(np.argmin(row))
    depth = {op: position for position, op in enumerate(lists.order)}
    # At one place stand an op and the constants that it is the first to read, in topological order.
    return home, sorted(range(len(problem.ops)), key=lambda op: (place[op], depth[op]))
