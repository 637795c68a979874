"""The simulator: placement and order in, times out. The single judge by which every method is scored.

Decoding is semi-active: ops are taken in sequence order, and each starts as early as its inputs and the resources of
its processor allow, given what stands before it in the sequence.

1. An op takes its share of every resource of its processor from start to finish. A resource counts, at any time, every
   earlier op of the sequence that ends later; what it counts and the op's own share never add up to more than 1.
2. A tensor moves once to each place where it is read, from where it was produced (graph inputs: from the host), and
   stays there. On a channel without a queue the first reader at that place pays: it starts when all its inputs exist,
   and fetches them one after the other on its own time before it computes (HOPE eq. 1, with the tensor cache of section
   4.3). On a channel with a queue the move begins when the tensor can be taken in and the queue has done what was put
   into it before; moves are put in by their first readers, in sequence order, and an output's by its producer. Who
   reads a tensor that somebody else has fetched to the same place waits for its arrival.
   Between places that no channel joins it moves over several, one after the other, from the last place on its way where
   it stands already, and stays at each place between. The reader pays for what comes behind the last queue on the way;
   a move before that takes its time, and nobody's.
3. A tensor made on another processor can be taken in ``end_us`` after its producer's finish. An op that newly takes in
   such a tensor, or a graph input, pays its processor's launch once, on its own time.
4. An op's latency is multiplied by 1 + (slowdown - 1) * pressure: the part, at its start, of the capacity that its
   memory's resources have beyond its own share, and that earlier ops of the sequence still take.

Graph inputs are on the host at their job's release. Outputs end on the host; where no queue carries them there, their
way takes nobody's time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from planner_api.planning.problem import FloatArray, Problem

FULL = 1.0 + 1e-9
"""What shares may add up to: 1, with room for rounding."""


class Move(NamedTuple):
    """One transfer: tensor, source and target place, interval in microseconds, and the op that pays (-1: nobody)."""

    tensor: int
    source: int
    target: int
    start_us: float
    finish_us: float
    reader: int = -1


@dataclass(frozen=True)
class Schedule:
    """What runs where and when. Times in microseconds; lists are indexed by op.

    An op's interval includes the transfers it pays for. ``transfers`` stand in the order in which they are issued and
    include those that cost nothing; moves of one queue run in that order. ``done_us`` is when each op's outputs are on
    the host, if it has any, else its finish. ``makespan_us`` is when the last job is done, ``value_us`` what is
    minimised: the same, or the maximum lateness.
    """

    assignment: tuple[int, ...]
    sequence: tuple[int, ...]
    start_us: tuple[float, ...]
    finish_us: tuple[float, ...]
    done_us: tuple[float, ...]
    makespan_us: float
    value_us: float
    transfers: tuple[Move, ...]


@dataclass(frozen=True)
class Expected:
    """What a schedule takes in the mean, microseconds: as `Schedule` has it, and when each job is done."""

    makespan_us: float
    value_us: float
    job_us: tuple[float, ...]


Counted = tuple[tuple[float, float], ...]
"""What a resource counts: the ops that end last, by descending end, as (end, share)."""


def fits(counted: Counted, share: float) -> float:
    """From when on a resource has room for one more share."""
    taken = 0.0
    for end, other in counted:
        if taken + other + share > FULL:
            return end
        taken += other
    return 0.0


def taken_at(counted: Counted, at: float) -> float:
    """How much of a resource is taken at a time."""
    taken = 0.0
    for end, share in counted:
        if end <= at:
            break
        taken += share
    return min(taken, 1.0)


def counting(counted: Counted, end: float, share: float, length: int) -> Counted:
    """The same with one more op. Behind so many that nothing fits beside them, none matters any more."""
    place = 0
    while place < len(counted) and counted[place][0] >= end:
        place += 1
    return (*counted[:place], (end, share), *counted[place:])[:length]


class Times(NamedTuple):
    """What placing an op next would mean: where, its interval, its own moves, those sent to it, what it takes in."""

    op: int
    here: int
    start: float
    finish: float
    fetched: list[Move]
    sent: list[Move]
    taken: list[tuple[int, int]]


class Placed(NamedTuple):
    """What stood before an op was placed, and what it brought, to take it back: arrivals, takings."""

    queues: list[float]
    free: list[float]
    lines: list[Counted]
    latest: float
    moves: int
    there: list[tuple[int, int]]
    taken: list[tuple[int, int]]


class Decoder:
    """A schedule that grows op by op, in sequence order: the one answer to "when would it start"."""

    def __init__(self, problem: Problem) -> None:
        machine, lists = problem.machine, problem.lists
        n = len(problem.ops)
        self.problem, self.lists = problem, lists
        self.host, self.busy, self.hops = machine.host, machine.busy.tolist(), machine.hops.tolist()
        self.at: list[int] = machine.place.tolist()
        self.launch: list[float] = machine.launch_us.tolist()
        self.lag: list[float] = machine.end_us.tolist()
        self.slowdown: list[float] = machine.slowdown.tolist()
        self.uses: list[list[int]] = [np.flatnonzero(row).tolist() for row in machine.uses]
        self.near: list[list[int]] = [np.flatnonzero(row).tolist() for row in machine.near]
        self.release: list[float] = problem.release_us.tolist()
        self.cost_us = problem.transfer_us.item
        self.whole = problem.share is None
        self.exports: list[list[int]] = [[] for _ in range(n)]
        for tensor in lists.outputs:
            if lists.producer[tensor] >= 0:
                self.exports[lists.producer[tensor]].append(tensor)
        self.length = problem.most_at_once
        self.free = [0.0] * problem.host
        self.counts = not self.whole or max(self.slowdown) > 1.0  # else `free` says all that is asked of resources
        self.lines: list[Counted] = [()] * machine.uses.shape[1]
        self.queues = [0.0] * len(machine.queues)
        self.latest = 0.0  # all that stands has ended by then
        self.start, self.finish, self.done = [0.0] * n, [0.0] * n, [0.0] * n
        self.home = [-1] * n
        self.sequence: list[int] = []
        self.there: dict[tuple[int, int], float] = {}
        self.taken: set[tuple[int, int]] = set()
        self.moves: list[Move] = []
        self.log: list[Placed] = []

    def copy(self) -> Decoder:
        """The same schedule, to go on with in another way."""
        other = copy(self)
        other.start, other.finish, other.done = list(self.start), list(self.finish), list(self.done)
        other.home, other.sequence = list(self.home), list(self.sequence)
        other.moves, other.log = list(self.moves), list(self.log)
        other.there, other.taken = dict(self.there), set(self.taken)
        return other

    def times(self, op: int, here: int) -> Times:
        """When an op would run on a processor if it were placed there next; ``inf`` where it cannot.

        Raises:
            ValueError: something that it reads from has not been placed.
        """
        lists, target, begin = self.lists, self.at[here], 0.0
        queues: dict[int, float] = {}
        fetches: list[tuple[int, int, int, float]] = []
        queued: list[Move] = []
        taken: list[tuple[int, int]] = []
        paid = 0.0
        for tensor in lists.reads[op]:
            producer = lists.producer[tensor]
            if producer >= 0:
                home = self.home[producer]
                if home < 0:
                    names = self.problem.ops
                    raise ValueError(f"op '{names[op]}' stands before '{names[producer]}', which it reads from")
                exists, source = self.finish[producer], self.at[home]
                if home == here:
                    if exists > begin:
                        begin = exists
                    continue
                exists += self.lag[home]
            else:
                exists, source = self.release[op], self.host
            if (tensor, here) not in self.taken:
                taken.append((tensor, here))
            if exists > begin:
                begin = exists
            if source != target:
                way, stands = self._way(tensor, source, target, exists)
                sent, way = self.split(way)
                if sent:
                    queued += self.carry(tensor, sent, stands, queues)
                    stands = queued[-1].finish_us
                begin = max(begin, stands)
                for a, b in way:
                    cost = self.cost_us(tensor, a, b)
                    fetches.append((tensor, a, b, cost))
                    paid += cost
        launch = self.launch[here] if taken else 0.0
        now = begin = self.opening(op, here, begin, paid + launch)
        fetched: list[Move] = []
        for tensor, a, b, cost in fetches:
            fetched.append(Move(tensor, a, b, now, now + cost, op))
            now += cost
        latency = lists.latency[op][here]
        if self.slowdown[here] > 1.0:
            latency *= 1.0 + (self.slowdown[here] - 1.0) * self._pressure(op, here, begin)
        return Times(op, here, begin, now + launch + latency, fetched, queued, taken)

    def soonest(self, op: int, able: Iterable[int]) -> list[tuple[float, int]]:
        """Some processors, each with a finish than which `times` finds none earlier: without moves, a launch, or
        neighbours, a tenth of its work. Earliest first.
        """
        ready = max([self.finish[earlier] for earlier in self.lists.before[op]], default=0.0)
        row = self.lists.latency[op]
        return sorted([(self.opening(op, here, ready, 0.0) + row[here], here) for here in able])

    def _way(self, tensor: int, source: int, target: int, exists: float) -> tuple[list[tuple[int, int]], float]:
        """The channels that a tensor still has to take from its source to a place, and since when it stands there."""
        way: list[tuple[int, int]] = []
        while target != source:
            if (tensor, target) in self.there:
                exists = self.there[tensor, target]
                break
            way.append((self.hops[source][target], target))
            target = way[-1][0]
        return way[::-1], exists

    def split(self, way: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """A way up to the last queue on it, and what lies behind."""
        last = len(way) if self.queues else 0
        while last and self.busy[way[last - 1][0]][way[last - 1][1]] < 0:
            last -= 1
        return way[:last], way[last:]

    def carry(self, tensor: int, way: list[tuple[int, int]], stands: float, queues: dict[int, float]) -> list[Move]:
        """Moves one after the other, each when its queue is free; ``queues``: what else was put into them just now."""
        moves = []
        for a, b in way:
            queue = self.busy[a][b]
            begin = stands if queue < 0 else max(stands, queues.get(queue, self.queues[queue]))
            stands = begin + self.cost_us(tensor, a, b)
            if queue >= 0:
                queues[queue] = stands
            moves.append(Move(tensor, a, b, begin, stands))
        return moves

    def place(self, op: int, here: int) -> None:
        """Append an op on a processor. Raises ValueError where something that it reads from has not been placed."""
        self.append(self.times(op, here))

    def append(self, times: Times) -> None:
        """Append an op as `times` says, after which nothing has been placed."""
        op, here, start, finish, fetched, sent, taken = times
        there: list[tuple[int, int]] = []
        self.log.append(Placed(self.queues, self.free, self.lines, self.latest, len(self.moves), there, taken))
        if sent or fetched:
            self._issue(sent + fetched, there)
        self.taken.update(taken)
        self.start[op], self.finish[op], self.done[op], self.home[op] = start, finish, finish, here
        self.sequence.append(op)
        if finish > self.latest:
            self.latest = finish
        self.free = self.free.copy()  # and so of all that the log keeps
        for rival in self.lists.rivals[here]:
            if self.free[rival] < finish:
                self.free[rival] = finish
        if self.counts:
            share = self.share(op, here)
            last, longer = None, Counted()
            self.lines = self.lines.copy()
            for resource in self.uses[here]:  # a gang's mostly count the same
                line = self.lines[resource]
                if line is not last:
                    last, longer = line, counting(line, finish, share, self.length)
                self.lines[resource] = longer
        source = self.at[here]
        for tensor in self.exports[op] if source != self.host else ():
            way, _ = self._way(tensor, source, self.host, finish)
            arrives = finish + self.cost_us(tensor, source, self.host)
            if self.split(way)[0]:
                moves = self.carry(tensor, way, finish, {})
                arrives = moves[-1].finish_us
                self._issue(moves, there)
            self.done[op] = max(self.done[op], arrives)

    def _issue(self, moves: Sequence[Move], there: list[tuple[int, int]]) -> None:
        """Note what is moved: where it then stands, and until when it keeps a queue."""
        for move in moves:
            there.append((move.tensor, move.target))
            self.there[there[-1]] = move.finish_us
            queue = self.busy[move.source][move.target]
            if queue >= 0:
                self.queues = self.queues.copy()
                self.queues[queue] = move.finish_us
        self.moves += moves

    def take_back(self) -> None:
        """Undo the last `place`."""
        op, undo = self.sequence.pop(), self.log.pop()
        for arrival in undo.there:
            del self.there[arrival]
        self.taken.difference_update(undo.taken)
        del self.moves[undo.moves :]
        self.queues, self.free, self.lines, self.latest = undo.queues, undo.free, undo.lines, undo.latest
        self.home[op] = -1

    def share(self, op: int, here: int) -> float:
        """What an op takes of each resource of a processor."""
        return 1.0 if self.whole else float(self.problem.shares[op, here])

    def room(self, op: int, here: int) -> float:
        """From when on the resources of a processor have room for an op, behind all that stands."""
        if self.whole:
            return self.free[here]
        share = self.share(op, here)
        # A gang's resources mostly count the same.
        lines = {id(line): line for line in [self.lines[resource] for resource in self.uses[here]]}
        return max([fits(line, share) for line in lines.values()])

    def opening(self, op: int, here: int, begin: float, paid: float) -> float:
        """When an op that could begin at ``begin``, and pays so much beside its latency, gets its resources."""
        return max(begin, self.room(op, here))

    def _pressure(self, op: int, here: int, at: float) -> float:
        """How much of what the op leaves of its memory's resources is taken when it starts, from 0 to 1."""
        if at >= self.latest:
            return 0.0
        taken = 0.0
        for resource in self.near[here]:
            taken += taken_at(self.lines[resource], at)
        room = len(self.near[here]) - self.share(op, here) * len(self.uses[here])
        return min(taken / room, 1.0) if room > 1e-9 else 0.0

    def schedule(self) -> Schedule:
        """What has been placed, once that is everything."""
        problem = self.problem
        for tensor in self.lists.outputs:
            producer = self.lists.producer[tensor]
            if producer >= 0 and self.at[self.home[producer]] != self.host and (tensor, self.host) not in self.there:
                source, since = self.at[self.home[producer]], self.finish[producer]
                self.moves.append(
                    Move(tensor, source, self.host, since, since + self.cost_us(tensor, source, self.host))
                )
        return Schedule(
            assignment=tuple(self.home),
            sequence=tuple(self.sequence),
            start_us=tuple(self.start),
            finish_us=tuple(self.finish),
            done_us=tuple(self.done),
            makespan_us=max(self.done),
            value_us=value_of(problem, self.done),
            transfers=tuple(self.moves),
        )


