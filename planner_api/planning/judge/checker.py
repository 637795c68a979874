"""The checker: proves a schedule legal from the problem's arrays alone, without the simulator's code."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np

from planner_api.planning.judge.simulator import Move, Schedule
from planner_api.planning.problem import PlanningError, Problem

TOLERANCE = 1e-9
"""Relative slack for sums taken in another order than the simulator took them."""


class IllegalSchedule(PlanningError):  # noqa: N818 - the word the field uses
    """A schedule that breaks a rule; the message names the op or the tensor and the rule."""


def check(problem: Problem, schedule: Schedule) -> None:
    """Prove that a schedule is legal under the cost model.

    Every op runs exactly once, on a processor that supports it, for as long as it takes; no resource does two
    things at once; every tensor is where it is read before it is read; the makespan is what it says.

    Raises:
        IllegalSchedule: at the first rule broken.
    """
    slack = TOLERANCE * max(1.0, schedule.makespan_us)
    _check_ops(problem, schedule)
    _check_resources(problem, schedule, slack)
    origins = _origins(problem, schedule)
    arrivals = _check_transfers(problem, schedule, origins, slack)
    _check_reads(problem, schedule, origins, arrivals, slack)
    if problem.mode == "blocking":
        _check_paid(problem, schedule, slack)
    _check_makespan(problem, schedule, arrivals, slack)


def _check_ops(problem: Problem, schedule: Schedule) -> None:
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
            raise IllegalSchedule(f"op '{name}' runs on '{problem.processors[processor]}', which does not support it")
        if not (math.isfinite(schedule.finish_us[op]) and schedule.start_us[op] >= 0):
            raise IllegalSchedule(f"op '{name}' has no finite times")


def _check_resources(problem: Problem, schedule: Schedule, slack: float) -> None:
    for processor, name in enumerate(problem.processors):
        rivals = problem.conflicts[processor]
        busy = sorted(
            (schedule.start_us[op], schedule.finish_us[op], op)
            for op, home in enumerate(schedule.assignment)
            if rivals[home] and schedule.finish_us[op] > schedule.start_us[op]
        )
        # Two rivals of one processor need not be each other's rivals: only pairs with an op of its own count.
        own, other = -math.inf, -math.inf
        for start, finish, op in busy:
            mine = schedule.assignment[op] == processor
            if start < (max(own, other) if mine else own) - slack:
                raise IllegalSchedule(f"op '{problem.ops[op]}' overlaps another on a resource of '{name}'")
            if mine:
                own = max(own, finish)
            else:
                other = max(other, finish)


def _origins(problem: Problem, schedule: Schedule) -> list[tuple[int, float]]:
    """Of each tensor the place where it comes to be, and when."""
    return [
        (schedule.assignment[producer], schedule.finish_us[producer]) if producer >= 0 else (problem.host, 0.0)
        for producer in problem.producer.tolist()
    ]


def _check_transfers(
    problem: Problem, schedule: Schedule, origins: list[tuple[int, float]], slack: float
) -> dict[tuple[int, int], Move]:
    arrivals: dict[tuple[int, int], Move] = {}
    channels: dict[tuple[int, int], list[Move]] = defaultdict(list)
    for move in schedule.transfers:
        name = problem.tensors[move.tensor]
        source, exists = origins[move.tensor]
        cost = float(problem.transfer_us[move.tensor, move.source, move.target])
        if move.source != source or move.target == source:
            raise IllegalSchedule(f"tensor '{name}' is not moved from where it was produced")
        if (move.tensor, move.target) in arrivals:
            raise IllegalSchedule(f"tensor '{name}' is moved twice to the same place")
        if move.start_us < exists - slack:
            raise IllegalSchedule(f"tensor '{name}' is moved before it exists")
        if not math.isfinite(cost) or move.finish_us - move.start_us < cost - slack:
            raise IllegalSchedule(f"tensor '{name}' is moved faster than it can be")
        arrivals[move.tensor, move.target] = move
        if move.finish_us > move.start_us:
            channels[move.source, move.target].append(move)
    if problem.mode == "overlap":
        for moves in channels.values():
            moves.sort(key=lambda move: (move.start_us, move.finish_us))
            for one, two in itertools.pairwise(moves):
                if two.start_us < one.finish_us - slack:
                    raise IllegalSchedule(f"tensor '{problem.tensors[two.tensor]}' shares a channel with another")
    return arrivals


def _check_reads(
    problem: Problem,
    schedule: Schedule,
    origins: list[tuple[int, float]],
    arrivals: dict[tuple[int, int], Move],
    slack: float,
) -> None:
    latency = problem.latency_us.tolist()
    for op, tensors in enumerate(problem.reads):
        here = schedule.assignment[op]
        compute = schedule.finish_us[op] - latency[op][here]
        if compute < schedule.start_us[op] - slack:
            raise IllegalSchedule(f"op '{problem.ops[op]}' runs for less than its latency")
        for tensor in tensors:
            source, there = origins[tensor]
            if problem.mode == "blocking" and schedule.start_us[op] < there - slack:
                raise IllegalSchedule(f"op '{problem.ops[op]}' starts before tensor '{problem.tensors[tensor]}' exists")
            if source != here:
                if (tensor, here) not in arrivals:
                    raise IllegalSchedule(f"tensor '{problem.tensors[tensor]}' never reaches op '{problem.ops[op]}'")
                there = arrivals[tensor, here].finish_us
            if there > compute + slack:
                raise IllegalSchedule(
                    f"op '{problem.ops[op]}' computes before tensor '{problem.tensors[tensor]}' is there"
                )


def _check_paid(problem: Problem, schedule: Schedule, slack: float) -> None:
    """Blocking: every transfer into a processor lies within the interval of one op there that reads the tensor."""
    paid = [0.0] * len(problem.ops)
    readers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op, tensors in enumerate(problem.reads):
        for tensor in tensors:
            readers[tensor, schedule.assignment[op]].append(op)
    for move in schedule.transfers:
        if move.target == problem.host:
            continue
        payers = [
            op
            for op in readers[move.tensor, move.target]
            if schedule.start_us[op] <= move.start_us + slack and move.finish_us <= schedule.finish_us[op] + slack
        ]
        if not payers:
            raise IllegalSchedule(f"nobody pays for moving tensor '{problem.tensors[move.tensor]}'")
        paid[min(payers, key=lambda op: (schedule.start_us[op], schedule.finish_us[op]))] += (
            move.finish_us - move.start_us
        )
    for op, (transfers, latency) in enumerate(zip(paid, problem.latency_us.tolist(), strict=True)):
        needed = transfers + latency[schedule.assignment[op]]
        if schedule.finish_us[op] - schedule.start_us[op] < needed - slack:
            raise IllegalSchedule(f"op '{problem.ops[op]}' does not pay for its transfers")


def _check_makespan(problem: Problem, schedule: Schedule, arrivals: dict[tuple[int, int], Move], slack: float) -> None:
    last = max(schedule.finish_us)
    for tensor in np.flatnonzero(problem.is_output & (problem.producer >= 0)).tolist():
        if (tensor, problem.host) not in arrivals:
            raise IllegalSchedule(f"output '{problem.tensors[tensor]}' never reaches the host")
        last = max(last, arrivals[tensor, problem.host].finish_us)
    if abs(last - schedule.makespan_us) > slack:
        raise IllegalSchedule(f"the makespan says {schedule.makespan_us} us, the schedule ends at {last} us")
