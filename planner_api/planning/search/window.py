"""A stretch of a schedule as a small problem of its own, with exact ends on both sides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner_api.planning.judge.evaluator import Arrays
from planner_api.planning.kernel import kernel
from planner_api.planning.problem import BoolArray, FloatArray, IntArray


class Window(NamedTuple):
    """A stretch of a schedule cut out into arrays small enough for the fastest cache.

    It holds the ops of the window and those after it up to the last whose transfers a change of the window can alter,
    numbered by position. What lies before is frozen in ``free``, ``peak`` and ``ready``; what lies after, in
    ``upcoming``, ``beyond`` and ``bypass``, the longest paths to the end of the schedule.

    Attributes:
        latency, rivals, export_us, tail_us: as in `Arrays`.
        ready: (c,) latest finish of an op's predecessors before the window.
        beyond: (c,) longest path through its successors past the last op.
        before_at, before, after_at, after: predecessors and successors inside.
        reads_at, reads: tensors by local number.
        producer: (t,) op inside, or -1.
        source: (t,) place of the tensors made outside.
        cost: (t, P + 1, P + 1).
        payer: (t, P) position that pays for the tensor; -1 before the window, c for nobody.
        reach_move, reach_flip: (w,) one past the last position whose transfers a moved or flipped op can alter.
        saving: (w,) how much of the transfers paid past the window concern the op.
        free: (P,) when each processor becomes free for the window.
        peak: latest finish plus export before it.
        upcoming: (P,) longest path through the next op on each processor past the last op.
        bypass: longest path that jumps from before the window past the last op.
    """

    latency: FloatArray
    rivals: BoolArray
    export_us: FloatArray
    tail_us: FloatArray
    ready: FloatArray
    beyond: FloatArray
    before_at: IntArray
    before: IntArray
    after_at: IntArray
    after: IntArray
    reads_at: IntArray
    reads: IntArray
    producer: IntArray
    source: IntArray
    cost: FloatArray
    payer: IntArray
    reach_move: IntArray
    reach_flip: IntArray
    saving: FloatArray
    free: FloatArray
    peak: float
    upcoming: FloatArray
    bypass: float


@kernel
def cut_out(
    a: Arrays,
    assignment: IntArray,
    sequence: IntArray,
    place: IntArray,
    finish: FloatArray,
    payer: IntArray,
    low: int,
    high: int,
) -> Window:
    """Cut out the window and what a change of it can alter; see `Window`."""
    n, host = a.latency.shape
    tensors = len(a.producer)
    last_reader = np.full(tensors, -1, dtype=np.int64)
    for tensor in range(tensors):
        for k in range(a.readers_at[tensor], a.readers_at[tensor + 1]):
            last_reader[tensor] = max(last_reader[tensor], place[a.readers[k]])
    end = high
    for position in range(low, high):
        op = sequence[position]
        for k in range(a.reads_at[op], a.reads_at[op + 1]):
            end = max(end, last_reader[a.reads[k]] + 1)
        for k in range(a.writes_at[op], a.writes_at[op + 1]):
            end = max(end, last_reader[a.writes[k]] + 1)

    # From the end of the schedule back to the window's: durations and longest paths as they are.
    through = np.zeros(n)
    upcoming = np.zeros(host)
    bypass = -np.inf
    for position in range(n - 1, end - 1, -1):
        op = sequence[position]
        here = assignment[op]
        tail = a.export_us[op, here]
        for k in range(a.after_at[op], a.after_at[op + 1]):
            tail = max(tail, through[a.after[k]])
        for rival in range(host):
            if a.rivals[here, rival]:
                tail = max(tail, upcoming[rival])
        spent = 0.0
        for k in range(a.reads_at[op], a.reads_at[op + 1]):
            tensor = a.reads[k]
            source = assignment[a.producer[tensor]] if a.producer[tensor] >= 0 else host
            if source != here and payer[tensor, here] == position:
                spent += a.cost[tensor, source, here]
        through[op] = spent + a.latency[op, here] + tail
        upcoming[here] = through[op]
        for k in range(a.before_at[op], a.before_at[op + 1]):
            if place[a.before[k]] < low:
                bypass = max(bypass, finish[a.before[k]] + through[op])

    # From the beginning to the window: what is free when, and how long the schedule is already.
    free = np.zeros(host)
    peak = 0.0
    for position in range(low):
        op = sequence[position]
        here = assignment[op]
        for rival in range(host):
            if a.rivals[here, rival]:
                free[rival] = max(free[rival], finish[op])
        peak = max(peak, finish[op] + a.export_us[op, here])

    count = end - low
    latency = np.empty((count, host))
    export = np.empty((count, host))
    tail_us = np.empty(count)
    ready = np.zeros(count)
    beyond = np.full(count, -np.inf)
    before_at = np.zeros(count + 1, dtype=np.int64)
    after_at = np.zeros(count + 1, dtype=np.int64)
    reads_at = np.zeros(count + 1, dtype=np.int64)
    edges, reads_count = 0, 0
    for local in range(count):
        op = sequence[low + local]
        edges += a.before_at[op + 1] - a.before_at[op] + a.after_at[op + 1] - a.after_at[op]
        reads_count += a.reads_at[op + 1] - a.reads_at[op]
    before = np.empty(edges, dtype=np.int64)
    after = np.empty(edges, dtype=np.int64)
    reads = np.empty(reads_count, dtype=np.int64)
    own = np.full(tensors, -1, dtype=np.int64)
    known = 0
    last = 0
    for local in range(count):
        op = sequence[low + local]
        tail_us[local] = a.tail_us[op]
        for p in range(host):
            latency[local, p] = a.latency[op, p]
            export[local, p] = a.export_us[op, p]
        last = before_at[local]
        for k in range(a.before_at[op], a.before_at[op + 1]):
            earlier = a.before[k]
            if place[earlier] < low:
                ready[local] = max(ready[local], finish[earlier])
            else:
                before[last] = place[earlier] - low
                last += 1
        before_at[local + 1] = last
        last = after_at[local]
        for k in range(a.after_at[op], a.after_at[op + 1]):
            later = a.after[k]
            if place[later] >= end:
                beyond[local] = max(beyond[local], through[later])
            else:
                after[last] = place[later] - low
                last += 1
        after_at[local + 1] = last
        last = reads_at[local]
        for k in range(a.reads_at[op], a.reads_at[op + 1]):
            tensor = a.reads[k]
            if own[tensor] < 0:
                own[tensor] = known
                known += 1
            reads[last] = own[tensor]
            last += 1
        reads_at[local + 1] = last
    producer = np.full(known, -1, dtype=np.int64)
    source = np.zeros(known, dtype=np.int64)
    cost = np.empty((known, host + 1, host + 1))
    paid = np.empty((known, host), dtype=np.int64)
    last_use = np.empty(known, dtype=np.int64)
    for tensor in range(tensors):
        local = own[tensor]
        if local >= 0:
            maker = a.producer[tensor]
            if maker >= 0 and place[maker] >= low:
                producer[local] = place[maker] - low
            source[local] = assignment[maker] if maker >= 0 else host
            for p in range(host + 1):
                for q in range(host + 1):
                    cost[local, p, q] = a.cost[tensor, p, q]
            for p in range(host):
                at = payer[tensor, p] - low
                paid[local, p] = -1 if at < 0 else min(at, count)
            last_use[local] = last_reader[tensor] - low
    reach_move = np.full(high - low, high - low, dtype=np.int64)
    reach_flip = np.full(high - low, high - low, dtype=np.int64)
    saving = np.zeros(high - low)
    for local in range(high - low):
        op = sequence[low + local]
        for k in range(reads_at[local], reads_at[local + 1]):
            tensor = reads[k]
            reach_move[local] = max(reach_move[local], last_use[tensor] + 1)
            for p in range(host):
                if high - low <= paid[tensor, p] < count:
                    saving[local] += cost[tensor, source[tensor], p]
        reach_flip[local] = reach_move[local]
        for k in range(a.writes_at[op], a.writes_at[op + 1]):
            tensor = own[a.writes[k]]
            if tensor >= 0:
                reach_flip[local] = max(reach_flip[local], last_use[tensor] + 1)
                for p in range(host):
                    if high - low <= paid[tensor, p] < count:
                        saving[local] += cost[tensor, source[tensor], p]
    return Window(
        latency, a.rivals, export, tail_us, ready, beyond, before_at, before, after_at, after, reads_at, reads,
        producer, source, cost, paid, reach_move, reach_flip, saving, free, peak, upcoming, bypass,
    )  # fmt: skip
