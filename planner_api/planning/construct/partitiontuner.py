"""PartitionTuner (Yu et al. 2023): the graph as branches, maximal chains, each mapped by dynamic programming.

Branches of one level, with the same input and output node, run side by side where they are on different processors, and
everything else runs in sequence. Its fused groups are super-ops, which were merged before.
"""

from collections import defaultdict

from planner_api.planning.budget import Budget
from planner_api.planning.construct.mosaic import sliced
from planner_api.planning.construct.rounds import in_rounds
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem


def branches(problem: Problem) -> list[list[int]]:
    """Maximal chains of ops (definition 1), in topological order of their heads."""
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
    return chains


def levels(problem: Problem) -> list[list[int]]:
    """The ops of parallel branches, which have the same input and output node (definition 2): in topological order,
    and so are the levels, for no edge between two of them points back.
    """
    lists = problem.lists
    found: dict[object, list[int]] = defaultdict(list)
    for chain in branches(problem):
        # A graph input is a node too.
        inputs = sorted(tensor for tensor in lists.reads[chain[0]] if lists.producer[tensor] < 0)
        found[(*lists.before[chain[0]], None, *inputs), tuple(lists.after[chain[-1]])] += chain
    place = {op: position for position, op in enumerate(lists.order)}
    return [sorted(ops, key=place.__getitem__) for ops in found.values()]


def solve(problem: Problem, budget: Budget) -> Solution:
    """Branch-wise dynamic programming, each branch given those before it, level after level."""
    home: dict[int, int] = {}
    for branch in branches(problem):
        home |= sliced(problem, branch, home)
    assignment = [home[op] for op in range(len(problem.ops))]
    return Solution(in_rounds(problem, assignment, levels(problem)), "partitiontuner", in_rounds=True)
