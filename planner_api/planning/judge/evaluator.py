"""The simulator's arithmetic as machine code: the same numbers, bit for bit, some fifty times faster.

One kernel times any stretch of a sequence: a whole schedule (`evaluate`), or what one move of the annealing changes
(`search.annealing`). All kernels share two tuples: the problem (`Arrays`), which nobody changes, and the state of one
schedule with its scratch space (`State`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner_api.planning.judge.simulator import FULL, line_length
from planner_api.planning.kernel import inlined_kernel, kernel
from planner_api.planning.problem import BoolArray, FloatArray, IntArray, Problem

MOVES, TAKES, REACHED, RETIMED = 0, 1, 2, 3
"""What `State.counts` counts."""


class Arrays(NamedTuple):
    """A problem as flat arrays. ``x_at[i]:x_at[i + 1]`` is the slice of ``x`` that belongs to ``i``.

    Attributes:
        latency, share: (n, P), see `Problem`.
        rivals: (P, P) True where two processors share a resource.
        uses: the resources of each processor.
        near: the resources of each processor's memory; empty where neighbours slow nothing.
        place, launch, lag, slow: (P,) see `Machine`; ``slow`` is slowdown - 1.
        producer: (T,) op or -1.
        cost: (T, L, L) microseconds.
        busy: (L, L) queue or -1.
        host: its index among the places.
        release, due: (n,) microseconds. The search may shift ``due``.
        export: (n, P) longest way to the host of an output written by the op there that no queue carries.
        tail: (n,) a lower bound on the time from the op's finish to the end of any schedule, less what is due.
        length: ops that fill a resource.
        queued: True where an output may need a queue.
        launches: True where newly taking in a tensor costs anything.
        waits: True where an op may have to wait for what another one fetches.
    """

    latency: FloatArray
    share: FloatArray
    rivals: BoolArray
    uses_at: IntArray
    uses: IntArray
    near_at: IntArray
    near: IntArray
    place: IntArray
    launch: FloatArray
    lag: FloatArray
    slow: FloatArray
    producer: IntArray
    cost: FloatArray
    busy: IntArray
    host: int
    length: int
    release: FloatArray
    due: FloatArray
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
    export: FloatArray
    tail: FloatArray
    queued: bool
    launches: bool
    waits: bool


class State(NamedTuple):
    """A schedule, what is known of it before each position, and scratch space for one trial.

    Attributes:
        assignment, sequence, position: (n,) placement; ops by position; positions by op.
        start, finish, spent, done: (n,) microseconds; ``spent`` is finish - start, ``done`` counts the way of outputs.
        payer: (T, L) position whose op moves the tensor there; n: nobody.
        taker: (T, P) position of the first op there to take in a tensor made elsewhere; n: nobody.
        there: (T, L) when it arrived.
        ends_at, held_at: (n + 1, R * W) ends and shares that each resource counts before a position, latest first;
            where every op takes its resources whole (W = 1) nobody looks at shares.
        queue_at: (n + 1, Q) when each queue is done.
        peak_at: (n + 1,) largest ``done - due`` so far.
        other fields: scratch; ``moved`` and ``took`` hold the number of the trial in which a tensor was moved or taken.
    """

    assignment: IntArray
    sequence: IntArray
    position: IntArray
    start: FloatArray
    finish: FloatArray
    spent: FloatArray
    done: FloatArray
    payer: IntArray
    taker: IntArray
    there: FloatArray
    ends_at: FloatArray
    held_at: FloatArray
    queue_at: FloatArray
    peak_at: FloatArray
    ends: FloatArray
    held: FloatArray
    queue: FloatArray
    new_ends: FloatArray
    new_held: FloatArray
    new_queue: FloatArray
    new_peak: FloatArray
    old_finish: FloatArray
    new_spent: FloatArray
    moved: IntArray
    took: IntArray
    arrival: FloatArray
    move_log: IntArray
    take_log: IntArray
    counts: IntArray


def arrays(problem: Problem) -> Arrays:
    """Flatten a problem for the kernels."""
    lists, machine = problem.lists, problem.machine
    n, p = problem.latency_us.shape
    export = np.zeros((n, p))
    for tensor in lists.outputs:
        if lists.producer[tensor] >= 0:
            row = export[lists.producer[tensor]]
            ways = np.where(machine.busy[machine.place, machine.host] < 0, 1.0, 0.0)
            with np.errstate(invalid="ignore"):
                costs = np.where(ways > 0, problem.transfer_us[tensor, machine.place, machine.host], 0.0)
            np.maximum(row, costs, out=row)
    slow = machine.slowdown - 1.0
    return Arrays(
        latency=np.ascontiguousarray(problem.latency_us),
        share=np.ascontiguousarray(problem.shares),
        rivals=np.ascontiguousarray(problem.conflicts),
        place=np.ascontiguousarray(machine.place),
        launch=np.ascontiguousarray(machine.launch_us),
        lag=machine.lag_us,
        slow=slow,
        producer=np.ascontiguousarray(problem.producer),
        cost=np.ascontiguousarray(problem.transfer_us),
        busy=np.ascontiguousarray(machine.busy),
        host=machine.host,
        length=line_length(problem),
        release=np.ascontiguousarray(problem.release_us),
        due=problem.due_us.copy(),
        is_output=np.ascontiguousarray(problem.is_output),
        **_flattened(
            uses=[np.flatnonzero(row).tolist() for row in machine.uses],
            near=[np.flatnonzero(row).tolist() for row in machine.near],
            reads=lists.reads,
            writes=lists.writes,
            readers=lists.readers,
            before=lists.before,
            after=lists.after,
        ),
        export=export,
        tail=tails(problem, export, problem.due_us),
        queued=bool((machine.busy >= 0).any()),
        launches=bool(machine.launch_us.any()),
        waits=problem.share is not None or bool(machine.queues) or len(set(machine.place.tolist())) < p,
    )


def _flattened(**nested: Sequence[Sequence[int]]) -> dict[str, IntArray]:
    """Of each ``x`` the fields ``x`` and ``x_at`` of ``Arrays``."""
    flat: dict[str, IntArray] = {}
    for name, rows in nested.items():
        flat[f"{name}_at"] = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        flat[name] = np.fromiter((item for row in rows for item in row), dtype=np.int64)
    return flat


def tails(problem: Problem, export: FloatArray, due: FloatArray) -> FloatArray:
    """(n,) the shortest that can follow each op's finish, less what is due."""
    lists = problem.lists
    fastest = problem.latency_us.min(axis=1).tolist()
    tail = (export.min(axis=1) - due).tolist()
    for op in reversed(lists.order):
        tail[op] = max([tail[op], *(fastest[after] + tail[after] for after in lists.after[op])])
    return np.array(tail)


