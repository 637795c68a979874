"""Branches and their levels (PartitionTuner, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

from planner_api.planning.problem import Problem


@dataclass(frozen=True)
class Branch:
    """A maximal chain of ops (definition 1), in order.

    Branches of one ``level`` are parallel: they have the same input and the same output node (definition 2). Levels
    are numbered in an order in which every edge between two of them points forward.
    """

    id: int
    level: int
    ops: tuple[int, ...]


def branches(problem: Problem) -> list[Branch]:
    """The branches of a graph, in topological order of their heads."""
    lists = problem.lists
    chains: list[list[int]] = []
    home: dict[int, list[int]] = {}
    for op in lists.order:
        before = lists.before[op]
        if len(before) == 1 and len(lists.after[before[0]]) == 1:
            home[op] = home[before[0]]
        else:
            home[op] = []
            chains.append(home[op])
        home[op].append(op)
    levels: dict[object, int] = {}
    found = []
    for id_, chain in enumerate(chains):
        # A graph input is a node too.
        inputs = [tensor for tensor in lists.reads[chain[0]] if lists.producer[tensor] < 0]
        ends = (*lists.before[chain[0]], None, *sorted(inputs)), tuple(lists.after[chain[-1]])
        found.append(Branch(id_, levels.setdefault(ends, len(levels)), tuple(chain)))
    return found
