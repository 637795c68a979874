"""D3's vertical separation (Zhang et al. 2021, section III-F): stacks of convolutions and pools in A x B tiles.

A stack is a run of blocks, of one op or several, between which few tensors are alive, and whose ops read boxes of what
those before them make. A stretch of it is computed in tiles by hosts, or cores, without loss: each computes the box
that its part of what leaves the stretch needs, halo included, twice where tiles overlap. A tile waits for its own input
alone: while what the next one reads is sent it is computed, so that one processor may gain by taking several. Where
stretches end the paper leaves open; here a dynamic program says, which counts what tiles compute twice against what
hosts exchange between two stretches, and so which A and B are tried. What is not in tiles stays where a plan of whole
ops has it: HPA's, as the paper has it, or the best that is known.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from hope_schema.cutting import CutError
from hope_schema.plan import MAX_PARTS
from planner_api.planning.budget import Budget
from planner_api.planning.construct.tiling import LONGEST, Block, Tiler
from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.methods import Solution
from planner_api.planning.methods import solve as solve_named
from planner_api.planning.problem import PlanningError, Problem

WIDEST = 2
"""Tensors between two blocks at most: what a cell of a NASNet leaves, and the one before it."""
ALIKE = 2.0
"""How many times what the fastest of a team takes one may take that has a tile."""
CORES = 4
"""Tiles within one host take so many processors: with fewer they are stripes, which the search for cuts finds."""
IN_TURNS = (1, 2, 4, 8)
"""How many tiles, one after the other, each processor takes of what is sent to a host over a link."""
LEANS = (0.05, 0.1, 0.15)
"""By how much of their mean each tile may be smaller than the one before it, whose input is sent first."""
WHOLE = ("hpa", "one_host", "heft")
"""Methods one of which says where whole ops are: the first that serves."""


def solve(problem: Problem, budget: Budget) -> Solution:
    """D3's two steps: HPA's plan of whole ops, or the first that serves, and tiles within it where they are shorter."""
    for name in WHOLE:
        try:
            whole = solve_named(problem.whole, name, budget)
            break
        except PlanningError:
            if name == WHOLE[-1]:
                raise
    found = tiled(problem, whole.schedule)
    return min(found, whole, key=lambda one: one.schedule.value_us) if found else whole


def tiled(problem: Problem, whole: Schedule, budget: Budget | None = None) -> Solution | None:
    """The plan of the team and division that save most by the method's count; None where none is worth it.

    A search makes more of these than of the plan that is shortest as it stands: there fewer hosts wait for each other.

    Args:
        problem: with its cutter.
        whole: where, and in which order, ops are that are not computed in tiles.
        budget: once it is overdrawn, teams and divisions tried so far decide; None: all are tried.
    """
    if not problem.cutter.nodes:
        return None
    blocks = blocks_of(problem, whole)
    divisions = [
        (team, rows)
        for team in _teams(problem)
        for rows in range(1, len(team) + 1)
        if len(team) % rows == 0 and (rows == len(team) or len({*team}) == len(team))
    ]
    try:
        tilers: list[Tiler] = []
        for team, rows in divisions:
            if tilers and budget is not None and budget.overdrawn():
                break
            tilers.append(Tiler(problem, team, rows, whole, blocks))
        else:
            if tilers and problem.machine.queues:
                best = max(tilers, key=lambda tiler: tiler.saved_us)
                tilers += [Tiler(problem, best.team, best.rows, whole, blocks, lean) for lean in LEANS]
        return max(tilers, key=lambda tiler: tiler.saved_us).solution() if tilers else None
    except CutError:
        return None


def blocks_of(problem: Problem, whole: Schedule) -> list[Block]:
    """All ops: between points of the network that one tensor crosses, those of long blocks between wider ones.

    Within a block they stand in a plan's order.
    """
    lists, place = problem.lists, {op: turn for turn, op in enumerate(whole.sequence)}
    left = [len(readers) + out for readers, out in zip(lists.readers, problem.is_output.tolist(), strict=True)]
    alive = {tensor for tensor, maker in enumerate(lists.producer) if maker < 0}
    crossing: dict[int, int] = {}
    for op in lists.order:
        for tensor in problem.reads[op]:
            left[tensor] -= 1
        made = lists.writes[op] if problem.reads[op] else ()  # constants may stand anywhere
        alive = {tensor for tensor in alive.union(made) if left[tensor]}
        crossing[op] = len(alive)

    def divided(ops: Sequence[int], narrow: int) -> Iterator[Block]:
        first = 0
        for at, op in enumerate(ops, 1):
            if crossing[op] <= narrow or at == len(ops):
                block, first = ops[first:at], at
                if len(block) > LONGEST and narrow < WIDEST:
                    yield from divided(block, narrow + 1)
                else:
                    yield tuple(sorted(block, key=place.__getitem__))

    return list(divided(lists.order, 1))


def _teams(problem: Problem) -> list[tuple[int, ...]]:
    """The processors of each tile: about as fast as each other, and able to work side by side.

    They are one of each host, the first that are so, or of one host all. What links bring to
    another host its fastest processors also take in turns, several tiles each.
    """
    hosts = problem.machine.owners[problem.machine.place].tolist()
    known = np.isfinite(problem.latency_us)
    slowest = np.where(known, problem.latency_us, 0.0).max(axis=1, keepdims=True)  # for who does not support an op
    total = np.where(known, problem.latency_us, slowest).sum(axis=0)
    order: list[int] = np.argsort(total, kind="stable").tolist()
    found: dict[tuple[int, ...], None] = {}
    spread: list[int] = []
    device = int(problem.machine.owners[problem.machine.host])
    seen: set[int] = set()
    for turn, head in enumerate(order):
        if head in seen:
            continue
        apart: list[int] = []
        within: list[int] = []
        for one in (p for p in order[turn:] if total[p] <= ALIKE * total[head]):
            if not any(hosts[one] == hosts[other] for other in apart):
                apart.append(one)
            if hosts[one] == hosts[head] and not any(problem.machine.conflicts[one, other] for other in within):
                within.append(one)
        seen |= {*within}
        teams = [within] if len(within) >= CORES else []
        if len(apart) > 1 and not spread:
            spread = apart
            seen |= {*apart}
            teams.append(apart)
        for team in teams:
            counts = range(CORES if team is within else 2, len(team) + 1)
            found |= {tuple(team[:k]): None for k in counts if k <= CORES or k % CORES == 0 or k == len(team)}
        if hosts[head] != device and problem.machine.queues:
            found |= {tuple(within) * k: None for k in IN_TURNS if len(within) * k > 1}
    return [team for team in found if len(team) <= MAX_PARTS]