def state(problem: Problem, assignment: Sequence[int], sequence: Sequence[int]) -> State:
    """Room for a schedule of the problem, not timed yet."""
    n, p = problem.latency_us.shape
    t, places = len(problem.tensors), len(problem.machine.places)
    resources, length, queues = problem.machine.uses.shape[1], line_length(problem), len(problem.machine.queues)
    reads = sum(len(tensors) for tensors in problem.reads) + t
    position = np.empty(n, dtype=np.int64)
    position[list(sequence)] = np.arange(n)
    zeros, lines = np.zeros, (n + 1, resources * length)
    return State(
        assignment=np.array(assignment, dtype=np.int64),
        sequence=np.array(sequence, dtype=np.int64),
        position=position,
        start=zeros(n),
        finish=zeros(n),
        spent=zeros(n),
        done=zeros(n),
        payer=np.full((t, places), n, dtype=np.int64),
        taker=np.full((t, p), n, dtype=np.int64),
        there=zeros((t, places)),
        ends_at=zeros(lines),
        held_at=zeros(lines),
        queue_at=zeros((n + 1, queues)),
        peak_at=np.full(n + 1, -np.inf),
        ends=zeros(lines[1]),
        held=zeros(lines[1]),
        queue=zeros(queues),
        new_ends=zeros(lines),
        new_held=zeros(lines),
        new_queue=zeros((n + 1, queues)),
        new_peak=zeros(n + 1),
        old_finish=zeros(n),
        new_spent=zeros(n),
        moved=zeros((t, places), dtype=np.int64),
        took=zeros((t, p), dtype=np.int64),
        arrival=zeros((t, places)),
        move_log=zeros((reads, 3), dtype=np.int64),
        take_log=zeros((reads, 3), dtype=np.int64),
        counts=zeros(4, dtype=np.int64),
    )


@inlined_kernel
def fits(ends: FloatArray, held: FloatArray, first: int, last: int, share: float) -> float:
    """From when on a resource, whose entries stand from ``first`` to ``last``, has room for one more share."""
    taken = 0.0
    for k in range(first, last):
        other = held[k]
        if other == 0.0:
            return 0.0
        if taken + other + share > FULL:
            return float(ends[k])
        taken += other
    return 0.0


@inlined_kernel
def count_in(ends: FloatArray, held: FloatArray, first: int, last: int, end: float, share: float) -> None:
    """Let a resource, whose entries stand from ``first`` to ``last``, count one more op."""
    at = first
    while at < last and held[at] > 0.0 and ends[at] >= end:
        at += 1
    for k in range(last - 1, at, -1):
        ends[k] = ends[k - 1]
        held[k] = held[k - 1]
    if at < last:
        ends[at] = end
        held[at] = share


