"""StarPU's DMDAR: dequeue model, data aware, ready tasks first (Augonnet et al. 2011).

An op that becomes ready is pushed to the queue of the processor where it is expected to finish first: expected
end of that queue, plus the transfers of inputs that are not there yet, plus its latency. A processor that
becomes free pops the op of its queue that needs the fewest microseconds of transfers (ties: first pushed).
"""

from __future__ import annotations

import heapq
import math

from planner_api.planning.budget import Budget
from planner_api.planning.construct.partial import Partial, runnable, stuck
from planner_api.planning.judge.simulator import simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem


def solve(problem: Problem, budget: Budget) -> Solution:
    """Simulate the runtime's decisions; scored by the simulator.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    lists, partial = problem.lists, Partial(problem)
    queues: list[list[int]] = [[] for _ in range(problem.host)]
    expected_end = [0.0] * problem.host
    waiting = [len(before) for before in lists.before]
    events: list[tuple[float, int]] = []
    now = 0.0

    def push(op: int) -> None:
        cost, processor = math.inf, -1
        for candidate in runnable(lists.latency[op]):
            end = max(now, expected_end[candidate]) + partial.fetch(op, candidate) + lists.latency[op][candidate]
            if end < cost:
                cost, processor = end, candidate
        if processor < 0:
            raise stuck(problem, op)
        queues[processor].append(op)
        for rival in lists.rivals[processor]:
            expected_end[rival] = max(expected_end[rival], cost)

    for op in lists.order:
        if waiting[op] == 0:
            push(op)
    while len(partial.sequence) < len(problem.ops):
        for processor, queue in enumerate(queues):
            if queue and partial.free[processor] <= now:
                op = min(queue, key=lambda op: partial.fetch(op, processor))
                queue.remove(op)
                partial.place(op, processor)
                heapq.heappush(events, (partial.finish[op], op))
        now = events[0][0]
        while events and events[0][0] <= now:
            _, op = heapq.heappop(events)
            for later in lists.after[op]:
                waiting[later] -= 1
                if waiting[later] == 0:
                    push(later)
    return Solution(simulate(problem, partial.home, partial.sequence), "dmdar")
