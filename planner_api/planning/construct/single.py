"""Every op on one processor: the plans that no other plan may be worse than (design promise 1). And all on one host.

Between hosts a move costs more than most ops: a search that moves a few ops at a time finds no way from one host to
another, and begins on the best of them.
"""

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.judge.simulator import Schedule, in_start_order, simulate
from planner_api.planning.methods import Solution
from planner_api.planning.methods import solve as solve_named
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.feasible import prune
from planner_api.planning.problem.symmetry import equal_processors

WAYS = ("single", "heft", "grain", "greedy")
"""Constructive methods that each host is planned by."""


def singles(problem: Problem) -> list[tuple[list[int], Schedule]]:
    """The classes of equal processors that can run the whole graph alone, each with the schedule on its first one."""
    n, order = len(problem.ops), problem.lists.order
    found = ((members, simulate(problem, members[:1] * n, order)) for members in equal_processors(problem))
    return [(members, in_start_order(problem, plan)) for members, plan in found if plan.makespan_us < math.inf]


def solve(problem: Problem, budget: Budget) -> Solution:
    plans = singles(problem)
    if not plans:
        raise PlanningError("no processor runs every op of the graph alone")
    return Solution(min((plan for _, plan in plans), key=lambda plan: plan.value_us), "single")


def one_host(problem: Problem, budget: Budget) -> Solution:
    """The best plan of one host, whichever that is; scored by the simulator."""
    machine = problem.machine
    hosts = machine.owners[machine.place]
    found = []
    for host in np.unique(hosts).tolist():
        latency = np.where(hosts == host, problem.latency_us, np.inf)
        if not np.isfinite(latency).any(axis=1).all():
            continue
        with suppress(PlanningError):  # what this host cannot do another may
            alone = prune(replace(problem.whole, latency_us=latency))
            for way in WAYS:
                with suppress(PlanningError):
                    schedule = solve_named(alone, way, budget).schedule
                    found.append(simulate(problem, schedule.assignment, schedule.sequence))
    if not found:
        raise PlanningError("no host runs every op of the graph alone")
    return Solution(min(found, key=lambda schedule: schedule.value_us), "one_host")
