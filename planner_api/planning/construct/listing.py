"""List scheduling: from a placement, or a priority, to an order."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from planner_api.planning.problem import Problem


def upward_rank(problem: Problem) -> list[float]:
    """Longest path from each op to the end, own latency included, in microseconds (HEFT's rank without transfers).

    An op's latency is the mean over the processors that support it.
    """
    lists = problem.lists
    rank = [0.0] * len(problem.ops)
    for op in reversed(lists.order):
        known = [us for us in lists.latency[op] if us < math.inf]
        tail = 0.0
        for later in lists.after[op]:
            if rank[later] > tail:
                tail = rank[later]
        rank[op] = sum(known) / len(known) + tail
    return rank


def by_rank(problem: Problem, rank: Sequence[float]) -> list[int]:
    """The ops by descending rank; of equals the first in topological order."""
    return sorted(problem.lists.order, key=lambda op: -rank[op])


def list_order(problem: Problem, assignment: Sequence[int]) -> list[int]:
    """Order a placement by list scheduling with upward rank, blocking transfers charged to the first consumer.

    A processor that becomes free takes its ready op of highest rank (ties by op index); an op is ready when all
    its producers have finished.
    """
    lists = problem.lists
    host, transfer = problem.host, lists.transfer
    rank = upward_rank(problem)
    waiting = [len(before) for before in lists.before]
    ready: list[list[tuple[float, int]]] = [[] for _ in problem.processors]
    for op, count in enumerate(waiting):
        if count == 0:
            heapq.heappush(ready[assignment[op]], (-rank[op], op))
    free = [0.0] * host
    cached: list[set[int]] = [set() for _ in range(host)]
    running: list[tuple[float, int]] = []
    sequence: list[int] = []
    now = 0.0
    while len(sequence) < len(problem.ops):
        for processor, queue in enumerate(ready):
            if queue and free[processor] <= now:
                op = heapq.heappop(queue)[1]
                sequence.append(op)
                finish = now + lists.latency[op][processor]
                for tensor in lists.reads[op]:
                    producer = lists.producer[tensor]
                    source = assignment[producer] if producer >= 0 else host
                    if source != processor and tensor not in cached[processor]:
                        cached[processor].add(tensor)
                        finish += transfer[tensor][source][processor]
                for rival in lists.rivals[processor]:
                    if finish > free[rival]:
                        free[rival] = finish
                heapq.heappush(running, (finish, op))
        if running:
            now = running[0][0]
            while running and running[0][0] <= now:
                op = heapq.heappop(running)[1]
                for later in lists.after[op]:
                    waiting[later] -= 1
                    if waiting[later] == 0:
                        heapq.heappush(ready[assignment[later]], (-rank[later], later))
    return sequence
