"""Earliest finish where groups of cores nest: how many cores an op takes is settled for a stretch of ops at a time.

Where runtimes are offered on all cores, halves, quarters, ..., the earliest finish of one op alone is nearly always on
the most cores, so that all ops follow one another, though two on half of the cores take less than one after the other
on all. So a stretch of ops is placed once per grain, on processors that take equally many resources, and the grain
stays on which the stretch ends first: all cores for the stem of a network, halves or quarters for its branches. Where
no groups nest this is `finish`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.construct.finish import placed
from planner_api.planning.construct.listing import by_rank, upward_rank
from planner_api.planning.judge.simulator import Decoder
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Problem

STRETCH: Final = 10
"""Ops that are placed on one grain: about a cell's branches. Of 5 to 80, 10 and 20 gave the shortest plans."""


def grains(problem: Problem) -> list[frozenset[int]]:
    """The processors by how many resources they take, most first; one that shares none with another grain is in all."""
    size = problem.machine.uses.sum(axis=1)
    rivals = problem.conflicts & (size[:, None] != size)
    apart = ~rivals.any(axis=1)
    nested = sorted(set(size[~apart].tolist()), reverse=True)
    return [frozenset(np.flatnonzero((size == grain) | apart).tolist()) for grain in nested] or [
        frozenset(range(problem.host))
    ]


def solve(problem: Problem, budget: Budget) -> Solution:
    """Ops by descending upward rank, stretch by stretch on the grain that ends it first.

    Raises:
        PlanningError: an op's inputs cannot reach any processor that supports it.
    """
    order = by_rank(problem, upward_rank(problem))
    decoder, choices = Decoder(problem), grains(problem)
    length = STRETCH if len(choices) > 1 else len(order)
    for first in range(0, len(order), length):
        tries = [placed(decoder.copy(), order[first : first + length], grain) for grain in choices]
        decoder = min(tries, key=lambda one: one.latest)
    return Solution(decoder.schedule(), "grain")
