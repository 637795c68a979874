"""Hosts in a row, each with one way to run every op: what the methods of device, edge and cloud see of a problem.

Neurosurgeon and DADS know two of them, the device and one other host: the one cuts a chain in two, the other a graph by
a minimum cut. Both minimise the sum of all times and moves, data never comes back before the end, and with several
other hosts each is tried.

D3's horizontal partition algorithm (HPA) knows all of them. An op goes to no tier before the earliest of those that it
reads from. One that shrinks its data goes where it and its inputs' moves take least; one that does not is placed
together with its longest successor. Then ops that read no more than another one follow that to its tier, for all they
need is there (*subset input siblings*). Three slips of the paper are mended: a sibling may lie in an earlier layer, and
what reads from it is then looked at again; a sibling moves only to where it is supported; sizes are compared by what
moving them takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.construct.listing import layers, listed
from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.methods import Solution
from planner_api.planning.problem import FloatArray, IntArray, PlanningError, Problem

UNDECIDED = -1


@dataclass(frozen=True)
class Tiers:
    """n ops on K tiers, T tensors; the device is the first tier, of the others the slower ones come first.

    Attributes:
        processor: (n, K) where an op runs on a tier: on the processor that is best for the whole network, or, where
            that does not support it, on the tier's fastest.
        us: (n, K) how long it takes there; ``inf`` where nothing supports it.
        move_us: (T, K, K) what moving a tensor from tier to tier takes, over all links on the way.
    """

    problem: Problem
    processor: IntArray
    us: FloatArray
    move_us: FloatArray

    def made_on(self, tensor: int, tier: Sequence[int]) -> int:
        """The tier where a tensor is made; the network's inputs are on the device."""
        producer = self.problem.lists.producer[tensor]
        return tier[producer] if producer >= 0 else 0

    def fetch_us(self, op: int, there: int, tier: Sequence[int]) -> float:
        """What moving all that an op reads to a tier takes, where its makers are as ``tier`` says."""
        moves = (self.move_us[tensor, self.made_on(tensor, tier), there] for tensor in self.problem.lists.reads[op])
        return float(sum(moves))

    def schedule(self, tier: Sequence[int]) -> Schedule:
        """The plan of a placement, in list order, as every other plan is timed.

        Raises:
            PlanningError: an op is nowhere supported there, or cannot get what it reads.
        """
        home = self.processor[np.arange(len(tier)), list(tier)].tolist()
        schedule = listed(self.problem, home)
        if math.isinf(schedule.makespan_us):
            raise PlanningError("a placement by tiers leaves an op where it cannot run, or cannot get its inputs")
        return schedule


def tiers_of(problem: Problem) -> Tiers:
    machine = problem.machine
    owner = machine.owners
    hosts = owner[machine.place]
    known = np.isfinite(problem.latency_us)
    total = np.where(known, problem.latency_us, 0.0).sum(axis=0)
    best: list[int] = []
    for host in np.unique(hosts).tolist():
        own = np.flatnonzero(hosts == host)
        best.append(min(own.tolist(), key=lambda p: (-int(known[:, p].sum()), float(total[p]))))
    device = int(owner[machine.host])
    best.sort(key=lambda p: (hosts[p] != device, -float(total[p])))
    columns = []
    for p in best:
        others = np.where(hosts == hosts[p], problem.latency_us, np.inf)
        columns.append(np.where(known[:, p], p, others.argmin(axis=1)))
    processor = np.stack(columns, axis=1)
    places = machine.place[best].copy()
    if hosts[best[0]] == device:
        places[0] = machine.host  # where inputs are, and outputs end
    return Tiers(
        problem=problem,
        processor=processor,
        us=np.take_along_axis(problem.latency_us, processor, axis=1),
        move_us=problem.transfer_us[:, places[:, None], places],
    )


def neurosurgeon(problem: Problem, budget: Budget) -> Solution:
    """Kang et al. 2017: what stands before one point of the network runs on the device, the rest elsewhere.

    Of a network that branches, its topological order is the chain; everything that crosses the point is moved.
    """
    return _best(problem, "neurosurgeon", chain_cut)


def dads(problem: Problem, budget: Budget) -> Solution:
    """Hu et al. 2019, for a load that leaves room (DADS's latency mode): the minimum cut between device and host."""
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
        """An edge; without a capacity it cannot be cut.

        NOTE: networkx finds edges that are full by comparing, so that capacities are whole numbers, of picoseconds.
        """
        graph.add_edge(one, another, **({} if math.isinf(us) else {"capacity": round(us * 1e6)}))

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


def hpa(problem: Problem, budget: Budget) -> Solution:
    """Zhang et al. 2021, section III-E: every op's tier, layer by layer."""
    tiers = tiers_of(problem)
    return Solution(tiers.schedule(partition(tiers)), "hpa")


def partition(tiers: Tiers) -> list[int]:
    ops = len(tiers.problem.lists.before)
    return partition_again(tiers, [UNDECIDED] * ops, range(ops))[0]


def partition_again(tiers: Tiers, before: Sequence[int], touched: Iterable[int]) -> tuple[list[int], set[int]]:
    """Every op's tier after some were touched, and the ops that were looked at for that.

    Those that were touched, the successors of all whose tier changes, and who reads all that one of these reads.

    Args:
        before: the tiers until now.
        touched: ops whose times have changed, or the times of moves that they decide about: of what they read and write
            or, where that grows, of what their successors do.
    """
    lists = tiers.problem.lists
    tier, looked = list(before), set(touched)
    for layer in layers(lists.order, lists.before):
        for op in layer:
            if any(tier[earlier] != before[earlier] for earlier in lists.before[op]):
                looked.add(op)
        for op in layer:
            if op in looked:
                looked |= {other for other in _behind(tiers, op) if _reads_no_more(tiers, op, other)}
        found = [op for op in layer if op in looked]
        for op in found:
            tier[op] = best_tier(tiers, op, tier)
        for op in found:
            _take_along(tiers, op, tier)
    return tier, looked


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


def _behind(tiers: Tiers, op: int) -> set[int]:
    """The others that read from one of those that an op reads from."""
    lists = tiers.problem.lists
    return {later for earlier in lists.before[op] for later in lists.after[earlier]} - {op}


def _reads_no_more(tiers: Tiers, op: int, other: int) -> bool:
    before = tiers.problem.lists.before
    return set(before[op]) <= set(before[other])


def _take_along(tiers: Tiers, op: int, tier: list[int]) -> None:
    """Let the siblings that read no more than an op follow it; who reads from them is looked at again."""
    lists = tiers.problem.lists
    for sibling in _behind(tiers, op):
        earlier = UNDECIDED < tier[sibling] < tier[op]
        if earlier and _reads_no_more(tiers, sibling, op) and tiers.us[sibling, tier[op]] < float("inf"):
            tier[sibling] = tier[op]
            for later in lists.after[sibling]:
                if tier[later] != UNDECIDED:
                    tier[later] = best_tier(tiers, later, tier)
