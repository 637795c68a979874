"""Exact plans for a small piece of a graph, by dynamic programming over what has been done so far.

A label is a partial schedule: the set of ops done, when each processor is free, where each live tensor is, and when
the ops that someone still waits for finish. Two labels with the same ops done and the same tensors in the same places
differ only in times; one that is nowhere later, and has every tensor where the other has it, dominates.

Ops are appended by start time: one may not start before the one appended last, it is delayed instead. Every
semi-active schedule listed by start is found without a delay, and those contain an optimum (once placement and order,
hence the transfers, are fixed, nothing gains from waiting). What a dominated label could still do, its rival can do in
the same order and no later, delays included, so dominance loses nothing. Labels that cannot beat the best known plan
are cut.

In an Inception module only some hundred sets of ops can be done (branches are chains), which is why this beats integer
programming there by more than a factor of ten.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from planner_api.planning.kernel import allocating_kernel
from planner_api.planning.problem import BoolArray, FloatArray, IntArray

NO_MATTER = 255
"""The source of a tensor that everybody has taken in."""
MOST_OPS = 62
"""Ops of a piece: the set of ops done is one machine word."""


class Piece(NamedTuple):
    """A piece of a graph: m ops in a topological order, t tensors that they read, P processors.

    Attributes:
        latency: (m, P) microseconds.
        rivals: (P, P) processors that never run together.
        before: (m,) bit set of each op's predecessors in the piece.
        reads_at, reads: the tensors each op reads.
        readers: (t,) bit set of the ops that read the tensor.
        producer: (t,) op, or -1 for tensors that are there when the piece begins.
        cost: (t, L, L) microseconds from place to place.
        place: (P + 1,) place of each processor, and the host.
        mates: (P,) bit set of the processors of the same place.
        launch: (P,) what an op pays that newly takes in a tensor made elsewhere.
        lag: (P + 1,) what lies between a finish and the moment when another processor can take in what was made.
        export_us: (m, P) what must still follow the op's finish on that processor before the end.
        tail_us: (m,) lower bound on the time from the op's finish to the end of the piece.
        weights: (w, P) rows of processor weights of which at most 1 in sum is busy at any time.
        work: (w, m) smallest weighted latency of each op.
        independent: True where no two processors share a resource.
    """

    latency: FloatArray
    rivals: BoolArray
    before: IntArray
    reads_at: IntArray
    reads: IntArray
    readers: IntArray
    producer: IntArray
    cost: FloatArray
    place: IntArray
    mates: IntArray
    launch: FloatArray
    lag: FloatArray
    export_us: FloatArray
    tail_us: FloatArray
    weights: FloatArray
    work: FloatArray
    independent: bool


@allocating_kernel
def expand(
    piece: Piece,
    done: IntArray,
    latest: FloatArray,
    free: FloatArray,
    finish: FloatArray,
    peak: FloatArray,
    where: np.ndarray,
    limit: float,
    room: int,
) -> tuple[Any, ...]:
    """All children of a level's labels that may still end before ``limit``.

    Args:
        piece: the piece.
        done: (k,) ops done, as bit sets.
        latest: (k,) start of the op appended last.
        free: (k, P) when each processor is free, not before ``latest``.
        finish: (k, m) finish of the ops that someone waits for; 0 where it no longer matters.
        peak: (k,) latest finish plus export so far.
        where: (k, t, 2) of each live tensor: the set of processors that made it or took it in, and where it was made.
        limit: labels that cannot end before it are dropped.
        room: stop growing beyond this many children.

    Returns:
        (count, parent, op, processor, done, latest, free, finish, peak, where, bound); ``count`` is -1 when there was
        no room.
    """
    k, host = free.shape
    m = piece.latency.shape[0]
    tensors = len(piece.producer)
    parent = np.empty(room, dtype=np.int64)
    chosen = np.empty(room, dtype=np.int64)
    placed = np.empty(room, dtype=np.int64)
    child_done = np.empty(room, dtype=np.int64)
    child_latest = np.empty(room)
    child_free = np.empty((room, host))
    child_finish = np.empty((room, m))
    child_peak = np.empty(room)
    child_where = np.empty((room, tensors, 2), dtype=np.uint16)
    bound = np.empty(room)
    everywhere = (1 << host) - 1
    most_lag = piece.lag.max()
    count = 0
    for label in range(k):
        for op in range(m):
            if done[label] >> op & 1 or piece.before[op] & ~done[label]:
                continue
            for here in range(host):
                if piece.latency[op, here] == np.inf:
                    continue
                if count == room:
                    return (
                        -1, parent, chosen, placed, child_done, child_latest, child_free, child_finish, child_peak,
                        child_where, bound,
                    )  # fmt: skip
                begin = free[label, here]
                for r in range(piece.reads_at[op], piece.reads_at[op + 1]):
                    tensor = piece.reads[r]
                    source = where[label, tensor, 1]
                    exists = 0.0 if piece.producer[tensor] < 0 else finish[label, piece.producer[tensor]]
                    if most_lag > 0.0 and source != here:
                        exists += piece.lag[source]
                    begin = max(begin, exists)
                now = begin
                launched = False
                for tensor in range(tensors):
                    child_where[count, tensor, 0] = where[label, tensor, 0]
                    child_where[count, tensor, 1] = where[label, tensor, 1]
                after = done[label] | (1 << op)
                for r in range(piece.reads_at[op], piece.reads_at[op + 1]):
                    tensor = piece.reads[r]
                    if not child_where[count, tensor, 0] >> here & 1:
                        launched = True
                        if not child_where[count, tensor, 0] & piece.mates[here]:
                            source = child_where[count, tensor, 1]
                            now += piece.cost[tensor, piece.place[source], piece.place[here]]
                        child_where[count, tensor, 0] |= 1 << here
                    if not piece.readers[tensor] & ~after:
                        child_where[count, tensor, 0] = 0
                        child_where[count, tensor, 1] = 0
                    elif child_where[count, tensor, 0] == everywhere and most_lag == 0.0:
                        child_where[count, tensor, 1] = NO_MATTER
                if launched:
                    now += piece.launch[here]
                now += piece.latency[op, here]
                top = max(peak[label], now + piece.export_us[op, here])
                if max(top, now + piece.tail_us[op]) >= limit:
                    continue
                for tensor in range(tensors):
                    if piece.producer[tensor] == op:
                        child_where[count, tensor, 0] = 1 << here
                        child_where[count, tensor, 1] = here
                earliest = np.inf
                for p in range(host):
                    child_free[count, p] = max(begin, free[label, p])
                    if piece.rivals[here, p]:
                        child_free[count, p] = max(child_free[count, p], now)
                    earliest = min(earliest, child_free[count, p])
                low = top
                for other in range(m):
                    value = now if other == op else finish[label, other]
                    child_finish[count, other] = 0.0
                    if after >> other & 1:
                        low = max(low, value + piece.tail_us[other]) if value > earliest else low
                        if value + most_lag > earliest:
                            for later in range(m):
                                if piece.before[later] >> other & 1 and not after >> later & 1:
                                    child_finish[count, other] = value
                                    break
                    else:
                        fastest = np.inf
                        for p in range(host):
                            fastest = min(fastest, child_free[count, p] + piece.latency[other, p])
                        low = max(low, fastest + piece.tail_us[other])
                for w in range(len(piece.weights)):
                    total = 0.0
                    if piece.independent:
                        for p in range(host):
                            total += piece.weights[w, p] * child_free[count, p]
                    else:
                        total = earliest
                    for other in range(m):
                        if not after >> other & 1:
                            total += piece.work[w, other]
                    low = max(low, total)
                if low >= limit:
                    continue
                parent[count] = label
                chosen[count] = op
                placed[count] = here
                child_done[count] = after
                child_latest[count] = begin
                child_peak[count] = top
                bound[count] = low
                count += 1
    return (
        count, parent, chosen, placed, child_done, child_latest, child_free, child_finish, child_peak, child_where,
        bound,
    )  # fmt: skip


@allocating_kernel
def undominated(
    order: IntArray,
    done: IntArray,
    latest: FloatArray,
    free: FloatArray,
    finish: FloatArray,
    peak: FloatArray,
    where: np.ndarray,
) -> IntArray:
    """Of labels listed by ops done, then by bound: those that no kept one with the same ops done dominates."""
    kept = np.empty(len(order), dtype=np.int64)
    count = 0
    first = 0
    for position in range(len(order)):
        label = order[position]
        if position == 0 or done[order[position - 1]] != done[label]:
            first = count
        dominated = False
        for r in range(first, count):
            rival = kept[r]
            if peak[rival] > peak[label] or latest[rival] > latest[label]:
                continue
            worse = False
            for p in range(free.shape[1]):
                if free[rival, p] > free[label, p]:
                    worse = True
                    break
            if worse:
                continue
            for tensor in range(where.shape[1]):
                here, there = where[rival, tensor, 0], where[label, tensor, 0]
                if here & there != there or (
                    where[rival, tensor, 1] != where[label, tensor, 1] and where[rival, tensor, 1] != NO_MATTER
                ):
                    worse = True
                    break
            if worse:
                continue
            for op in range(finish.shape[1]):
                if finish[rival, op] > finish[label, op]:
                    worse = True
                    break
            if not worse:
                dominated = True
                break
        if not dominated:
            kept[count] = label
            count += 1
    return kept[:count]