def value_of(problem: Problem, done: Sequence[float] | FloatArray) -> float:
    """What is minimised, from when each op is done: the makespan, or the largest weighted lateness."""
    return float((problem.weight * (np.array(done) - problem.due_us)).max())


def simulate(problem: Problem, assignment: Sequence[int], sequence: Sequence[int]) -> Schedule:
    """Time a placement and an order.

    Args:
        assignment: processor of each op.
        sequence: a permutation of the ops that is a topological order.

    Returns:
        The schedule; its makespan is ``inf`` when an op sits where it is not supported or a tensor cannot get
        where it is read.

    Raises:
        ValueError: the sequence puts an op before one that it reads from, or leaves one out.
    """
    if len(assignment) != len(problem.ops) or sorted(sequence) != list(range(len(problem.ops))):
        raise ValueError("assignment and sequence must cover every op exactly once")
    decoder = Decoder(problem)
    for op in sequence:
        decoder.place(int(op), int(assignment[op]))
    return decoder.schedule()


SETTLING: Final = 3
"""Times that a schedule is put into the order of its starts; later ones change tenths of a percent."""


def in_start_order(problem: Problem, schedule: Schedule) -> Schedule:
    """The same placement, timed with ops in the order in which they start.

    Rule 4 charges an op for those that stand before it in the sequence: one that stands late and starts early slows
    nobody there. Judged in another order than that of its starts, a schedule looks shorter than it is.
    """
    for _ in range(SETTLING if (problem.machine.slowdown > 1.0).any() else 0):
        order = tuple(sorted(schedule.sequence, key=schedule.start_us.__getitem__))
        if order == schedule.sequence or math.isinf(schedule.makespan_us):
            break
        schedule = simulate(problem, schedule.assignment, order)
    return schedule
