"""HOPE:GS: node merging (section 3.2), then greedy search over the top K ready ops (Algorithm 2)."""

from __future__ import annotations

import heapq
import math

import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import list_order
from planner_api.planning.construct.partial import Partial
from planner_api.planning.judge.simulator import simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import PlanningError, Problem

MAPPINGS = 27
"""Most mappings tried per batch. It makes K 4 for two processors and 3 for three, as HOPE sets it."""


def top_k(processors: int) -> int:
    """K: how many ops are mapped at once (HOPE section 3.1)."""
    return 4 if processors <= 2 else max(1, int(math.log(MAPPINGS + 0.5, processors)))


def super_ops(problem: Problem) -> list[list[int]]:
    """Merge short ops into the op before them (HOPE section 3.2).

    An op with one predecessor joins it when its mean latency is below the cheapest transfer of what it reads: it
    is not worth moving. Each group is a chain in topological order; its members run on one processor.
    """
    lists, host = problem.lists, problem.host
    between, pairs = problem.between_us
    cheapest = np.where(pairs > 0, between, math.inf).min(axis=(1, 2)).tolist()
    supports = np.isfinite(problem.latency_us)
    count = supports.sum(axis=1)
    mean = (np.where(supports, problem.latency_us, 0.0).sum(axis=1) / count).tolist()
    common: list[int] = (supports @ (1 << np.arange(host, dtype=object))).tolist()
    members: dict[int, list[int]] = {}
    group = list(range(len(problem.ops)))
    for op in lists.order:
        if len(lists.before[op]) == 1:
            last = lists.before[op][0]
            home = group[last]
            if (
                members[home][-1] == last
                and common[home] & common[op]
                and all(mean[op] < cheapest[tensor] for tensor in lists.reads[op])
            ):
                members[home].append(op)
                common[home] &= common[op]
                group[op] = home
                continue
        members[op] = [op]
    return list(members.values())


_Option = tuple[int, float, float, list[tuple[int, float]], list[int]]
"""One group on one processor: the processor, when its inputs exist, how long it takes, what it fetches that others of
the batch may fetch too (tensor, cost), and the processor's rivals."""


class _Search:
    """The best mapping of one batch of groups by depth-first enumeration of all P^K of them.

    Groups of a batch do not depend on each other, so a mapping's cost needs only each group's ready time and
    duration on each processor, and which fetched tensors two of them share.
    """

    def __init__(self, problem: Problem, groups: list[list[int]]) -> None:
        lists = problem.lists
        self.problem, self.groups, self.partial = problem, groups, Partial(problem)
        self.reads: list[list[int]] = []
        self.choices: list[list[tuple[int, float]]] = []
        for group in groups:
            if len(group) == 1:
                self.reads.append(lists.reads[group[0]])
                totals = lists.latency[group[0]]
            else:
                own = {tensor for op in group for tensor in lists.writes[op]}
                self.reads.append(list(dict.fromkeys([t for op in group for t in lists.reads[op] if t not in own])))
                totals = [sum(column) for column in zip(*[lists.latency[op] for op in group], strict=True)]
            self.choices.append([(p, us) for p, us in enumerate(totals) if us < math.inf])

    def map(self, batch: list[int]) -> bool:
        """Place the groups of a batch, in the given order, so that the last of them finishes first."""
        seen: set[int] = set()
        shared: set[int] = set()
        for index in batch:
            shared.update(seen.intersection(self.reads[index]))
            seen.update(self.reads[index])
        self.options = [self._options(index, shared) for index in batch]
        self.best, self.best_total = math.inf, math.inf
        self.path, self.mapping = [0] * len(batch), [-1]
        self._descend(0, self.partial.free, 0.0, 0.0, frozenset())
        if self.best == math.inf:
            return False
        for index, processor in zip(batch, self.mapping, strict=True):
            for op in self.groups[index]:
                self.partial.place(op, processor)
        return True

    def _options(self, index: int, shared: set[int]) -> list[_Option]:
        first, partial, rivals = self.groups[index][0], self.partial, self.problem.lists.rivals
        ready = partial.ready(first)
        options: list[_Option] = []
        for processor, duration in self.choices[index]:
            common: list[tuple[int, float]] = []
            for tensor, cost in partial.missing(self.reads[index], processor):
                duration += cost
                if tensor in shared:
                    common.append((tensor, cost))
            options.append((processor, ready, duration, common, rivals[processor]))
        return options

    def _descend(
        self, depth: int, free: list[float], latest: float, total: float, fetched: frozenset[tuple[int, int]]
    ) -> None:
        """Try every processor for the group at ``depth``; prefixes that already end too late are dropped."""
        last = depth + 1 == len(self.options)
        for processor, ready, duration, shared, rivals in self.options[depth]:
            begin = free[processor]
            end = (begin if begin > ready else ready) + duration
            there = fetched
            if shared:
                end -= sum([cost for tensor, cost in shared if (tensor, processor) in fetched])
                there = fetched.union([(tensor, processor) for tensor, _ in shared])
            now = end if end > latest else latest
            if now > self.best or (now == self.best and total + end >= self.best_total):
                continue
            self.path[depth] = processor
            if last:
                if now < math.inf:
                    self.best, self.best_total, self.mapping = now, total + end, self.path.copy()
                continue
            after = free.copy()
            for rival in rivals:
                if end > after[rival]:
                    after[rival] = end
            self._descend(depth + 1, after, now, total + end, there)


def solve(problem: Problem, budget: Budget) -> Solution:
    """Batches of the K ready groups with the earliest start, each batch mapped at its best; scored by the simulator.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    lists = problem.lists
    groups = super_ops(problem)
    search = _Search(problem, groups)
    home = {op: index for index, group in enumerate(groups) for op in group}
    before = [{home[earlier] for op in group for earlier in lists.before[op]} - {i} for i, group in enumerate(groups)]
    after: list[list[int]] = [[] for _ in groups]
    for index, earlier in enumerate(before):
        for one in earlier:
            after[one].append(index)
    waiting = [len(earlier) for earlier in before]
    queue = [(0.0, index) for index, count in enumerate(waiting) if count == 0]
    k = top_k(problem.host)
    while queue:
        batch = [heapq.heappop(queue)[1] for _ in range(min(k, len(queue)))]
        if not search.map(batch):
            name = problem.ops[groups[batch[0]][0]]
            raise PlanningError(f"op '{name}' or one beside it cannot get its inputs on a processor that supports it")
        for index in batch:
            for later in after[index]:
                waiting[later] -= 1
                if waiting[later] == 0:
                    heapq.heappush(queue, (search.partial.ready(groups[later][0]), later))
    assignment = search.partial.home
    orders = (search.partial.sequence, list_order(problem, assignment))
    return Solution(min((simulate(problem, assignment, o) for o in orders), key=lambda s: s.makespan_us), "greedy")
