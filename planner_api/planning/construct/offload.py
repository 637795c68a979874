"""Two tiers: the device and one other host. Neurosurgeon cuts a chain in two, DADS cuts a graph by a minimum cut.

Both minimise the sum of all times and moves, data never comes back before the end, and with several other hosts each
is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import networkx as nx
import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.construct.tiers import Tiers, tiers_of
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem


def neurosurgeon(problem: Problem, budget: Budget) -> Solution:
    """Kang et al. 2017: what stands before one point of the network runs on the device, the rest elsewhere.

    Of a network that branches, its topological order is the chain; everything that crosses the point is moved.

    Raises:
        PlanningError: an op cannot get its inputs where it is placed.
    """
    return _best(problem, "neurosurgeon", chain_cut)


def dads(problem: Problem, budget: Budget) -> Solution:
    """Hu et al. 2019, for a load that leaves room (DADS's latency mode): the minimum cut between device and host.

    Raises:
        PlanningError: an op cannot get its inputs where it is placed.
    """
    return _best(problem, "dads", minimum_cut)


def _best(problem: Problem, name: str, cut: Callable[[Tiers, int], list[int]]) -> Solution:
    """By the sum that the methods minimise, the best of all hosts; scored by the simulator."""
    tiers = tiers_of(problem)
    others = range(1, tiers.us.shape[1])
    found = [cut(tiers, other) for other in others] or [[0] * len(tiers.us)]
    return Solution(tiers.schedule(min(found, key=lambda tier: offloaded_us(tiers, tier))), name)


def offloaded_us(tiers: Tiers, tier: Sequence[int]) -> float:
    """All ops' times, and the moves of every tensor to each tier that reads it, once, and home."""
    lists = tiers.problem.lists
    total = sum(float(tiers.us[op, there]) for op, there in enumerate(tier))
    for tensor, readers in enumerate(lists.readers):
        made = tiers.made_on(tensor, tier)
        targets = {tier[op] for op in readers} | ({0} if tiers.problem.is_output[tensor] else set())
        total += sum(float(tiers.move_us[tensor, made, target]) for target in targets)
    return total


def chain_cut(tiers: Tiers, other: int) -> list[int]:
    """The best point of the topological order; behind it everything runs on the other tier."""
    lists = tiers.problem.lists
    place = {op: turn for turn, op in enumerate(lists.order)}
    near, far = tiers.us[lists.order, 0], tiers.us[lists.order, other]
    # us[cut]: with so many ops on the device.
    us = np.append(0.0, np.cumsum(near)) + np.append(np.cumsum(far[::-1])[::-1], 0.0)
    for tensor, readers in enumerate(lists.readers):
        producer = lists.producer[tensor]
        made = place[producer] if producer >= 0 else -1
        read = max((place[op] for op in readers), default=made)
        us[made + 1 : read + 1] += tiers.move_us[tensor, 0, other]
        if tiers.problem.is_output[tensor]:
            us[: made + 1] += tiers.move_us[tensor, other, 0]
    cut = int(np.argmin(us))
    return [0 if place[op] < cut else other for op in range(len(place))]


def minimum_cut(tiers: Tiers, other: int) -> list[int]:
    """Source: the device; sink: the other tier. What is cut are the times of the ops there, and the moves between."""
    lists, graph = tiers.problem.lists, nx.DiGraph()

    def edge(one: object, another: object, us: float) -> None:
        """An edge; without a capacity it cannot be cut."""
        graph.add_edge(one, another, **({} if math.isinf(us) else {"capacity": us}))

    for op, writes in enumerate(lists.writes):
        home = sum(float(tiers.move_us[tensor, other, 0]) for tensor in writes if tiers.problem.is_output[tensor])
        edge("device", op, float(tiers.us[op, other]) + home)
        edge(op, "other", float(tiers.us[op, 0]))
        for earlier in lists.before[op]:
            edge(op, earlier, math.inf)  # data does not come back
    for tensor, readers in enumerate(lists.readers):
        maker = lists.producer[tensor]
        edge("device" if maker < 0 else maker, ("moved", tensor), float(tiers.move_us[tensor, 0, other]))
        for op in readers:
            edge(("moved", tensor), op, math.inf)
    try:
        _, (near, _) = nx.minimum_cut(graph, "device", "other")
    except nx.NetworkXUnbounded:  # an op that neither supports
        return [0] * len(lists.writes)
    return [0 if op in near else other for op in range(len(lists.writes))]
