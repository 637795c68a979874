"""PartitionTuner (Yu et al. 2023): the graph as branches, maximal chains, each mapped by dynamic programming.

Branches of one level, with the same input and output node, run side by side where they are on different processors, and
everything else runs in sequence. Its fused groups are super-ops, which were merged before.
"""

from collections import defaultdict
from dataclasses import dataclass

from planner_api.planning.budget import Budget
from planner_api.planning.construct.mosaic import sliced
from planner_api.planning.construct.rounds import in_rounds
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem


@dataclass(frozen=True)
class Branch:
    """A maximal chain of ops (definition 1), in order.

    Branches of one ``level`` are parallel: they have the same input and the same output node (definition 2). Levels
    are numbered in an order in which every edge between two of them points forward.
    """

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
    for chain in chains:
        # A graph input is a node too.
        inputs = [tensor for tensor in lists.reads[chain[0]] if lists.producer[tensor] < 0]
        ends = (*lists.before[chain[0]], None, *sorted(inputs)), tuple(lists.after[chain[-1]])
        found.append(Branch(levels.setdefault(ends, len(levels)), tuple(chain)))
    return found


def levels(problem: Problem) -> list[list[int]]:
    """Ops by level of their branches; within a level in topological order."""
    level = {op: branch.level for branch in branches(problem) for op in branch.ops}
    rounds: dict[int, list[int]] = defaultdict(list)
    for op in problem.lists.order:
        rounds[level[op]].append(op)
    return [rounds[number] for number in sorted(rounds)]


def solve(problem: Problem, budget: Budget) -> Solution:
    """Branch-wise dynamic programming, each branch given those before it, level after level."""
    home: dict[int, int] = {}
    for branch in branches(problem):
        home |= sliced(problem, branch.ops, home)
    assignment = [home[op] for op in range(len(problem.ops))]
    return Solution(in_rounds(problem, assignment, levels(problem)), "partitiontuner", in_rounds=True)
