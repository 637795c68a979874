"""The simulator: placement and order in, times out. The single judge by which every method is scored.

Decoding is semi-active: ops are taken in sequence order, and each starts as early as its processor, the
processors it shares a resource with, and its inputs allow.

``blocking`` (HOPE eq. 1, with the tensor cache of section 4.3): an op begins when its processor is free and all
its inputs exist; it then fetches, one after the other and on its own time, every input that is not yet on its
processor, always from where the input was produced, and computes. What it fetched stays on its processor.

``overlap``: each ordered pair of places (processors and host) has one first-in-first-out channel. A tensor is
put into the channel to every place that reads it, once, as soon as it exists (ties: lower tensor index first);
an op begins when its processor is free and all its inputs have arrived. Where a move costs nothing there is
nothing to queue for: the tensor is there at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner_api.planning.problem import Lists, Problem


class Move(NamedTuple):
    """One transfer: tensor index, source and target place (``Problem.host`` for the host), interval in microseconds."""

    tensor: int
    source: int
    target: int
    start_us: float
    finish_us: float


@dataclass(frozen=True)
class Schedule:
    """What runs where and when. Times in microseconds; lists are indexed by op.

    In ``blocking`` mode an op's interval includes the transfers it pays for. ``transfers`` stand in the order
    in which they are issued and include those that cost nothing.
    """

    assignment: tuple[int, ...]
    sequence: tuple[int, ...]
    start_us: tuple[float, ...]
    finish_us: tuple[float, ...]
    makespan_us: float
    transfers: tuple[Move, ...]


def simulate(problem: Problem, assignment: Sequence[int], sequence: Sequence[int]) -> Schedule:
    """Time a placement and an order.

    Args:
        problem: the problem.
        assignment: processor of each op.
        sequence: a permutation of the ops that is a topological order; ops that conflict run in its order.

    Returns:
        The schedule; its makespan is ``inf`` when an op sits where it is not supported or a tensor cannot get
        where it is read.

    Raises:
        ValueError: the sequence puts an op before one that it reads from, or leaves one out.
    """
    assignment, sequence = [int(p) for p in assignment], [int(op) for op in sequence]
    if len(assignment) != len(problem.ops) or sorted(sequence) != list(range(len(problem.ops))):
        raise ValueError("assignment and sequence must cover every op exactly once")
    lists = problem.lists
    placed = [False] * len(sequence)
    for op in sequence:
        for earlier in lists.before[op]:
            if not placed[earlier]:
                raise ValueError(f"op '{problem.ops[op]}' stands before '{problem.ops[earlier]}', which it reads from")
        placed[op] = True
    decode = _blocking if problem.mode == "blocking" else _overlap
    return decode(problem, lists, assignment, sequence)


def _blocking(problem: Problem, lists: Lists, assignment: list[int], sequence: list[int]) -> Schedule:
    host = problem.host
    n = len(assignment)
    before, reads, transfer, latency = lists.before, lists.reads, lists.transfer, lists.latency
    start, finish = [0.0] * n, [0.0] * n
    free = [0.0] * host
    # Where each tensor comes from, and which processors have it: bit sets.
    origin = [assignment[producer] if producer >= 0 else host for producer in lists.producer]
    holders = [1 << source for source in origin]
    moves: list[Move] = []
    for op in sequence:
        processor = assignment[op]
        here = 1 << processor
        begin = free[processor]
        for earlier in before[op]:
            if finish[earlier] > begin:
                begin = finish[earlier]
        now = begin
        for tensor in reads[op]:
            if not holders[tensor] & here:
                holders[tensor] |= here
                source = origin[tensor]
                arrived = now + transfer[tensor][source][processor]
                moves.append(Move(tensor, source, processor, now, arrived))
                now = arrived
        now += latency[op][processor]
        start[op], finish[op] = begin, now
        for rival in lists.rivals[processor]:
            if now > free[rival]:
                free[rival] = now
    makespan = max(finish)
    for tensor in lists.outputs:
        producer = lists.producer[tensor]
        if producer >= 0:
            source = assignment[producer]
            arrived = finish[producer] + lists.transfer[tensor][source][host]
            moves.append(Move(tensor, source, host, finish[producer], arrived))
            makespan = max(makespan, arrived)
    return Schedule(tuple(assignment), tuple(sequence), tuple(start), tuple(finish), makespan, tuple(moves))


def _overlap(problem: Problem, lists: Lists, assignment: list[int], sequence: list[int]) -> Schedule:
    host = problem.host
    n = len(assignment)
    start, finish = [0.0] * n, [0.0] * n
    free = [0.0] * host
    channel = [[0.0] * (host + 1) for _ in range(host + 1)]
    arrival: dict[tuple[int, int], float] = {}
    moves: list[Move] = []

    def send(tensor: int, source: int, exists: float) -> None:
        targets = {assignment[reader] for reader in lists.readers[tensor]}
        if problem.is_output[tensor]:
            targets.add(host)
        targets.discard(source)
        for target in sorted(targets):
            cost = lists.transfer[tensor][source][target]
            begin = exists
            if cost > 0:
                begin = max(exists, channel[source][target])
                channel[source][target] = begin + cost
            arrival[tensor, target] = begin + cost
            moves.append(Move(tensor, source, target, begin, begin + cost))

    for tensor, producer in enumerate(lists.producer):
        if producer < 0:
            send(tensor, host, 0.0)
    # Requests on one channel come from one processor, whose ops finish in sequence order: first in, first out.
    for op in sequence:
        processor = assignment[op]
        begin = free[processor]
        for tensor in lists.reads[op]:
            producer = lists.producer[tensor]
            if (assignment[producer] if producer >= 0 else host) == processor:
                there = finish[producer]
            else:
                there = arrival[tensor, processor]
            if there > begin:
                begin = there
        now = begin + lists.latency[op][processor]
        start[op], finish[op] = begin, now
        for rival in lists.rivals[processor]:
            if now > free[rival]:
                free[rival] = now
        for tensor in lists.writes[op]:
            send(tensor, processor, now)
    makespan = max([*finish, *arrival.values()])
    return Schedule(tuple(assignment), tuple(sequence), tuple(start), tuple(finish), makespan, tuple(moves))
