"""The most urgent op first: Band's orders on one processor, where they can be read off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner_api.planning import Budget, Job, Machine, Problem, simulate
from planner_api.planning.methods import solve
from planner_api.planning.search.search import Search


def two(first: Job, first_us: float, second: Job, second_us: float) -> Problem:
    """Two jobs of one op each on one processor."""
    return Problem(
        machine=Machine.apart(("p",)),
        ops=("first", "second"),
        latency_us=np.array([[first_us], [second_us]]),
        producer=np.array([-1, -1, 0, 1]),
        reads=((0,), (1,)),
        is_output=np.array([False, False, True, True]),
        transfer_us=np.zeros((4, 2, 2)),
        tensors=("x", "y", "a", "b"),
        job=np.array([0, 1]),
        jobs=(first, second),
        objective="lateness",
    )


@pytest.mark.parametrize("method", ["earliest_deadline", "least_slack"])
def test_slack_of_70_goes_before_slack_of_90(method: str) -> None:
    """Band's example: both take 10 and are due at 100 and 80; the second goes first."""
    schedule = solve(two(Job(deadline_us=100.0), 10.0, Job(deadline_us=80.0), 10.0), method, Budget(0.0)).schedule
    assert schedule.start_us == (10.0, 0.0)


@pytest.mark.parametrize(("method", "starts"), [("earliest_deadline", (10.0, 0.0)), ("least_slack", (0.0, 60.0))])
def test_a_long_job_has_less_slack_than_one_that_is_due_sooner(method: str, starts: tuple[float, float]) -> None:
    """The one goes by the deadline, the other by what is left of it."""
    schedule = solve(two(Job(deadline_us=100.0), 60.0, Job(deadline_us=80.0), 10.0), method, Budget(0.0)).schedule
    assert schedule.start_us == starts


@pytest.mark.parametrize("method", ["earliest_deadline", "least_slack"])
def test_a_job_that_is_not_released_holds_nobody_up(method: str) -> None:
    """However urgent it is, others run until it comes."""
    urgent, other = Job(release_us=30.0, deadline_us=40.0), Job(deadline_us=500.0)
    schedule = solve(two(urgent, 10.0, other, 20.0), method, Budget(0.0)).schedule
    assert schedule.start_us == (30.0, 0.0)


@pytest.mark.filterwarnings("error")
def test_a_search_leads_out_of_a_plan_that_never_ends() -> None:
    """Begun where a tensor cannot move, a search of the lateness comes to a plan that can be."""
    moves = np.zeros((3, 3, 3))
    moves[0, 0, 1] = moves[0, 1, 0] = np.inf
    problem = Problem(
        machine=Machine.apart(("p", "q")),
        ops=("a", "b", "c"),
        latency_us=np.array([[3.0, 4.0], [2.0, 2.0], [1.0, 1.0]]),
        producer=np.array([0, 1, 2]),
        reads=((), (0,), ()),
        is_output=np.array([False, True, True]),
        transfer_us=moves,
        tensors=("a", "b", "c"),
        job=np.array([0, 0, 1]),
        jobs=(Job(0.0, 5.0), Job(0.0, 2.0, 3.0)),
        objective="lateness",
    )
    begun = simulate(problem, [0, 1, 0], [0, 1, 2])
    assert math.isinf(begun.value_us)
    search = Search(problem, begun, 0)
    search.run(Budget(rounds=3), -math.inf)
    assert search.found("annealing").schedule.value_us == search.value_us == 0.0
