"""The checker: proves a schedule legal from the problem's arrays alone, without the simulator's code."""

import itertools
import math
from collections import defaultdict

import numpy as np

from planner_api.planning.judge.simulator import Move, Schedule
from planner_api.planning.problem import PlanningError, Problem

TOLERANCE = 1e-9
"""Relative slack for sums taken in another order than the simulator took them."""
SHARES = 1e-6
"""By how much shares may add up to more than 1, for the same reason."""


class IllegalSchedule(PlanningError):
    """A schedule that breaks a rule; the message names the op or the tensor and the rule."""


def check(problem: Problem, schedule: Schedule) -> None:
    """Prove that a schedule is legal under the cost model (see `simulator`).

    Every op runs exactly once, on a processor that supports it, for as long as it takes with what it pays for; no
    resource carries more than its capacity and no queue two moves; every tensor is where it is read before it is read;
    makespan and value are what the schedule says.

    Raises:
        IllegalSchedule: at the first rule broken.
    """
    _Proof(problem, schedule).run()


class _Proof:
    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self.machine = problem.machine
        self.slack = TOLERANCE * max(1.0, schedule.makespan_us)
        self.arrivals: dict[tuple[int, int], Move] = {}
        self.home = np.array(schedule.assignment, dtype=np.int64)
        self.start_us, self.finish_us = np.array(schedule.start_us), np.array(schedule.finish_us)
        self.sequence = np.array(schedule.sequence, dtype=np.int64)

    def run(self) -> None:
        self.check_ops()
        self.check_resources()
        self.check_moves()
        self.check_queues()
        self.check_reads()
        self.check_durations()
        self.check_ends()

    def check_ops(self) -> None:
        problem, schedule = self.problem, self.schedule
        n, p = problem.latency_us.shape
        if sorted(schedule.sequence) != list(range(n)):
            raise IllegalSchedule("the sequence does not hold every op exactly once")
        for column in (schedule.assignment, schedule.start_us, schedule.finish_us):
            if len(column) != n:
                raise IllegalSchedule(f"the schedule lists {len(column)} ops, the problem has {n}")
        supported = np.isfinite(problem.latency_us).tolist()
        for op, processor in enumerate(schedule.assignment):
            name = problem.ops[op]
            if not 0 <= processor < p:
                raise IllegalSchedule(f"op '{name}' runs on processor {processor}, which does not exist")
            if not supported[op][processor]:
                raise IllegalSchedule(
                    f"op '{name}' runs on '{problem.processors[processor]}', which does not support it"
                )
            if not (math.isfinite(schedule.finish_us[op]) and schedule.start_us[op] >= 0):
                raise IllegalSchedule(f"op '{name}' has no finite times")

    def check_resources(self) -> None:
        """At every start: what runs on each resource, taken together."""
        problem, start, finish, home = self.problem, self.start_us, self.finish_us, self.home
        share = problem.shares[np.arange(len(home)), home]
        for resource in range(self.machine.uses.shape[1]):
            ops = np.flatnonzero(self.machine.uses[home, resource] & (finish > start))
            events = sorted(
                [(finish[op] - self.slack, 0, -share[op], op) for op in ops]
                + [(start[op], 1, share[op], op) for op in ops if finish[op] - self.slack > start[op]]
            )
            begun: set[int] = set()
            taken = 0.0
            for _, starts, change, op in events:
                if starts:
                    begun.add(int(op))
                elif op not in begun:
                    continue  # shorter than rounding
                taken += change
                if taken > 1.0 + SHARES:
                    name = problem.processors[home[op]]
                    raise IllegalSchedule(f"op '{problem.ops[int(op)]}' overlaps others on a resource of '{name}'")

    def source(self, tensor: int) -> tuple[int, float]:
        """The place where a tensor comes to be, and when others can take it in."""
        producer = int(self.problem.producer[tensor])
        if producer < 0:
            readers = self.problem.lists.readers[tensor]
            return self.machine.host, min((float(self.problem.release_us[op]) for op in readers), default=0.0)
        home = self.schedule.assignment[producer]
        return int(self.machine.place[home]), self.schedule.finish_us[producer] + float(self.machine.end_us[home])

    def queued(self, channels: list[tuple[int, int]]) -> bool:
        """Whether a queue carries moves over any of some channels."""
        return any(self.machine.busy[channel] >= 0 for channel in channels)

    def check_moves(self) -> None:
        problem, schedule, host = self.problem, self.schedule, self.machine.host
        forwarded: set[tuple[int, int]] = set()
        for move in reversed(schedule.transfers):
            # What is sent on over a queue, at once or later on its way, is nobody's time to pay.
            if self.machine.busy[move.source, move.target] >= 0 or (move.tensor, move.target) in forwarded:
                forwarded.add((move.tensor, move.source))
        for move in schedule.transfers:
            name = problem.tensors[move.tensor]
            source, exists = self.source(move.tensor)
            cost = float(problem.transfer_us[move.tensor, move.source, move.target])
            out = move.target == host and bool(problem.is_output[move.tensor]) and move.reader < 0
            out_way = self.machine.way(source, host)
            at_once = out and move.source == source and not self.queued(out_way)
            if move.target == source or not (at_once or self.machine.hops[source, move.target] == move.source):
                raise IllegalSchedule(f"tensor '{name}' is not moved from where it was produced")
            if (move.tensor, move.target) in self.arrivals:
                raise IllegalSchedule(f"tensor '{name}' is moved twice to the same place")
            leaves = (
                problem.is_output[move.tensor] and move.reader < 0 and move.target in [place for _, place in out_way]
            )
            if leaves and problem.producer[move.tensor] >= 0:
                exists = schedule.finish_us[int(problem.producer[move.tensor])]
            if move.source != source:
                if (move.tensor, move.source) not in self.arrivals:
                    raise IllegalSchedule(f"tensor '{name}' is moved on from where it never arrived")
                exists = self.arrivals[move.tensor, move.source].finish_us
            if move.start_us < exists - self.slack:
                raise IllegalSchedule(f"tensor '{name}' is moved before it exists")
            if not math.isfinite(cost) or move.finish_us - move.start_us < cost - self.slack:
                raise IllegalSchedule(f"tensor '{name}' is moved faster than it can be")
            queued = self.machine.busy[move.source, move.target] >= 0
            if move.reader < 0 and not queued and not leaves and (move.tensor, move.target) not in forwarded:
                raise IllegalSchedule(f"nobody pays for moving tensor '{name}'")
            if move.reader >= 0:
                op = move.reader
                if queued or move.tensor not in problem.reads[op]:
                    raise IllegalSchedule(f"op '{problem.ops[op]}' need not pay for moving tensor '{name}'")
                way = self.machine.way(source, int(self.machine.place[schedule.assignment[op]]))
                stops = [place for _, place in way]
                if move.target not in stops or self.queued(way[stops.index(move.target) + 1 :]):
                    raise IllegalSchedule(f"tensor '{name}' is moved to where its reader is not")
                inside = schedule.start_us[op] - self.slack <= move.start_us
                if not (inside and move.finish_us <= schedule.finish_us[op] + self.slack):
                    raise IllegalSchedule(f"nobody pays for moving tensor '{name}'")
            self.arrivals[move.tensor, move.target] = move

    def check_queues(self) -> None:
        queues: dict[int, list[Move]] = defaultdict(list)
        for move in self.schedule.transfers:
            queue = int(self.machine.busy[move.source, move.target])
            if queue >= 0:
                queues[queue].append(move)
        for moves in queues.values():
            for one, two in itertools.pairwise(moves):
                if two.start_us < one.finish_us - self.slack:
                    name = self.problem.tensors[two.tensor]
                    raise IllegalSchedule(f"tensor '{name}' shares a queue with another")

    def check_reads(self) -> None:
        problem, schedule = self.problem, self.schedule
        for op, tensors in enumerate(problem.reads):
            here = schedule.assignment[op]
            place = int(self.machine.place[here])
            for tensor in tensors:
                name = problem.tensors[tensor]
                producer = int(problem.producer[tensor])
                source, exists = self.source(tensor)
                if producer >= 0 and schedule.assignment[producer] == here:
                    exists = schedule.finish_us[producer]
                if producer < 0:
                    exists = float(problem.release_us[op])
                if schedule.start_us[op] < exists - self.slack:
                    raise IllegalSchedule(f"op '{problem.ops[op]}' starts before tensor '{name}' exists")
                if source == place:
                    continue
                if (tensor, place) not in self.arrivals:
                    raise IllegalSchedule(f"tensor '{name}' never reaches op '{problem.ops[op]}'")
                move = self.arrivals[tensor, place]
                if move.reader != op and move.finish_us > schedule.start_us[op] + self.slack:
                    raise IllegalSchedule(f"op '{problem.ops[op]}' starts before tensor '{name}' is there")

    def check_durations(self) -> None:
        """Every op takes its latency, slowed by its neighbours, its launch where it owes one, and what it fetches."""
        problem, schedule, machine = self.problem, self.schedule, self.machine
        fetched = [0.0] * len(problem.ops)
        for move in schedule.transfers:
            if move.reader >= 0:
                fetched[move.reader] += move.finish_us - move.start_us
        known: set[tuple[int, int]] = set()
        for position, op in enumerate(schedule.sequence):
            here = schedule.assignment[op]
            fresh = {
                (tensor, here)
                for tensor in problem.reads[op]
                if problem.producer[tensor] < 0 or schedule.assignment[problem.producer[tensor]] != here
            } - known
            known |= fresh
            least = fetched[op] + float(problem.latency_us[op, here]) * self.slowed(position)
            if fresh:
                least += float(machine.launch_us[here])
            if schedule.finish_us[op] - schedule.start_us[op] < least - self.slack:
                raise IllegalSchedule(f"op '{problem.ops[op]}' runs for less than its latency and what it pays for")

    def slowed(self, position: int) -> float:
        """By what the op at a position is slowed while earlier ones still take its memory's resources."""
        problem, schedule, machine = self.problem, self.schedule, self.machine
        op = schedule.sequence[position]
        here = schedule.assignment[op]
        factor = float(machine.slowdown[here])
        if factor == 1.0:
            return 1.0
        earlier = self.sequence[:position]
        # What ends within rounding of the start may or may not count: the schedule gets the benefit.
        still = earlier[self.finish_us[earlier] > schedule.start_us[op] + self.slack]
        homes = self.home[still]
        taken = (machine.uses[homes] * problem.shares[still, homes][:, None]).sum(axis=0)
        near = machine.near[here]
        share = float(problem.shares[op, here])
        room = int(near.sum()) - share * int(machine.uses[here].sum())
        pressure = min(float(np.minimum(taken, 1.0)[near].sum()) / room, 1.0) if room > TOLERANCE else 0.0
        return 1.0 + (factor - 1.0) * pressure

    def check_ends(self) -> None:
        problem, schedule = self.problem, self.schedule
        done = list(schedule.finish_us)
        for tensor in np.flatnonzero(problem.is_output & (problem.producer >= 0)).tolist():
            producer = int(problem.producer[tensor])
            if self.machine.place[schedule.assignment[producer]] == self.machine.host:
                continue
            if (tensor, self.machine.host) not in self.arrivals:
                raise IllegalSchedule(f"output '{problem.tensors[tensor]}' never reaches the host")
            arrival = self.arrivals[tensor, self.machine.host]
            # One that a reader fetches there, or that is sent on from there, counts from when it could have been there:
            # who takes it in ends no sooner. Where a queue brings it, it is there when that does.
            origin = int(self.machine.place[schedule.assignment[producer]])
            cost = float(problem.transfer_us[tensor, origin, self.machine.host])
            brought = arrival.reader < 0 and self.queued(self.machine.way(origin, self.machine.host))
            there = arrival.finish_us if brought else schedule.finish_us[producer] + cost
            done[producer] = max(done[producer], there)
        for op, (us, said) in enumerate(zip(done, schedule.done_us, strict=True)):
            if abs(us - said) > self.slack:
                raise IllegalSchedule(f"op '{problem.ops[op]}' is done at {us} µs, the schedule says {said} µs")
        if abs(max(done) - schedule.makespan_us) > self.slack:
            raise IllegalSchedule(f"the makespan says {schedule.makespan_us} µs, the schedule ends at {max(done)} µs")
        value = float((problem.weight * (np.array(done) - problem.due_us)).max())
        if abs(value - schedule.value_us) > self.slack:
            raise IllegalSchedule(f"the value says {schedule.value_us}, the schedule's is {value}")
