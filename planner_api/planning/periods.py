"""Networks that run again and again, as a problem sees them: one job per run within the hyperperiod."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hope_schema import Objective
from hope_schema.periods import runs
from planner_api.planning.bound.trivial import longest, smallest_parts
from planner_api.planning.problem import Job, PlanningError, Problem


def unrolled(jobs: Sequence[Job], objective: Objective) -> list[tuple[int, Job]]:
    """Return every run of some jobs within their hyperperiod, each with the index of its job.

    For the throughput no run waits for its release, and none is due.

    Raises:
        PlanningError: there are more than a plan holds.
    """
    try:
        counts = runs([job.period_us for job in jobs])
    except ValueError as error:
        raise PlanningError(str(error)) from error
    found = []
    for index, (job, count) in enumerate(zip(jobs, counts, strict=True)):
        for run in range(count):
            later = run * (job.period_us or 0.0)
            release, due = job.release_us + later, None if job.deadline_us is None else job.deadline_us + later
            if objective == "throughput":
                release, due = 0.0, None
            found.append((index, replace(job, release_us=release, deadline_us=due, run=run)))
    return found


def check_periods(problem: Problem) -> None:
    """Refuse a network that begins anew before one run of it can be over.

    Raises:
        PlanningError: its period is shorter than its longest path on the fastest processors, of parts where ops may be
            cut.
    """
    if all(job.period_us is None for job in problem.jobs):
        return
    period = np.array([math.inf if job.period_us is None else job.period_us for job in problem.jobs])[problem.job_of]
    finish = np.array(longest(problem, problem.latency_us.min(axis=1).tolist()))
    if (finish > period).any() and problem.choices.possible:  # smallest parts take long to work out
        finish = np.array(longest(problem, smallest_parts(problem).min(axis=1).tolist()))
    if (late := np.flatnonzero(finish > period)).size:
        least, most = finish[late[0]], period[late[0]]
        raise PlanningError(f"a network with a period of {most:g} µs takes at least {least:g} µs by itself")
