"""The lower bound that holds where ops may be cut.

It holds for plans in parts on `problem.choices`' grid and in tiles (`construct/vsm`). Bounds on whole ops no longer do:
an op may be spread over processors, and parts of one may follow parts of another without waiting for all of it. Two
arguments are left:

- *Load.* Whatever the cuts, the parts of an op cover its output, and a part takes no less of a processor's time than
  its share of the output at the best rate at which the processor computes any part of it. So a plan gives a fractional
  assignment of every op, and no resource works for less than what that puts on it: a linear program, whose optimum no
  plan is below. Slices, joins, moves and launches only add to it. Where that program is too large, the least work of
  each op is spread evenly over all resources: no assignment ends sooner.
- *Path.* Every part reads something of each op before it, so along any path of the graph there is a row of parts each
  of which waits for the one before, and none takes less than the smallest part of its op.

Behind the last of all work lies the way of an output to the host, where every op leads to one: at least the shortest.

What chains compute twice makes parts larger, never smaller. That a larger part takes no less is taken for granted, and
that tiles are computed at no better rate than the parts on the grid, or the op itself where none is offered.
"""

import numpy as np

from planner_api.planning.bound.interval import MOST_OPS
from planner_api.planning.bound.trivial import at_best_rate, evenly, longest, smallest_parts
from planner_api.planning.highs import Program, SolverFailed, run
from planner_api.planning.methods import Bound
from planner_api.planning.problem import FloatArray, Problem

MOST_CHOICES = 15_000
"""Pairs of op and processor above which the program takes longer than a plan that is not searched for cuts may."""


def fluid(problem: Problem) -> Bound:
    # Smallest parts take longer to work out than a plan without a search for cuts. Without that search they count as
    # nothing.
    least = smallest_parts(problem) if problem.cuttable else np.zeros(problem.latency_us.shape)
    finish = np.array(longest(problem, least.min(axis=1).tolist(), problem.release_us.tolist()))
    out = problem.export_us.min(axis=1)
    there = finish + out
    path = Bound(float((problem.weight * (there - problem.due_us)).max()), "path-of-parts")
    makes = np.unique(problem.producer[problem.is_output & (problem.producer >= 0)])
    dead = any(not after for op, after in enumerate(problem.lists.after) if op not in makes)
    done = _load(problem, at_best_rate(problem)) + (0.0 if dead else float(out[makes].min(initial=np.inf)))
    # The last job to end, whichever it is, ends no sooner.
    load = Bound(float((problem.weight * (done - problem.due_us)).min()), "fluid-load")
    return max(path, load, key=lambda bound: bound.us)


def _load(problem: Problem, whole: FloatArray) -> float:
    """The least time in which the resources can do all work, however it is spread."""
    if len(whole) > MOST_OPS or (whole.size > MOST_CHOICES and not problem.cuttable):
        return evenly(problem, whole)
    work, uses = whole * problem.shares, problem.machine.uses
    program = Program()
    time = program.column(0.0, np.inf, cost=1.0)
    spent: list[list[tuple[int, float]]] = [[] for _ in range(uses.shape[1])]
    for row in work:
        columns = []
        for processor in np.flatnonzero(np.isfinite(row)).tolist():
            columns.append(program.column(0.0, 1.0))
            for resource in np.flatnonzero(uses[processor]).tolist():
                spent[resource].append((columns[-1], -float(row[processor])))
        program.row([(column, 1.0) for column in columns], 1.0, 1.0)
    for terms in spent:
        program.at_least([(time, 1.0), *terms], 0.0)
    try:
        # What rounding may have taken in its favour is given back.
        return run(program).objective * (1 - 1e-7)
    except SolverFailed:
        return 0.0
