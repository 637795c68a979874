"""HOPE:GS: node merging (section 3.2), then greedy search over the top K ready ops (Algorithm 2)."""

import heapq
import math
from collections.abc import Sequence
from graphlib import TopologicalSorter

import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import listed
from planner_api.planning.judge.simulator import Decoder, Times
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


def best_mapping(decoder: Decoder, batch: Sequence[list[int]]) -> list[Times] | None:
    """Where the groups of a batch go so that the last of them ends first, then all of them early; of all P^K mappings.

    The decoder is left as it was; None where no mapping serves them all.
    """
    latency = decoder.lists.latency
    able = []
    for group in batch:
        rows = zip(*[latency[op] for op in group], strict=True)
        able.append([p for p, row in enumerate(rows) if max(row) < math.inf])
    path: list[Times] = []
    best: tuple[float, float, list[Times] | None] = (math.inf, math.inf, None)

    def descend(depth: int, latest: float, total: float) -> None:
        """Try every processor for the next group; prefixes that already end too late are dropped."""
        nonlocal best
        group = batch[depth]
        soon = decoder.soonest(group[0], able[depth])
        if len(group) > 1:
            soon = sorted([(us + sum([latency[op][p] for op in group[1:]]), p) for us, p in soon])
        for soonest, processor in soon:
            if (max(latest, soonest), total + soonest) >= best[:2]:
                break
            for op in group[:-1]:
                path.append(decoder.times(op, processor))
                decoder.append(path[-1])
            path.append(decoder.times(group[-1], processor))
            end = path[-1].finish
            if (max(latest, end), total + end) < best[:2]:
                if depth + 1 == len(batch):
                    best = (max(latest, end), total + end, list(path))
                else:
                    decoder.append(path[-1])
                    descend(depth + 1, max(latest, end), total + end)
                    decoder.take_back()
            for _ in group[:-1]:
                decoder.take_back()
            del path[-len(group) :]

    descend(0, 0.0, 0.0)
    return best[2]


def solve(problem: Problem, budget: Budget) -> Solution:
    """Batches of the K ready groups with the earliest start, each batch mapped at its best; scored by the simulator."""
    lists = problem.lists
    groups = super_ops(problem)
    decoder = Decoder(problem)
    home = {op: index for index, group in enumerate(groups) for op in group}
    sorter = TopologicalSorter(
        {i: {home[earlier] for op in group for earlier in lists.before[op]} - {i} for i, group in enumerate(groups)}
    )
    sorter.prepare()
    queue = [(0.0, index) for index in sorted(sorter.get_ready())]
    k = top_k(problem.host)
    while queue:
        batch = [heapq.heappop(queue)[1] for _ in range(min(k, len(queue)))]
        mapping = best_mapping(decoder, [groups[index] for index in batch])
        if mapping is None:
            name = problem.ops[groups[batch[0]][0]]
            raise PlanningError(f"op '{name}' or one beside it cannot get its inputs on a processor that supports it")
        for times in mapping:
            decoder.append(times)
        sorter.done(*batch)
        for index in sorter.get_ready():
            ready = max(decoder.finish[earlier] for earlier in lists.before[groups[index][0]])
            heapq.heappush(queue, (ready, index))
    again = listed(problem, decoder.home)
    return Solution(min(decoder.schedule(), again, key=lambda schedule: schedule.makespan_us), "greedy")
