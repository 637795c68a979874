"""From a placement, or a priority, to an order, and from cuts and about when parts begin to a plan."""

import heapq
import math
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from graphlib import TopologicalSorter

import numpy as np

from hope_schema import Cut
from planner_api.planning.judge.simulator import Decoder, Schedule, Times, simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.cuts import cut_problem, homes_of

Before = Mapping[int, Collection[int]] | Sequence[Collection[int]]
"""What each op reads from."""


def upward_rank(problem: Problem, *, moves: bool = False) -> list[float]:
    """Longest path from each op to the end, own latency included, in microseconds (HEFT's rank).

    An op's latency is the mean over the processors that support it; ``moves`` adds the mean transfer of each tensor.
    """
    lists = problem.lists
    mean = [0.0] * len(problem.tensors)
    if moves:
        between, pairs = problem.between_us
        finite = np.where(np.isfinite(between), between, 0.0)
        mean = ((finite * pairs).sum(axis=(1, 2)) / max(pairs.sum(), 1)).tolist()
    rank = [0.0] * len(problem.ops)
    for op in reversed(lists.order):
        known = [us for us in lists.latency[op] if us < math.inf]
        tails = [rank[reader] + mean[tensor] for tensor in lists.writes[op] for reader in lists.readers[tensor]]
        rank[op] = sum(known) / len(known) + max(tails, default=0.0)
    return rank


def layers(ops: Sequence[int], before: Before) -> list[list[int]]:
    """Some ops by their longest distance from those that read none of the others; in each layer by index."""
    inside = set(ops)
    sorter = TopologicalSorter({op: inside.intersection(before[op]) for op in ops})
    sorter.prepare()
    found: list[list[int]] = []
    while sorter.is_active():
        found.append(sorted(sorter.get_ready()))
        sorter.done(*found[-1])
    return found


def by_rank(problem: Problem, rank: Sequence[float]) -> list[int]:
    """The ops by descending rank; of equals the first in topological order."""
    return sorted(problem.lists.order, key=lambda op: -rank[op])


def runnable(latency: Sequence[float]) -> list[int]:
    return [processor for processor, us in enumerate(latency) if us < math.inf]


def stuck(problem: Problem, op: int) -> PlanningError:
    return PlanningError(f"op '{problem.ops[op]}' cannot get its inputs on any processor that supports it")


def first_end(decoder: Decoder, op: int, among: Container[int] | None = None) -> Times:
    """An op where it ends first: among some processors, if any of them supports it.

    Raises:
        PlanningError: it cannot get its inputs anywhere.
    """
    able = runnable(decoder.lists.latency[op])
    able = [p for p in able if among is None or p in among] or able
    best: Times | None = None
    for soonest, here in decoder.soonest(op, able):
        if best is not None and soonest > best.finish:
            break
        times = decoder.times(op, here)
        if best is None or (times.finish, here) < (best.finish, best.here):
            best = times
    if best is None or math.isinf(best.finish):
        raise stuck(decoder.problem, op)
    return best


def listed(problem: Problem, assignment: Sequence[int]) -> Schedule:
    """The schedule of a placement in the order of list scheduling with upward rank.

    A processor with room takes its ready op of highest rank (ties by op index); an op is ready when all its producers
    have finished.
    """
    rank = upward_rank(problem)
    ready: list[list[tuple[float, int]]] = [[] for _ in problem.processors]

    def begin(now: float, decoder: Decoder) -> list[int]:
        begun: list[int] = []
        for processor, queue in enumerate(ready):
            if queue and decoder.room(queue[0][1], processor) <= now:
                begun.append(heapq.heappop(queue)[1])
                decoder.place(begun[-1], processor)
        return begun

    def push(op: int, now: float, decoder: Decoder) -> None:
        heapq.heappush(ready[assignment[op]], (-rank[op], op))

    return event_by_event(problem, push, begin).schedule()


def in_better_order(problem: Problem, assignment: Sequence[int], sequence: Sequence[int]) -> Schedule:
    """A placement in an order of its own or in that of list scheduling, whichever is shorter."""
    orders = simulate(problem, assignment, sequence), listed(problem, assignment)
    return min(orders, key=lambda schedule: schedule.makespan_us)


def event_by_event(
    problem: Problem,
    push: Callable[[int, float, Decoder], None],
    begin: Callable[[float, Decoder], list[int]],
) -> Decoder:
    """Play what a runtime does: whenever ops have finished, push those that became ready, and begin what can begin.

    Args:
        push: of an op that became ready, now, beside what runs.
        begin: places what begins now; says what that is.
    """
    lists, decoder = problem.lists, Decoder(problem)
    waiting = [len(before) for before in lists.before]
    events: list[tuple[float, int]] = []
    now = 0.0
    for op in lists.order:
        if waiting[op] == 0:
            push(op, now, decoder)
    while len(decoder.sequence) < len(problem.ops):
        while begun := begin(now, decoder):  # a processor may have room for several
            for op in begun:
                heapq.heappush(events, (decoder.finish[op], op))
        now = max(now, events[0][0])  # what has room before others may end before they begin
        while events and events[0][0] <= now:
            for later in lists.after[heapq.heappop(events)[1]]:
                waiting[later] -= 1
                if waiting[later] == 0:
                    push(later, now, decoder)
    return decoder


def realised(
    problem: Problem,
    cuts: Mapping[str, Cut],
    homes: Mapping[str, Sequence[int]],
    begin_us: Mapping[str, Sequence[float]],
    method: str,
) -> Solution:
    """The plan that makes these cuts.

    Args:
        problem: without cuts.
        cuts: by op.
        homes: processors of the parts of every op, or its own.
        begin_us: about when they begin, each behind what it reads; slices are made behind the op that they are of,
            those of inputs and joins before those that read them.
        method: what it is found by.

    Raises:
        CutError: a cut that cannot be made.
    """
    cut, made = cut_problem(problem, tuple(cuts.values()))
    lists = cut.lists
    turn = [0.0] * len(made)
    for op, piece in enumerate(made):
        if piece.kind in ("whole", "part"):
            turn[op] = begin_us[piece.op][piece.index]
    for op in lists.order:
        turn[op] = max([turn[op], *(turn[earlier] for earlier in lists.before[op])])
    for op in reversed(lists.order):
        of_op = made[op].kind == "slice" and any(made[earlier].kind != "slice" for earlier in lists.before[op])
        if made[op].kind in ("slice", "join") and lists.after[op] and not of_op:
            turn[op] = min(turn[later] for later in lists.after[op])
    place = {op: index for index, op in enumerate(lists.order)}
    sequence = sorted(range(len(made)), key=lambda op: (turn[op], place[op]))
    schedule = simulate(cut, homes_of(cut, made, homes, turn), sequence)
    return Solution(schedule, method, cuts=tuple(cuts.values()), cut=cut)
