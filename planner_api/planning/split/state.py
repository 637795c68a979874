"""The state of the search for cuts: each op whole or in parts, each part on a processor, one sequence of ops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner_api.planning.judge.evaluator import Arrays
from planner_api.planning.problem import FloatArray, IntArray
from planner_api.planning.split.ways import Ways

FAR = -1e300
"""Instead of the way to an end that there is not."""


class Modes(NamedTuple):
    """How each of n ops is computed.

    Attributes:
        parts: (n,) in so many; 1: whole.
        axis: (n,) along which axis, from 0 as in `Ways`.
        chained: (n,) 1 where its parts are to read the same parts of what it reads, and nothing else.
        tenth: (n, K + 1) between which tenths.
        home: (n, K) on which processors.
        start, stop: (n, K) what each part computes, with what a chain adds.
    """

    parts: IntArray
    axis: IntArray
    chained: IntArray
    tenth: IntArray
    home: IntArray
    start: IntArray
    stop: IntArray


class Joint(NamedTuple):
    """Modes and order, what is known of them before each position, and scratch space for one trial.

    Attributes:
        modes, undo, best: now; what a trial changed, one row a change; the best of a window.
        sequence, position: (n,) ops by position; positions by op.
        begin, finish: (n, K) microseconds of each part.
        turn: (n,) when an op begins, or what stands before it on its resources or makes what it reads: in this order
            everything takes as long.
        ends_at: (n + 1, R) when each resource is free; peak_at: (n + 1,) largest finish so far.
        payer, key: (T, K, L) position of the op that moves a part of a tensor to a place (n: nobody), and what of it.
        tail: (n, K) longest way from a part's finish through those that read it past the window to the end.
        next: (R,) the same of a resource; parts_then: (n,) of each op, when they were found.
        rest: (n, K) longest way to the end from the finish of a part past the window, by whatever there is.
        paid: (n, K) of a part's time: what it spends on moves.
        other fields: scratch.
    """

    modes: Modes
    undo: Modes
    best: Modes
    sequence: IntArray
    position: IntArray
    begin: FloatArray
    finish: FloatArray
    turn: FloatArray
    ends_at: FloatArray
    peak_at: FloatArray
    payer: IntArray
    key: IntArray
    tail: FloatArray
    next: FloatArray
    parts_then: IntArray
    rest: FloatArray
    paid: FloatArray
    ends: FloatArray
    new_ends: FloatArray
    new_peak: FloatArray
    old_begin: FloatArray
    old_finish: FloatArray
    moved: IntArray
    new_key: IntArray
    log: IntArray
    changed: IntArray
    touched: IntArray
    stack: IntArray
    best_sequence: IntArray
    counts: IntArray


def modes(n: int, parts: int) -> Modes:
    """Room for the modes of n ops, all whole."""
    zeros = np.zeros
    return Modes(
        parts=np.ones(n, dtype=np.int64),
        axis=zeros(n, dtype=np.int64),
        chained=zeros(n, dtype=np.int64),
        tenth=zeros((n, parts + 1), dtype=np.int64),
        home=zeros((n, parts), dtype=np.int64),
        start=zeros((n, parts), dtype=np.int64),
        stop=zeros((n, parts), dtype=np.int64),
    )


def joint(a: Arrays, w: Ways, assignment: IntArray, sequence: IntArray) -> Joint:
    """Room for a plan that begins with whole ops, not timed yet."""
    n, k, t = len(a.tail), w.most_parts, len(a.producer)
    resources, places = int(a.uses.max()) + 1, a.cost.shape[1]
    zeros = np.zeros
    position = np.empty(n, dtype=np.int64)
    position[sequence] = np.arange(n)
    now = modes(n, k)
    now.home[:, 0] = assignment
    return Joint(
        modes=now,
        undo=modes(n, k),
        best=modes(n, k),
        sequence=sequence.copy(),
        position=position,
        begin=zeros((n, k)),
        finish=zeros((n, k)),
        turn=zeros(n),
        ends_at=zeros((n + 1, resources)),
        peak_at=np.full(n + 1, FAR),
        payer=np.full((t, k, places), n, dtype=np.int64),
        key=zeros((t, k, places), dtype=np.int64),
        tail=np.full((n, k), FAR),
        next=zeros(resources),
        parts_then=np.ones(n, dtype=np.int64),
        rest=zeros((n, k)),
        paid=zeros((n, k)),
        ends=zeros(resources),
        new_ends=zeros((n + 1, resources)),
        new_peak=zeros(n + 1),
        old_begin=zeros((n, k)),
        old_finish=zeros((n, k)),
        moved=zeros((t, k, places), dtype=np.int64),
        new_key=zeros((t, k, places), dtype=np.int64),
        log=zeros((t * k * places, 4), dtype=np.int64),
        changed=zeros(n, dtype=np.int64),
        touched=zeros(n, dtype=np.int64),
        stack=zeros(16 * n + 64, dtype=np.int64),
        best_sequence=sequence.copy(),
        counts=zeros(2, dtype=np.int64),
    )
