"""The simulator's arithmetic as machine code: the same numbers, bit for bit, some fifty times faster.

The kernels are compiled by numba on first use and cached on disk. Importing this module costs about a second, so
it is imported where it is used. `evaluate` is the whole schedule; `annealing` holds the incremental version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner_api.planning.kernel import kernel
from planner_api.planning.problem import BoolArray, FloatArray, IntArray, Problem


class Arrays(NamedTuple):
    """A problem as flat arrays. ``x_at[i]:x_at[i + 1]`` is the slice of ``x`` that belongs to ``i``.

    Attributes:
        latency: (n, P) microseconds, ``inf`` for unsupported.
        rivals: (P, P) True where two processors never run together.
        producer: (T,) op or -1.
        cost: (T, P + 1, P + 1) microseconds; the host is last.
        export_us: (n, P) the longest move to the host of an output written by the op on that processor.
        tail_us: (n,) a lower bound on the time from the op's finish to the end of any schedule.
        blocking: the transfer mode.
    """

    latency: FloatArray
    rivals: BoolArray
    producer: IntArray
    cost: FloatArray
    is_output: BoolArray
    reads_at: IntArray
    reads: IntArray
    writes_at: IntArray
    writes: IntArray
    readers_at: IntArray
    readers: IntArray
    before_at: IntArray
    before: IntArray
    after_at: IntArray
    after: IntArray
    export_us: FloatArray
    tail_us: FloatArray
    blocking: bool


def _flat(rows: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    at = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=at[1:])
    return at, np.fromiter((item for row in rows for item in row), dtype=np.int64, count=int(at[-1]))


def arrays(problem: Problem) -> Arrays:
    """Flatten a problem for the kernels."""
    lists = problem.lists
    n, p = problem.latency_us.shape
    export = np.zeros((n, p))
    for tensor in lists.outputs:
        if lists.producer[tensor] >= 0:
            row = export[lists.producer[tensor]]
            np.maximum(row, problem.transfer_us[tensor, :p, p], out=row)
    fastest = problem.latency_us.min(axis=1).tolist()
    exported = export.min(axis=1).tolist()
    tail = [0.0] * n
    for op in reversed(lists.order):
        tail[op] = max([exported[op], *(fastest[after] + tail[after] for after in lists.after[op])])
    return Arrays(
        np.ascontiguousarray(problem.latency_us),
        np.ascontiguousarray(problem.conflicts),
        np.ascontiguousarray(problem.producer),
        np.ascontiguousarray(problem.transfer_us),
        np.ascontiguousarray(problem.is_output),
        *_flat(lists.reads),
        *_flat(lists.writes),
        *_flat(lists.readers),
        *_flat(lists.before),
        *_flat(lists.after),
        export,
        np.array(tail),
        problem.mode == "blocking",
    )


@kernel
def evaluate(
    a: Arrays, assignment: IntArray, sequence: IntArray, start: FloatArray, finish: FloatArray, payer: IntArray
) -> float:
    """Time a whole schedule; see `simulator.simulate` for the rules.

    Args:
        a: the problem.
        assignment: (n,) processor of each op.
        sequence: (n,) ops in a topological order.
        start: (n,) filled with each op's start.
        finish: (n,) filled with each op's finish.
        payer: (T, P) filled in blocking mode with the position whose op fetches the tensor, n where nobody does.

    Returns:
        The makespan in microseconds.
    """
    if a.blocking:
        return _blocking(a, assignment, sequence, start, finish, payer)
    return _overlap(a, assignment, sequence, start, finish)


@kernel
def _blocking(
    a: Arrays, assignment: IntArray, sequence: IntArray, start: FloatArray, finish: FloatArray, payer: IntArray
) -> float:
    n, host = a.latency.shape
    free = np.zeros(host)
    for tensor in range(len(payer)):
        for processor in range(host):
            payer[tensor, processor] = n
    makespan = 0.0
    for position in range(n):
        op = sequence[position]
        here = assignment[op]
        begin = free[here]
        for k in range(a.before_at[op], a.before_at[op + 1]):
            begin = max(begin, finish[a.before[k]])
        now = begin
        for k in range(a.reads_at[op], a.reads_at[op + 1]):
            tensor = a.reads[k]
            producer = a.producer[tensor]
            source = assignment[producer] if producer >= 0 else host
            if source != here and payer[tensor, here] == n:
                payer[tensor, here] = position
                now += a.cost[tensor, source, here]
        now += a.latency[op, here]
        start[op] = begin
        finish[op] = now
        for rival in range(host):
            if a.rivals[here, rival]:
                free[rival] = max(free[rival], now)
        makespan = max(makespan, now + a.export_us[op, here])
    return makespan


@kernel
def _send(
    a: Arrays,
    tensor: int,
    source: int,
    exists: float,
    assignment: IntArray,
    channel: FloatArray,
    arrival: FloatArray,
) -> float:
    """Put a tensor into the channels to all who read it; the last arrival."""
    host = a.latency.shape[1]
    wanted = np.zeros(host + 1, dtype=np.bool_)
    for k in range(a.readers_at[tensor], a.readers_at[tensor + 1]):
        wanted[assignment[a.readers[k]]] = True
    wanted[host] = a.is_output[tensor]
    last = 0.0
    for target in range(host + 1):
        if wanted[target] and target != source:
            cost = a.cost[tensor, source, target]
            begin = exists
            if cost > 0:
                begin = max(exists, channel[source, target])
                channel[source, target] = begin + cost
            arrival[tensor, target] = begin + cost
            last = max(last, begin + cost)
    return last


@kernel
def _overlap(a: Arrays, assignment: IntArray, sequence: IntArray, start: FloatArray, finish: FloatArray) -> float:
    n, host = a.latency.shape
    free = np.zeros(host)
    channel = np.zeros((host + 1, host + 1))
    arrival = np.zeros((len(a.producer), host + 1))
    makespan = 0.0
    for tensor in range(len(a.producer)):
        if a.producer[tensor] < 0:
            makespan = max(makespan, _send(a, tensor, host, 0.0, assignment, channel, arrival))
    for position in range(n):
        op = sequence[position]
        here = assignment[op]
        begin = free[here]
        for k in range(a.reads_at[op], a.reads_at[op + 1]):
            tensor = a.reads[k]
            producer = a.producer[tensor]
            if producer >= 0 and assignment[producer] == here:
                begin = max(begin, finish[producer])
            else:
                begin = max(begin, arrival[tensor, here])
        now = begin + a.latency[op, here]
        start[op] = begin
        finish[op] = now
        for rival in range(host):
            if a.rivals[here, rival]:
                free[rival] = max(free[rival], now)
        makespan = max(makespan, now)
        for k in range(a.writes_at[op], a.writes_at[op + 1]):
            makespan = max(makespan, _send(a, a.writes[k], here, now, assignment, channel, arrival))
    return makespan