@inlined_kernel
def accept(a: Arrays, s: State, first: int, until: int, high: int) -> None:
    """Make the last trial the schedule."""
    n = len(s.sequence)
    for at in range(first, until):
        op = s.sequence[at]
        s.spent[op] = s.new_spent[at]
        for r in range(a.reads_at[op], a.reads_at[op + 1]):
            tensor = a.reads[r]
            for place in range(s.payer.shape[1]):
                if first <= s.payer[tensor, place] < until:
                    s.payer[tensor, place] = n
            if a.launches:
                for p in range(s.taker.shape[1]):
                    if first <= s.taker[tensor, p] < until:
                        s.taker[tensor, p] = n
    for k in range(s.counts[MOVES]):
        s.payer[s.move_log[k, 0], s.move_log[k, 1]] = s.move_log[k, 2]
        s.there[s.move_log[k, 0], s.move_log[k, 1]] = s.arrival[s.move_log[k, 0], s.move_log[k, 1]]
    for k in range(s.counts[TAKES]):
        s.taker[s.take_log[k, 0], s.take_log[k, 1]] = s.take_log[k, 2]
    for at in range(first, min(until, high) + 1):
        for k in range(len(s.ends)):
            s.ends_at[at, k] = s.new_ends[at, k]
        for k in range(len(s.ends) if a.length > 1 else 0):
            s.held_at[at, k] = s.new_held[at, k]
        for q in range(len(s.queue)):
            s.queue_at[at, q] = s.new_queue[at, q]
        s.peak_at[at] = s.new_peak[at]


