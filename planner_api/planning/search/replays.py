"""What a plan is expected to take where runs are not alike: the mean over replays.

A plan is as late as the latest of its lanes, so where ops vary from run to run its mean is above the time for which
every op takes its mean (Jensen's inequality: for a placement and an order the end is a maximum of sums). A replay keeps
both and multiplies the latency of every op by a factor of its own: lognormal, of mean 1, with the standard deviation
that its processor's kind has (``Machine.spread``). The factors are the same for every plan (common random numbers), so
plans differ by what they are and not by what was drawn; of each op they are stratified, so that ops that follow one
another on one processor take together in the mean exactly what they are charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import NormalDist
from typing import Final

import numpy as np

from planner_api.planning.judge.simulator import Expected, Schedule, in_start_order, simulate, value_of
from planner_api.planning.methods import Solution
from planner_api.planning.native import NotBuilt
from planner_api.planning.problem import FloatArray, Problem
from planner_api.planning.search.annealing import Kernels

COUNT: Final = 128
"""Replays of which a plan's mean is told: it is then within half a per cent of what ten times as many say."""
SIMULATED: Final = 16
"""As many at most where no kernels were built: the simulator takes a hundred times as long for each."""
TOLD, SEARCHED = 0, 1
"""Seeds of the factors: what a search looks at is not what its plan is judged by, or it would find the luckiest."""


class Replays:
    """The factors of some replays of any plan of a problem.

    Args:
        problem: of n ops on P processors.
        count: how many replays.
        seed: of which factors each op gets in which of them.
    """

    def __init__(self, problem: Problem, count: int, seed: int) -> None:
        spread = problem.machine.spread
        assert spread is not None
        deviation = np.sqrt(np.log1p(spread**2))
        at = np.array([NormalDist().inv_cdf((k + 0.5) / count) for k in range(count)])
        drawn = np.exp(at[:, None] * deviation)
        self._factors = drawn / drawn.mean(axis=0)
        random = np.random.default_rng(seed)
        self._turns = random.permuted(np.tile(np.arange(count), (len(problem.ops), 1)), axis=1)
        self.count = count

    def factors(self, replay: int) -> FloatArray:
        """(n, P) what latencies are multiplied by in one of them."""
        found: FloatArray = self._factors[self._turns[:, replay]]
        return found

    def timed(self, kernels: Kernels) -> Iterator[float]:
        """Time the plan that kernels work on in each replay: `Kernels.evaluate`. In the end it is timed as it was."""
        vary = kernels.a.vary
        try:
            for replay in range(self.count):
                vary[:] = self.factors(replay)
                yield kernels.evaluate()
        finally:
            vary.fill(1.0)
            kernels.evaluate()


def varies(problem: Problem) -> bool:
    """Whether runs of a plan differ."""
    spread = problem.machine.spread
    return spread is not None and bool(spread.any())


def expected(problem: Problem, schedule: Schedule, count: int = COUNT) -> Expected:
    """What a schedule takes in the mean; what it says where nothing varies, or it has no end."""
    if not varies(problem) or math.isinf(schedule.makespan_us):
        return Expected(schedule.makespan_us, schedule.value_us, ends(problem, np.array(schedule.done_us)))
    rows = list(_done(problem.whole, schedule, count))  # no op of a schedule is cut, whatever could be
    jobs = np.array([ends(problem, row) for row in rows])
    return Expected(
        makespan_us=float(jobs.max(axis=1).mean()),
        value_us=float(np.mean([value_of(problem, row) for row in rows])),
        job_us=tuple(jobs.mean(axis=0).tolist()),
    )


def judged(problem: Problem, found: Solution) -> Solution:
    """A solution that knows what it takes in the mean, where runs are not alike."""
    return replace(found, expected=expected(found.cut or problem, found.schedule)) if varies(problem) else found


def settled(problem: Problem, found: Solution) -> Solution:
    """A solution as it is charged in the order of its starts: only such are compared."""
    return judged(problem, replace(found, schedule=in_start_order(found.cut or problem, found.schedule)))


def _done(problem: Problem, schedule: Schedule, count: int) -> Iterator[FloatArray]:
    """(n,) when the ops are done, for each replay: by the kernels, where they were built, else by the simulator."""
    try:
        kernels = Kernels(problem, schedule.assignment, schedule.sequence)
        for _ in Replays(problem, count, TOLD).timed(kernels):
            yield kernels.s.done.copy()
    except NotBuilt:
        replays = Replays(problem, min(count, SIMULATED), TOLD)
        for replay in range(replays.count):
            varied = replace(problem, latency_us=problem.latency_us * replays.factors(replay))
            yield np.array(simulate(varied, schedule.assignment, schedule.sequence).done_us)


def ends(problem: Problem, done: FloatArray) -> tuple[float, ...]:
    """When each job's last op is done; one of no ops is done at once."""
    return tuple(float(done[problem.job_of == job].max(initial=0.0)) for job in range(len(problem.jobs)))
