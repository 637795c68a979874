"""CoDL (Jia et al. 2022): every op split over two processors at its best ratio and dimension, some of them in chains.

Per op (its section 4.2) the dimension, output channels or height, and the ratio r on a grid of tenths that minimise
``T = T_trans + T_map + T_sync + max(T_A(r), T_B(1 - r))``, where r of 0 or 1 is one processor. ``T_trans`` is the move
of what both read: the whole input, or the rows of the halo. ``T_map + T_sync`` is taken as the cheapest move of
anything there and back.

Chains (its section 4.3, Algorithm 1, with the gain reset for every ratio): from each op that is in no chain yet, for
ratios within ``DELTA`` of its own, the next op is appended with the same dimension and ratio while that gains:
``T + pred(next) - T' >= 0``, T' being the sum over the chain, in which only the head moves and synchronises and each op
computes the rows that those behind it need. A chain stops at a branch; the longest gain is kept.

Its plan stands op by op and chain by chain; the simulator charges all moves as they are.
"""

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from hope_schema import Cut
from hope_schema.cutting import CutError, Node, Region, regions
from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import in_better_order
from planner_api.planning.methods import Solution
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.choices import TENTHS, Team
from planner_api.planning.problem.cuts import cut_problem, homes_of

DELTA = 1
"""Tenths by which a chain's ratio may differ from its head's."""


@dataclass(frozen=True)
class _Choice:
    """How one op is computed, and what that takes by the formula: a cut, or one processor."""

    us: float
    cut: Cut | None
    tenths: int
    home: int


class _Planner:
    def __init__(self, problem: Problem, pair: Team) -> None:
        self.problem, self.pair = problem, pair
        self.choices, self.cutter = problem.choices, problem.cutter
        a, b = (int(problem.machine.place[processor]) for processor in pair)
        there, back = problem.transfer_us[:, a, b], problem.transfer_us[:, b, a]
        moved = (there > 0) & np.isfinite(there) & (back > 0) & np.isfinite(back)
        self.sync_us = float(there[moved].min() + back[moved].min()) if moved.any() else 0.0
        self.ways = [(a, b), (b, a)]

    def alone(self, op: str) -> _Choice:
        """The faster of the two processors, or of any where neither runs it."""
        row = self.problem.latency_us[self.choices.index[op]]
        home = min(self.pair, key=lambda processor: row[processor])
        if math.isinf(row[home]):
            home = int(np.argmin(row))
        return _Choice(float(row[home]), None, 0, home)

    def best(self, op: str) -> _Choice:
        found = [self.alone(op)]
        for axis in self.choices.axes.get(op, ()):
            for tenths in range(1, TENTHS):
                if (cut := self.cut(op, axis, tenths)) is not None:
                    found.append(_Choice(self.predicted([cut]), cut, tenths, self.pair[0]))
        return min(found, key=lambda choice: choice.us)

    def cut(self, op: str, axis: int, tenths: int, *, chained: bool = False) -> Cut | None:
        return self.choices.cut(op, axis, (tenths / TENTHS, 1 - tenths / TENTHS), chained)

    def predicted(self, chain: list[Cut]) -> float:
        """What a chain takes, or an op on its own; ``inf`` where it cannot be."""
        nodes = [self.cutter.nodes[self.choices.index[cut.op]] for cut in chain]
        try:
            parts = regions(nodes, chain, self.cutter.shapes)
            total = self.sync_us + self.shared_us(chain[0].op, parts[chain[0].op])
            for cut in chain:
                op = self.choices.index[cut.op]
                pairs = zip(parts[cut.op], self.pair, strict=True)
                total += max(float(self.cutter.part_us(op, part)[processor]) for part, processor in pairs)
        except CutError:
            return math.inf
        return total

    def shared_us(self, op: str, parts: list[Region]) -> float:
        """What moving all that both parts read takes, in the cheaper direction."""
        node = self.cutter.nodes[self.choices.index[op]]
        one, two = (node.needs(part) for part in parts)
        total = 0.0
        for name in node.reads:
            shape, first, second = self.cutter.shapes[name], one.get(name), two.get(name)
            if first is not None and second is not None:
                both = first.meet(second)
                if both is None:
                    continue
                shape = both.shape(shape)
            costs = self.cutter.move_us(name, shape)
            total += min(float(costs[way]) for way in self.ways)
        return total

    def chains(self, own: dict[str, _Choice]) -> dict[str, list[Cut]]:
        """The chains that gain, by head: only channel-wise ops chain along the channels."""
        lists, nodes = self.problem.lists, self.cutter.nodes
        taken: set[str] = set()
        found: dict[str, list[Cut]] = {}
        for index in lists.order:
            head = nodes[index].id
            if head in taken or own[head].cut is None:
                continue
            ratios = range(own[head].tenths - DELTA, own[head].tenths + DELTA + 1)
            grown = [self.grown(head, tenths, own, taken) for tenths in ratios]
            _, chain = max(grown, key=lambda one: one[0])
            if len(chain) > 1:
                found[head] = chain
                taken.update(cut.op for cut in chain)
        return found

    def grown(self, head: str, tenths: int, own: dict[str, _Choice], taken: set[str]) -> tuple[float, list[Cut]]:
        """The chain from a head at a ratio, and what it gains over the ops' own best."""
        lists, nodes = self.problem.lists, self.cutter.nodes
        first = own[head].cut
        start = self.cut(head, first.axes[0], tenths) if first is not None and 0 < tenths < TENTHS else None
        if start is None:
            return 0.0, []
        chain, apart, op = [start], own[head].us, self.choices.index[head]
        best: tuple[float, list[Cut]] = (0.0, [])
        while len(lists.after[op]) == 1 and len(lists.before[lists.after[op][0]]) == 1:
            op = lists.after[op][0]
            name = nodes[op].id
            if name in taken or start.axes[0] not in self.choices.axes.get(name, ()):
                break
            cut = self.cut(name, start.axes[0], tenths, chained=True)
            if cut is None or not _continues(nodes[op], cut):
                break
            chain = [*chain, cut]
            apart += own[name].us
            gain = apart - self.predicted(chain)
            if not gain >= 0:
                break
            if gain > best[0]:
                best = gain, chain
        return best


