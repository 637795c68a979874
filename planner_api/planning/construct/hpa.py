"""D3's horizontal partition algorithm (Zhang et al. 2021, section III-E): every op's tier, layer by layer.

An op goes to no tier before the earliest of those that it reads from. One that shrinks its data goes where it and its
inputs' moves take least; one that does not is placed together with its longest successor. Then ops that read no more
than another one follow that to its tier, for all they need is there (*subset input siblings*).

Three slips of the paper are mended: a sibling may lie in an earlier layer, and what reads from it is then looked at
again; a sibling moves only to where it is supported; sizes are compared by what moving them takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import layers
from planner_api.planning.construct.tiers import Tiers, tiers_of
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem

UNDECIDED = -1


def solve(problem: Problem, budget: Budget) -> Solution:
    tiers = tiers_of(problem)
    return Solution(tiers.schedule(partition(tiers)), "hpa")


def partition(tiers: Tiers) -> list[int]:
    lists = tiers.problem.lists
    tier = [UNDECIDED] * len(lists.before)
    for layer in layers(lists.order, lists.before):
        for op in layer:
            tier[op] = best_tier(tiers, op, tier)
        for op in layer:
            _take_along(tiers, op, tier)
    return tier


def best_tier(tiers: Tiers, op: int, tier: Sequence[int]) -> int:
    """An op's tier, where those that it reads from have theirs; with its longest successor where its data grows."""
    problem, last = tiers.problem, tiers.us.shape[1] - 1
    lists = problem.lists
    first = min((tier[earlier] for earlier in lists.before[op]), default=0)
    potential = range(first, last + 1)
    takes = {there: float(tiers.us[op, there]) + tiers.fetch_us(op, there, tier) for there in potential}
    successor = max(lists.after[op], key=lambda later: float(tiers.us[later, 0]), default=None)
    far = tiers.move_us[:, 0, last]
    grows = far[lists.reads[op]].sum() <= far[lists.writes[op]].sum()
    if not grows or successor is None:
        return min(potential, key=takes.__getitem__)

    def both(there: int, later: int) -> float:
        moved = float(tiers.move_us[lists.writes[op], there, later].sum())
        return takes[there] + float(tiers.us[successor, later]) + moved

    return min(((here, later) for here in potential for later in range(here, last + 1)), key=lambda two: both(*two))[0]


def _take_along(tiers: Tiers, op: int, tier: list[int]) -> None:
    """Let the siblings that read no more than an op follow it; who reads from them is looked at again."""
    lists = tiers.problem.lists
    inputs = set(lists.before[op])
    behind = {later for earlier in inputs for later in lists.after[earlier]}
    for sibling in behind - {op}:
        earlier = UNDECIDED < tier[sibling] < tier[op]
        if earlier and set(lists.before[sibling]) <= inputs and tiers.us[sibling, tier[op]] < float("inf"):
            tier[sibling] = tier[op]
            for later in lists.after[sibling]:
                if tier[later] != UNDECIDED:
                    tier[later] = best_tier(tiers, later, tier)
