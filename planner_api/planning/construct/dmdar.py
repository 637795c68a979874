"""StarPU's DMDAR: dequeue model, data aware, ready tasks first (Augonnet et al. 2011).

An op that becomes ready is pushed to the queue of the processor where it is expected to finish first: expected
end of that queue, plus the transfers of inputs that are not there yet, plus its latency. A processor that
becomes free pops the op of its queue that needs the fewest microseconds of transfers (ties: first pushed).
"""

import math

from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import event_by_event, runnable, stuck
from planner_api.planning.judge.simulator import Decoder
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem


def solve(problem: Problem, budget: Budget) -> Solution:
    lists = problem.lists
    queues: list[list[int]] = [[] for _ in range(problem.host)]
    expected_end = [0.0] * problem.host

    def push(op: int, now: float, decoder: Decoder) -> None:
        cost, processor = math.inf, -1
        able = runnable(lists.latency[op])
        for soonest, candidate in sorted((max(now, expected_end[p]) + lists.latency[op][p], p) for p in able):
            if soonest > cost:
                break
            times = decoder.times(op, candidate)
            end = max(now, expected_end[candidate]) + (times.finish - times.start)
            cost, processor = min((cost, processor), (end, candidate))
        if processor < 0:
            raise stuck(problem, op)
        queues[processor].append(op)
        for rival in lists.rivals[processor]:
            expected_end[rival] = max(expected_end[rival], cost)

    def begin(now: float, decoder: Decoder) -> list[int]:
        begun = []
        for processor, queue in enumerate(queues):
            fitting = [op for op in queue if decoder.room(op, processor) <= now]
            if fitting:
                begun.append(min(fitting, key=lambda op: decoder.times(op, processor).fetching_us))
                queue.remove(begun[-1])
                decoder.place(begun[-1], processor)
        return begun

    return Solution(event_by_event(problem, push, begin).schedule(), "dmdar")