def _continues(node: Node, cut: Cut) -> bool:
    """Whether a part of an op reads a part of what the op before it makes."""
    try:
        return None not in node.needs(Region.along(cut.axes[0], 0, cut.at[0][0])).values()
    except CutError:  # so small a part cannot be
        return False


def solve(problem: Problem, budget: Budget) -> Solution:
    """CoDL's plan for the pair of processors that would be fastest if ops could be split anywhere for nothing."""
    if not problem.cutter.nodes:
        raise PlanningError("codl cuts ops, and nothing is known of their parts here")
    pairs = [pair for pair in itertools.combinations(range(problem.host), 2) if not problem.machine.conflicts[pair]]
    if not pairs:
        raise PlanningError("codl splits ops over two processors that can work side by side")
    names = [node.id for node in problem.cutter.nodes]
    # What all ops take if two processors share each of them, both until its end; those that neither runs left out.
    speeds = [(1.0 / np.maximum(problem.latency_us[:, pair], 1e-9)).sum(axis=1) for pair in pairs]
    _, best = min((float((1.0 / speed[speed > 0]).sum()), pair) for speed, pair in zip(speeds, pairs, strict=True))
    planner = _Planner(problem, best)
    own = {name: planner.best(name) for name in names}
    chains = planner.chains(own)
    cuts = {name: choice.cut for name, choice in own.items() if choice.cut is not None}
    heads = {name: name for name in names}
    for head, chain in chains.items():
        cuts |= {cut.op: cut for cut in chain}
        heads |= {cut.op: head for cut in chain}
    homes = {name: planner.pair if name in cuts else (own[name].home,) for name in names}
    try:
        cut, pieces = cut_problem(problem, tuple(cuts.values()))
    except CutError as error:
        raise PlanningError(f"codl's cuts cannot be made: {error}") from error
    placement = homes_of(cut, pieces, homes)
    turns: dict[str, list[int]] = defaultdict(list)
    owner: dict[int, str] = {}
    for op in reversed(cut.lists.order):
        piece = pieces[op]
        if piece.kind in ("whole", "part"):
            owner[op] = heads[piece.op]
        else:
            # A slice or a join belongs to who reads it first, an output's to who made it.
            owner[op] = owner[cut.lists.after[op][0]] if cut.lists.after[op] else f">{piece.writes[0]}"
    for op in cut.lists.order:
        turns[owner[op]].append(op)
    schedule = in_better_order(cut, placement, list(itertools.chain(*turns.values())))
    return Solution(schedule, "codl", cuts=tuple(cuts.values()), cut=cut)
