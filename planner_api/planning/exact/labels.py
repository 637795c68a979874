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

from planner_api.planning.native import library, packed
from planner_api.planning.problem import BoolArray, FloatArray, IntArray

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


class Grower:
    """The kernels on one piece (``native/labels.c``)."""

    def __init__(self, piece: Piece) -> None:
        sizes = *piece.latency.shape, piece.cost.shape[1], len(piece.producer), len(piece.weights)
        self.piece, self._packed = piece, packed(sizes, piece)

    def expand(self, labels: Labels, children: Labels, limit: float) -> int:
        """All children of a level's labels that may still end before ``limit``.

        Args:
            labels: of the level.
            children: filled.
            limit: labels that cannot end before it are dropped.

        Returns:
            How many there are; -1 when there was no room for them.
        """
        levels = (packed((len(level.done),), level).ctypes for level in (labels, children))
        return int(library().hope_expand(self._packed.ctypes, *levels, limit))

    def undominated(self, order: IntArray, labels: Labels) -> IntArray:
        """Of labels listed by ops done, then by bound: those that no kept one with the same ops done dominates."""
        level = packed((len(labels.done),), labels)
        kept = library().hope_undominated(self._packed.ctypes, order.ctypes, len(order), level.ctypes)
        return order[:kept]
