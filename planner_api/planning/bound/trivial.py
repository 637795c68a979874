"""The two bounds that need no solver: the critical path and the load."""

from __future__ import annotations

import networkx as nx

from planner_api.planning.problem import Problem
from planner_api.planning.solver import Bound


def critical_path(problem: Problem) -> Bound:
    """Longest path when every op runs on its fastest processor and nothing is ever transferred."""
    lists = problem.lists
    finish = problem.latency_us.min(axis=1).tolist()
    for op in lists.order:
        before = lists.before[op]
        if before:
            finish[op] += max([finish[earlier] for earlier in before])
    return Bound(max(finish), "critical-path")


def load(problem: Problem) -> Bound:
    """Total work at each op's fastest, shared by as many processors as can ever run at once.

    That number is at most the count of cliques in any cover of the conflict graph, here the smallest of a
    few greedy covers: of each clique at most one processor runs at a time.
    """
    free = nx.Graph()
    free.add_nodes_from(range(len(problem.processors)))
    free.add_edges_from(
        (one, two) for one in range(len(problem.processors)) for two in range(one) if not problem.conflicts[one, two]
    )
    strategies = ("largest_first", "smallest_last", "DSATUR")
    lanes = min(len(set(nx.greedy_color(free, strategy).values())) for strategy in strategies)
    return Bound(float(problem.latency_us.min(axis=1).sum()) / lanes, "load")


def trivial(problem: Problem) -> Bound:
    """The better of the two."""
    return max(critical_path(problem), load(problem), key=lambda bound: bound.us)
