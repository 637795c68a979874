"""Runtimes' policies, played event by event: whenever ops have ended, or jobs are released, some that are ready begin.

*DMDAR* is StarPU's dequeue model, data aware, ready tasks first (Augonnet et al. 2011). An op that becomes ready is
pushed to the queue of the processor where it is expected to finish first: expected end of that queue, plus the
transfers of inputs that are not there yet, plus its latency. A processor that becomes free pops the op of its queue
that needs the fewest microseconds of transfers (ties: first pushed).

*Earliest deadline* and *least slack* are Band's policies, op by op: the most urgent of those that are ready begin, each
where it ends first; one whose best processor is busy waits for it while others pass.
"""

import math
from collections.abc import Sequence
from typing import Final

from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import event_by_event, first_end, runnable, stuck, upward_rank
from planner_api.planning.judge.simulator import Decoder, Schedule, Times
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem

LOOKED_AT: Final = 8
"""So many of the most urgent ready ops are looked at: what comes behind them rarely begins, and each costs time."""


def dmdar(problem: Problem, budget: Budget) -> Solution:
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
                moves = {op: decoder.times(op, processor).fetched for op in fitting}
                begun.append(min(fitting, key=lambda op: sum([move.finish_us - move.start_us for move in moves[op]])))
                queue.remove(begun[-1])
                decoder.place(begun[-1], processor)
        return begun

    return Solution(event_by_event(problem, push, begin).schedule(), "dmdar")


def earliest_deadline(problem: Problem, budget: Budget) -> Solution:
    """The op whose job is due first goes first; of one job the op with the longest way to the end."""
    due = _due(problem)
    rank = upward_rank(problem)
    return Solution(_played(problem, [(due[op], -rank[op]) for op in range(len(rank))]), "earliest_deadline")


def least_slack(problem: Problem, budget: Budget) -> Solution:
    """The op with the least time between what is still to do behind it and its deadline goes first."""
    rank = upward_rank(problem)
    slack = [(us - rank[op], us) for op, us in enumerate(_due(problem))]
    return Solution(_played(problem, slack), "least_slack")


def _due(problem: Problem) -> list[float]:
    """When each op's job is due; jobs without a deadline come last."""
    due = [math.inf if job.deadline_us is None else job.deadline_us for job in problem.jobs]
    return [due[job] for job in problem.job_of.tolist()]


def _played(problem: Problem, urgency: Sequence[tuple[float, float]]) -> Schedule:
    """What comes of an urgency per op, smallest first."""
    ready: list[int] = []

    def push(op: int, now: float, decoder: Decoder) -> None:
        ready.append(op)
        ready.sort(key=urgency.__getitem__)

    def begin(now: float, decoder: Decoder) -> list[int]:
        waiting: list[tuple[float, int, Times]] = []
        for op in ready[:LOOKED_AT]:
            times = first_end(decoder, op)
            if times.start <= now:
                waiting = [(times.start, op, times)]
                break
            waiting.append((times.start, op, times))
        # Where nothing runs that could make room, the first that can begin waits for its release or its inputs.
        if not waiting or (waiting[0][0] > now and decoder.latest > now):
            return []
        _, op, times = min(waiting)
        ready.remove(op)
        decoder.append(times)
        return [op]

    return event_by_event(problem, push, begin).schedule()
