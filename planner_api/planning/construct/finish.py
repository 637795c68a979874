"""Earliest finish by the cost model itself: ops by upward rank, each where the simulator would end it first.

What HEFT does on HOPE's machine, without its insertion, on all of ours: shares, queues, launches, places, neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import by_rank, runnable, stuck, upward_rank
from planner_api.planning.judge.simulator import Decoder
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem


def solve(problem: Problem, budget: Budget) -> Solution:
    """Ops by descending upward rank, each on the processor where it finishes first.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    order = by_rank(problem, upward_rank(problem))
    return Solution(placed(Decoder(problem), order, range(problem.host)).schedule(), "finish")


def placed(decoder: Decoder, ops: Sequence[int], among: Container[int]) -> Decoder:
    """The same with more ops, each where it finishes first among some processors; anywhere, if none supports it.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    problem = decoder.problem
    for op in ops:
        able = runnable(problem.lists.latency[op])
        best, processor = math.inf, -1
        for soonest, here in sorted((decoder.soonest(op, p), p) for p in [p for p in able if p in among] or able):
            if soonest > best:
                break
            best, processor = min((best, processor), (decoder.times(op, here).finish, here))
        if math.isinf(best):
            raise stuck(problem, op)
        decoder.place(op, processor)
    return decoder