@kernel
def trial(a: Arrays, s: State, first: int, start: int, until: int, high: int, limit: float, number: int) -> float:
    """Time positions ``start`` to ``until``: a new trial from ``first`` on, or the rest of one that got to ``start``.

    What is found stands in the scratch space (and the ops' finish) until `accept` or `reject`. Where nothing limits it,
    the trial is accepted at once, and the ops' start and done are written too.

    Args:
        a: the problem.
        s: the schedule.
        first: first position of the trial.
        start: first position to time; more than ``first`` continues the same trial.
        until: one past the last.
        high: up to this position the state before each position is noted.
        limit: stop when the end must lie beyond it.
        number: of the trial; larger than that of any before.

    Returns:
        The largest ``done - due`` up to ``until``, ``inf`` when it stopped.
    """
    slots, length = len(s.ends), a.length
    if start == first:
        for k in range(slots):
            s.ends[k] = s.ends_at[first, k]
        for k in range(slots if length > 1 else 0):
            s.held[k] = s.held_at[first, k]
        for q in range(len(s.queue)):
            s.queue[q] = s.queue_at[first, q]
        s.new_peak[first] = s.peak_at[first]
        for c in range(len(s.counts)):
            s.counts[c] = 0
        s.counts[REACHED] = first
    peak = s.new_peak[start]
    moves, takes = s.counts[MOVES], s.counts[TAKES]
    for at in range(start, until):
        if at <= high:
            for k in range(slots):
                s.new_ends[at, k] = s.ends[k]
            for k in range(slots if length > 1 else 0):
                s.new_held[at, k] = s.held[k]
            for q in range(len(s.queue)):
                s.new_queue[at, q] = s.queue[q]
            s.new_peak[at] = peak
        op = s.sequence[at]
        here = s.assignment[op]
        target = a.place[here]
        begin = 0.0
        launched = False
        fetched = moves
        for r in range(a.reads_at[op], a.reads_at[op + 1]):
            tensor = a.reads[r]
            maker = a.producer[tensor]
            source = a.host
            if maker >= 0:
                home = s.assignment[maker]
                if home == here:
                    begin = max(begin, s.finish[maker])
                    continue
                exists = s.finish[maker] + a.lag[home]
                source = a.place[home]
            else:
                exists = a.release[op]
            begin = max(begin, exists)
            if a.launches and s.taker[tensor, here] >= first and s.took[tensor, here] != number:
                s.took[tensor, here] = number
                s.take_log[takes, 0] = tensor
                s.take_log[takes, 1] = here
                s.take_log[takes, 2] = at
                takes += 1
                launched = True
            if source == target:
                continue
            if s.payer[tensor, target] < first:
                if a.waits:
                    begin = max(begin, s.there[tensor, target])
                continue
            if s.moved[tensor, target] == number:
                if a.waits:
                    begin = max(begin, s.arrival[tensor, target])
                continue
            s.moved[tensor, target] = number
            s.move_log[moves, 0] = tensor
            s.move_log[moves, 1] = target
            s.move_log[moves, 2] = at
            cost = a.cost[tensor, source, target]
            q = a.busy[source, target]
            if q >= 0:
                s.queue[q] = max(exists, s.queue[q]) + cost
                s.arrival[tensor, target] = s.queue[q]
                begin = max(begin, s.queue[q])
                # What the op fetches itself stays behind, in its order.
                for m in range(moves, fetched, -1):
                    s.move_log[m, 0] = s.move_log[m - 1, 0]
                s.move_log[fetched, 0] = tensor
                fetched += 1
            moves += 1
        share = a.share[op, here]
        for u in range(a.uses_at[here], a.uses_at[here + 1]):
            if length == 1:
                begin = max(begin, s.ends[a.uses[u]])
            else:
                begin = max(begin, fits(s.ends, s.held, a.uses[u] * length, (a.uses[u] + 1) * length, share))
        now = begin
        for m in range(fetched, moves):
            tensor = s.move_log[m, 0]
            source = a.host
            if a.producer[tensor] >= 0:
                source = a.place[s.assignment[a.producer[tensor]]]
            now += a.cost[tensor, source, target]
            s.arrival[tensor, target] = now
        if launched:
            now += a.launch[here]
        if a.slow[here] > 0.0:
            taken = 0.0
            for u in range(a.near_at[here], a.near_at[here + 1]):
                busy = 0.0
                for k in range(a.near[u] * length, (a.near[u] + 1) * length):
                    if s.ends[k] <= begin:
                        break
                    busy += 1.0 if length == 1 else s.held[k]
                taken += min(busy, 1.0)
            room = (a.near_at[here + 1] - a.near_at[here]) - share * (a.uses_at[here + 1] - a.uses_at[here])
            pressure = min(taken / room, 1.0) if room > 1e-9 else 0.0
            now += a.latency[op, here] * (1.0 + a.slow[here] * pressure)
        else:
            now += a.latency[op, here]
        s.old_finish[at] = s.finish[op]
        s.new_spent[at] = now - begin
        s.finish[op] = now
        done = now + a.export[op, here]
        if a.queued and target != a.host and a.busy[target, a.host] >= 0:
            q = a.busy[target, a.host]
            for w in range(a.writes_at[op], a.writes_at[op + 1]):
                tensor = a.writes[w]
                if a.is_output[tensor]:
                    s.queue[q] = max(now, s.queue[q]) + a.cost[tensor, target, a.host]
                    done = max(done, s.queue[q])
                    s.moved[tensor, a.host] = number
                    s.arrival[tensor, a.host] = s.queue[q]
                    s.move_log[moves, 0] = tensor
                    s.move_log[moves, 1] = a.host
                    s.move_log[moves, 2] = at
                    moves += 1
        s.counts[REACHED] = at + 1
        if now + a.tail[op] > limit:
            return np.inf
        for u in range(a.uses_at[here], a.uses_at[here + 1]):
            if length == 1:
                s.ends[a.uses[u]] = max(s.ends[a.uses[u]], now)
            else:
                count_in(s.ends, s.held, a.uses[u] * length, (a.uses[u] + 1) * length, now, share)
        peak = max(peak, done - a.due[op])
        if limit == np.inf:
            s.start[op] = begin
            s.done[op] = done
        if at >= high and s.new_spent[at] != s.spent[op]:
            s.counts[RETIMED] = 1
    if until <= high:
        for k in range(slots):
            s.new_ends[until, k] = s.ends[k]
            s.new_held[until, k] = s.held[k]
        for q in range(len(s.queue)):
            s.new_queue[until, q] = s.queue[q]
        s.new_peak[until] = peak
    s.counts[MOVES] = moves
    s.counts[TAKES] = takes
    if limit == np.inf:
        accept(a, s, first, until, high)
    return float(peak)


@inlined_kernel
def reject(s: State, first: int) -> None:
    """Forget the last trial; the placement and the order must still be those that were tried."""
    for at in range(first, s.counts[REACHED]):
        s.finish[s.sequence[at]] = s.old_finish[at]


def evaluate(a: Arrays, s: State) -> float:
    """Time a whole schedule; see `simulator` for the rules.

    Args:
        a: the problem.
        s: the schedule; its assignment and sequence are read, everything else is filled.

    Returns:
        The largest ``done - due``: with nothing due the makespan in microseconds.
    """
    n = len(s.sequence)
    s.payer.fill(n)
    s.taker.fill(n)
    s.moved.fill(0)
    s.took.fill(0)
    s.position[s.sequence] = np.arange(n)
    return float(trial(a, s, 0, 0, n, n, np.inf, 1))
