"""The two bounds that need no solver: the critical path and the load."""

from __future__ import annotations

import numpy as np

from planner_api.planning.bound.longest import longest
from planner_api.planning.methods import Bound
from planner_api.planning.problem import Problem


def critical_path(problem: Problem) -> Bound:
    """Longest path when every op runs on its fastest processor and nothing is ever transferred."""
    finish = np.array(longest(problem, problem.latency_us.min(axis=1).tolist(), problem.release_us.tolist()))
    return Bound(float((problem.weight * (finish - problem.due_us)).max()), "critical-path")


def load(problem: Problem) -> Bound:
    """The least work of each op, in shares of what it occupies, spread evenly over all resources."""
    uses = problem.machine.uses.sum(axis=1)
    work = problem.latency_us * problem.shares * uses
    finish = float(work.min(axis=1).sum()) / problem.machine.uses.shape[1]
    # The last job to end, whichever it is, ends no sooner.
    return Bound(float((problem.weight * (finish - problem.due_us)).min()), "load")


def trivial(problem: Problem) -> Bound:
    """The better of the two, for plans of whole ops."""
    return max(critical_path(problem), load(problem), key=lambda bound: bound.us)
