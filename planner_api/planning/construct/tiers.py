"""What the methods of device, edge and cloud see of a problem: hosts in a row, each with one way to run every op."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner_api.planning.construct.listing import list_order
from planner_api.planning.judge.simulator import Schedule, simulate
from planner_api.planning.problem import FloatArray, IntArray, PlanningError, Problem


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

    def total_us(self, tier: Sequence[int]) -> float:
        """D3's objective: the sum of all ops' times and of all moves, each reader's for itself."""
        return sum(float(self.us[op, there]) + self.fetch_us(op, there, tier) for op, there in enumerate(tier))

    def schedule(self, tier: Sequence[int]) -> Schedule:
        """The plan of a placement, in list order, as every other plan is timed.

        Raises:
            PlanningError: an op is nowhere supported there, or cannot get what it reads.
        """
        home = self.processor[np.arange(len(tier)), list(tier)].tolist()
        schedule = simulate(self.problem, home, list_order(self.problem, home))
        if math.isinf(schedule.makespan_us):
            raise PlanningError("a placement by tiers leaves an op where it cannot run, or cannot get its inputs")
        return schedule


def tiers_of(problem: Problem) -> Tiers:
    """The hosts of a problem as tiers."""
    machine = problem.machine
    owner = np.zeros(len(machine.places), dtype=np.int64) if machine.owner is None else machine.owner
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
