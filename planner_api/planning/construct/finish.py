"""Earliest finish by the cost model itself: ops by upward rank, each where the simulator would end it first.

What HEFT does on HOPE's machine, without its insertion, on all of ours: shares, queues, launches, places, neighbours.
"""

from __future__ import annotations

import math

from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import upward_rank
from planner_api.planning.construct.partial import runnable
from planner_api.planning.judge.simulator import Decoder
from planner_api.planning.methods import Solution
from planner_api.planning.problem import PlanningError, Problem


def solve(problem: Problem, budget: Budget) -> Solution:
    """Ops by descending upward rank, each on the processor where it finishes first.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    decoder, lists = Decoder(problem), problem.lists
    rank = upward_rank(problem)
    depth = {op: place for place, op in enumerate(lists.order)}
    for op in sorted(range(len(problem.ops)), key=lambda op: (-rank[op], depth[op])):
        end, processor = min((decoder.times(op, p).finish, p) for p in runnable(lists.latency[op]))
        if math.isinf(end):
            raise PlanningError(f"op '{problem.ops[op]}' cannot get its inputs on any processor that supports it")
        decoder.place(op, processor)
    return Solution(decoder.schedule(), "finish")
