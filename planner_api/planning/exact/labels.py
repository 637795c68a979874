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

from typing import NamedTuple

import numpy as np

from planner_api.planning.kernel import kernel
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
        most_lag: the largest of ``lag``.
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
    most_lag: float


class Labels(NamedTuple):
    """Partial schedules of a piece, one a row.

    Attributes:
        done: (k,) ops done, as bit sets.
        latest: (k,) start of the op appended last.
        free: (k, P) when each processor is free, not before ``latest``.
        finish: (k, m) finish of the ops that someone waits for; 0 where it no longer matters.
        peak: (k,) latest finish plus export so far.
        where: (k, t, 2) of each live tensor: the set of processors that made it or took it in, and where it was made.
        bound: (k,) no completion ends before it.
        parent, op, processor: (k,) the label of the level before, and what was appended to it, where.
    """

    done: IntArray
    latest: FloatArray
    free: FloatArray
    finish: FloatArray
    peak: FloatArray
    where: np.ndarray
    bound: FloatArray
    parent: IntArray
    op: IntArray
    processor: IntArray

    @classmethod
    def room(cls, count: int, piece: Piece) -> Labels:
        """Space for so many labels of a piece, all zero."""
        m, host = piece.latency.shape
        return cls(
            done=np.zeros(count, dtype=np.int64),
            latest=np.zeros(count),
            free=np.zeros((count, host)),
            finish=np.zeros((count, m)),
            peak=np.zeros(count),
            where=np.zeros((count, len(piece.producer), 2), dtype=np.uint16),
            bound=np.zeros(count),
            parent=np.zeros(count, dtype=np.int64),
            op=np.zeros(count, dtype=np.int64),
            processor=np.zeros(count, dtype=np.int64),
        )

    def take(self, rows: IntArray) -> Labels:
        """Some of them, in that order."""
        return Labels._make(field[rows] for field in self)


@kernel
def expand(piece: Piece, labels: Labels, children: Labels, limit: float) -> int:
    """All children of a level's labels that may still end before ``limit``.

    Args:
        piece: the piece.
        labels: of the level.
        children: filled.
        limit: labels that cannot end before it are dropped.

    Returns:
        How many there are; -1 when there was no room for them.
    """
    m, host = piece.latency.shape
    tensors = len(piece.producer)
    room = len(children.done)
    everywhere = (1 << host) - 1
    count = 0
    for label in range(len(labels.done)):
        for op in range(m):
            if labels.done[label] >> op & 1 or piece.before[op] & ~labels.done[label]:
                continue
            for here in range(host):
                if piece.latency[op, here] == np.inf:
                    continue
                if count == room:
                    return -1
                begin = labels.free[label, here]
                for r in range(piece.reads_at[op], piece.reads_at[op + 1]):
                    tensor = piece.reads[r]
                    source = labels.where[label, tensor, 1]
                    exists = 0.0 if piece.producer[tensor] < 0 else labels.finish[label, piece.producer[tensor]]
                    if piece.most_lag > 0.0 and source != here:
                        exists += piece.lag[source]
                    begin = max(begin, exists)
                now = begin
                launched = False
                for tensor in range(tensors):
                    children.where[count, tensor, 0] = labels.where[label, tensor, 0]
                    children.where[count, tensor, 1] = labels.where[label, tensor, 1]
                after = labels.done[label] | (1 << op)
                for r in range(piece.reads_at[op], piece.reads_at[op + 1]):
                    tensor = piece.reads[r]
                    if not children.where[count, tensor, 0] >> here & 1:
                        launched = True
                        if not children.where[count, tensor, 0] & piece.mates[here]:
                            source = children.where[count, tensor, 1]
                            now += piece.cost[tensor, piece.place[source], piece.place[here]]
                        children.where[count, tensor, 0] |= 1 << here
                    if not piece.readers[tensor] & ~after:
                        children.where[count, tensor, 0] = 0
                        children.where[count, tensor, 1] = 0
                    elif children.where[count, tensor, 0] == everywhere and piece.most_lag == 0.0:
                        children.where[count, tensor, 1] = NO_MATTER
                if launched:
                    now += piece.launch[here]
                now += piece.latency[op, here]
                top = max(labels.peak[label], now + piece.export_us[op, here])
                if max(top, now + piece.tail_us[op]) >= limit:
                    continue
                for tensor in range(tensors):
                    if piece.producer[tensor] == op:
                        children.where[count, tensor, 0] = 1 << here
                        children.where[count, tensor, 1] = here
                earliest = np.inf
                for p in range(host):
                    children.free[count, p] = max(begin, labels.free[label, p])
                    if piece.rivals[here, p]:
                        children.free[count, p] = max(children.free[count, p], now)
                    earliest = min(earliest, children.free[count, p])
                low = top
                for other in range(m):
                    value = now if other == op else labels.finish[label, other]
                    children.finish[count, other] = 0.0
                    if after >> other & 1:
                        low = max(low, value + piece.tail_us[other]) if value > earliest else low
                        if value + piece.most_lag > earliest:
                            for later in range(m):
                                if piece.before[later] >> other & 1 and not after >> later & 1:
                                    children.finish[count, other] = value
                                    break
                    else:
                        fastest = np.inf
                        for p in range(host):
                            fastest = min(fastest, children.free[count, p] + piece.latency[other, p])
                        low = max(low, fastest + piece.tail_us[other])
                for w in range(len(piece.weights)):
                    total = 0.0
                    if piece.independent:
                        for p in range(host):
                            total += piece.weights[w, p] * children.free[count, p]
                    else:
                        total = earliest
                    for other in range(m):
                        if not after >> other & 1:
                            total += piece.work[w, other]
                    low = max(low, total)
                if low >= limit:
                    continue
                children.parent[count] = label
                children.op[count] = op
                children.processor[count] = here
                children.done[count] = after
                children.latest[count] = begin
                children.peak[count] = top
                children.bound[count] = low
                count += 1
    return count


@kernel
def undominated(order: IntArray, labels: Labels) -> int:
    """Of labels listed by ops done, then by bound: those that no kept one with the same ops done dominates.

    They stand first in ``order`` afterwards; returns how many there are.
    """
    count = first = 0
    before = np.int64(-1)
    for position in range(len(order)):
        label = order[position]
        if labels.done[label] != before:
            before = labels.done[label]
            first = count
        dominated = False
        for r in range(first, count):
            rival = order[r]
            if labels.peak[rival] > labels.peak[label] or labels.latest[rival] > labels.latest[label]:
                continue
            worse = False
            for p in range(labels.free.shape[1]):
                if labels.free[rival, p] > labels.free[label, p]:
                    worse = True
                    break
            if worse:
                continue
            for tensor in range(labels.where.shape[1]):
                here, there = labels.where[rival, tensor, 0], labels.where[label, tensor, 0]
                if here & there != there or (
                    labels.where[rival, tensor, 1] != labels.where[label, tensor, 1]
                    and labels.where[rival, tensor, 1] != NO_MATTER
                ):
                    worse = True
                    break
            if worse:
                continue
            for op in range(labels.finish.shape[1]):
                if labels.finish[rival, op] > labels.finish[label, op]:
                    worse = True
                    break
            if not worse:
                dominated = True
                break
        if not dominated:
            order[count] = label
            count += 1
    return count
