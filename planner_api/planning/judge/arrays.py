"""A problem and the state of one plan as flat arrays, for the kernels.

All kernels share two tuples: the problem (`Arrays`), which nobody changes, and one plan of it with scratch space for
one trial (`State`). How an op is computed is its *mode*: in one part or several, each with its processor. A whole op
has one part; only where a problem knows how its ops may be cut (`judge.ways`) is there room for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner_api.planning.judge.simulator import line_length
from planner_api.planning.judge.ways import FIELDS, HOME, PARTS, Ways, ways_of
from planner_api.planning.problem import BoolArray, FloatArray, IntArray, Problem

DRAWS = 32
"""Random numbers that one move may use."""


class Arrays(NamedTuple):
    """A problem of n ops, T tensors, P processors, L places. ``x_at[i]:x_at[i + 1]`` is the slice of ``x`` of ``i``.

    Attributes:
        latency, share: (n, P), see `Problem`.
        rivals: (P, P) True where two processors share a resource.
        uses: the resources of each processor.
        near: the resources of each processor's memory.
        place, launch, lag, slow: (P,) see `Machine`; ``slow`` is slowdown - 1.
        producer: (T,) op or -1.
        cost: (T, L, L) microseconds.
        busy: (L, L) queue or -1; carried: True where a queue is on the way; hop: see `Machine`.
        host: its index among the places.
        length: ops that fill a resource; slots: resources times ``length``.
        release, due: (n,) microseconds. The search may shift ``due``.
        export: (n, P) longest way to the host of an output written by the op there that no queue carries.
        tail: (n,) the shortest that can follow each op's finish, less what is due.
        queued: True where an output may need a queue.
        launches: True where newly taking in a tensor costs anything.
        waits: True where an op may have to wait for what another one fetches.
        cuttable: True where an op may be cut; ways: how.
        most: K, in so many parts an op can be; width: fields of a mode; columns: see `State`.
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
    carried: BoolArray
    hop: IntArray
    host: int
    length: int
    slots: int
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
    cuttable: bool
    most: int
    width: int
    columns: int
    ways: Ways


class State(NamedTuple):
    """A plan of ops with up to K parts, what is known before each position, and scratch space for one trial.

    What has been moved where is kept by tensor, part and column: a column is a place, or, behind all places and where
    launches cost anything, a processor that has taken the tensor in. Part k of op i has the number ``i * most + k``.

    Attributes:
        mode: (n * K * 7,) see `ways.HOME`; undo, best: what a trial changed, one row a change; the best met.
        sequence, position: (n,) ops by position; positions by op.
        start, done: (n,) when an op begins, and when its outputs are on the host. Where ops are cut ``start`` is no
            sooner than that of anything before it on its resources or that it reads from: in this order everything
            takes as long.
        finish, spent: (n * K,) microseconds; ``spent`` is how long a part takes.
        holder, key, when: (T * K * C,) position of the op that first brings it there (n: nobody); what of it that is;
            when it arrives.
        front_at: (n + 1, 2 R W + Q + 1) before a position: ends and shares that each resource counts, latest first;
            when each queue is done; the largest ``done - due`` so far.
        through: (n * K,) of what lies behind the window: microseconds from its start to the end, less what is due.
        next_at: (n + 1, 2 R W) the same of the parts that follow on each resource from a position on, with their
            shares, longest first.
        bypass_at: (n + 1,) longest path that jumps from before the window to a position or beyond.
        other fields: scratch; ``mark`` holds the number of the trial in which something was brought there.
    """

    mode: IntArray
    undo: IntArray
    best: IntArray
    sequence: IntArray
    position: IntArray
    best_sequence: IntArray
    start: FloatArray
    done: FloatArray
    finish: FloatArray
    spent: FloatArray
    holder: IntArray
    key: IntArray
    when: FloatArray
    mark: IntArray
    new_key: IntArray
    new_when: FloatArray
    log: IntArray
    paid: FloatArray
    front_at: FloatArray
    front: FloatArray
    new_front: FloatArray
    old_finish: FloatArray
    new_spent: FloatArray
    through: FloatArray
    next_at: FloatArray
    bypass_at: FloatArray
    changed: IntArray
    touched: IntArray
    way: IntArray
    turns: FloatArray
    draws: FloatArray
    counts: IntArray

    @property
    def modes(self) -> IntArray:
        """(n, K, 7) ``mode``, by op and part."""
        return self.mode.reshape(len(self.sequence), -1, FIELDS)


