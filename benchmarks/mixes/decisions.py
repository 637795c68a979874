"""What a decision of a policy costs."""

from __future__ import annotations

from time import perf_counter_ns

from agent_sdk.scheduling.network import Network
from agent_sdk.scheduling.policies import LeastSlack
from agent_sdk.scheduling.scheduler import Scheduler

JOBS, PROCESSORS, ROUNDS = 10, 6, 300


def decision_us(units: int) -> float:
    """Microseconds of a decision: ten jobs of so many units wait for six processors, one of which is idle; the best."""
    keys = [(i, j, p) for i in range(units) for j in range(i, units) for p in range(PROCESSORS)]
    networks = [Network(f"n{n}", units, PROCESSORS, dict.fromkeys(keys, 1000 + n)) for n in range(JOBS)]
    best = float("inf")
    for _ in range(ROUNDS):
        scheduler = Scheduler(LeastSlack(), [1 << index for index in range(PROCESSORS)])
        for busy in range(PROCESSORS - 1):
            scheduler.submit(networks[busy], 0, deadline_ns=1)
        scheduler.decide(0)
        for network in networks:
            scheduler.submit(network, 0, deadline_ns=10**9)
        begun = perf_counter_ns()
        scheduler.decide(10)
        best = min(best, (perf_counter_ns() - begun) / 1e3)
    return best