def arrays(problem: Problem) -> Arrays:
    """Flatten a problem for the kernels."""
    lists, machine = problem.lists, problem.machine
    n, p = problem.latency_us.shape
    export = np.zeros((n, p))
    for tensor in lists.outputs:
        if lists.producer[tensor] >= 0:
            row = export[lists.producer[tensor]]
            ways = np.where(machine.carried[machine.place, machine.host], 0.0, 1.0)
            with np.errstate(invalid="ignore"):
                costs = np.where(ways > 0, problem.transfer_us[tensor, machine.place, machine.host], 0.0)
            np.maximum(row, costs, out=row)
    length = line_length(problem)
    return Arrays(
        latency=np.ascontiguousarray(problem.latency_us),
        share=np.ascontiguousarray(problem.shares),
        rivals=np.ascontiguousarray(problem.conflicts),
        place=np.ascontiguousarray(machine.place),
        launch=np.ascontiguousarray(machine.launch_us),
        lag=machine.lag_us,
        slow=machine.slowdown - 1.0,
        producer=np.ascontiguousarray(problem.producer),
        cost=np.ascontiguousarray(problem.transfer_us),
        busy=np.ascontiguousarray(machine.busy),
        carried=np.ascontiguousarray(machine.carried),
        hop=np.ascontiguousarray(machine.hops),
        host=machine.host,
        length=length,
        slots=machine.uses.shape[1] * length,
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
        waits=problem.share is not None
        or bool(machine.queues)
        or machine.hop is not None
        or len(set(machine.place.tolist())) < p,
        cuttable=problem.choices is not None and bool(problem.choices.axes),
        most=most_parts(problem),
        width=most_parts(problem) * FIELDS,
        columns=_columns(problem),
        ways=ways_of(problem),
    )


def most_parts(problem: Problem) -> int:
    """In how many parts an op can be."""
    return 1 if problem.choices is None else problem.choices.most_parts


def _columns(problem: Problem) -> int:
    machine = problem.machine
    return len(machine.places) + (len(machine.processors) if machine.launch_us.any() else 0)


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
    fastest = (problem.latency_us.min(axis=1) if problem.choices is None else problem.choices.ideal_us).tolist()
    tail = (export.min(axis=1) - due).tolist()
    for op in reversed(lists.order):
        tail[op] = max([tail[op], *(fastest[after] + tail[after] for after in lists.after[op])])
    return np.array(tail)


def state(problem: Problem, assignment: Sequence[int], sequence: Sequence[int]) -> State:
    """Room for a plan of the problem that begins with whole ops, not timed yet."""
    n, k, machine = len(problem.ops), most_parts(problem), problem.machine
    table = len(problem.tensors) * k * _columns(problem)
    slots, queues = 2 * machine.uses.shape[1] * line_length(problem), len(machine.queues)
    noted = (1 + machine.most_hops) * k * k * sum(len(tensors) for tensors in problem.reads)
    noted += machine.most_hops * len(problem.tensors) * k
    front_at = np.zeros((n + 1, slots + queues + 1))
    front_at[0, -1] = -np.inf
    mode = np.zeros((n, k, FIELDS), dtype=np.int64)
    mode[:, 0, HOME], mode[:, 0, PARTS] = assignment, 1
    position = np.empty(n, dtype=np.int64)
    position[list(sequence)] = np.arange(n)
    ints: type[np.int64] = np.int64
    zeros = np.zeros
    return State(
        mode=mode.reshape(-1),
        undo=mode.reshape(-1).copy(),
        best=mode.reshape(-1).copy(),
        sequence=np.array(sequence, dtype=ints),
        position=position,
        best_sequence=np.array(sequence, dtype=ints),
        start=zeros(n),
        done=zeros(n),
        finish=zeros(n * k),
        spent=zeros(n * k),
        holder=np.full(table, n, dtype=ints),
        key=zeros(table, dtype=ints),
        when=zeros(table),
        mark=zeros(table, dtype=ints),
        new_key=zeros(table, dtype=ints),
        new_when=zeros(table),
        log=zeros((noted, 2), dtype=ints),
        paid=zeros(noted),
        front_at=front_at,
        front=zeros(slots + queues + 1),
        new_front=zeros(front_at.shape),
        old_finish=zeros(n * k),
        new_spent=zeros(n * k),
        through=zeros(n * k),
        next_at=zeros((n + 1, slots)),
        bypass_at=np.full(n + 1, -np.inf),
        changed=zeros(n, dtype=ints),
        touched=zeros(n, dtype=ints),
        way=zeros(machine.most_hops + 1, dtype=ints),
        turns=zeros(machine.uses.shape[1]),
        draws=zeros(DRAWS),
        counts=zeros(3, dtype=ints),
    )
