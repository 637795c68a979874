"""Plans that rest on predictions: what hedging promises, against sums taken apart from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_api.planning.auto import solve as auto
from planner_api.planning.budget import Budget
from planner_api.planning.construct.single import singles
from planner_api.planning.judge.checker import check
from planner_api.planning.judge.simulator import simulate
from planner_api.planning.problem import Job, Machine, Problem, Recipe
from tests.planning.drawn import draw


def pairs(helper_us: float, spread: float, count: int = 6) -> Problem:
    """Pairs of ops one behind the other: certain on one processor, predicted on the other."""
    producer, reads = [], []
    for pair in range(count):
        producer += [3 * pair, 3 * pair + 1, 3 * pair + 2]
        before = [] if not pair else [3 * pair - 1]
        reads += [tuple(before), tuple(before), (3 * pair, 3 * pair + 1)]
    latency = np.array([[10.0, helper_us], [10.0, helper_us], [1.0, 500.0]] * count)
    return Problem(
        machine=Machine.apart(("core", "gpu")),
        ops=tuple(f"op{op}" for op in range(3 * count)),
        latency_us=latency,
        producer=np.array(producer),
        reads=tuple(reads),
        is_output=np.array([op == 3 * count - 1 for op in range(3 * count)]),
        transfer_us=np.zeros((3 * count, 3, 3)),
        tensors=tuple(f"t{op}" for op in range(3 * count)),
        predicted_spread=np.array([[0.0, spread]] * (3 * count)),
    )


@pytest.mark.parametrize(("spread", "helped"), [(0.0, True), (0.05, True), (1.0, False)])
def test_a_gain_that_hangs_on_a_doubtful_prediction_is_not_taken(spread: float, helped: bool) -> None:
    """A helper that gains a twentieth helps where that is sure, and stays idle where it may as well lose half."""
    found = auto(pairs(19.0, spread), Budget(rounds=5))
    assert (1 in found.schedule.assignment) == helped
    assert any("hedged" in note for note in found.notes) != helped


@pytest.mark.parametrize("weight", [1e-6, 1.0, 1e6])
def test_the_unit_of_weights_hedges_nothing_away(weight: float) -> None:
    """A job's lateness may count little or much: what a doubtful prediction may cost is bounded in its microseconds."""
    late = replace(pairs(19.0, 1.0), objective="lateness", jobs=(Job(deadline_us=50.0, weight=weight),))
    assert 1 not in auto(late, Budget(rounds=5)).schedule.assignment


def test_a_cautious_plan_is_legal_where_ops_have_recipes() -> None:
    """It is of the figures as they are predicted, though kernels could be chosen for ops that nobody hedges."""
    problem = pairs(19.0, 1.0)
    own = [Recipe(op, 0, -1, us, 0.6) for op, us in enumerate(problem.latency_us[:, 0].tolist())]
    others = [one._replace(number=2, us=1.3 * one.us, share=0.2) for one in own]
    problem = replace(problem, share=np.full(problem.latency_us.shape, 0.6), recipes=(*own, *others))
    found = auto(problem, Budget(rounds=10))
    assert any("hedged" in note for note in found.notes)
    check(found.cut or problem, found.schedule)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_what_a_hedged_plan_may_lose_is_bounded(seed: int) -> None:
    """Where all but the best processor are slower by two deviations it is a fifth worse than that one at most.

    It is legal, timed by the figures as predicted, and where the plan that believes them is bounded it is that plan.
    """
    random = np.random.default_rng(seed)
    problem = draw(seed, 12, most_processors=2, plain=True)
    trusting = auto(problem, Budget(rounds=3)).schedule
    spread = random.uniform(0.1, 0.9, problem.latency_us.shape)
    problem = replace(problem, predicted_spread=spread)
    alone = singles(problem)
    found = auto(problem, Budget(rounds=3)).schedule
    check(problem, found)
    members, best = min(alone, key=lambda one: one[1].value_us)
    same = (problem.latency_us == problem.latency_us[:, members[:1]]).all(axis=0)
    worst = replace(problem, latency_us=problem.latency_us * np.exp(2 * np.where(same, 0.0, spread)))
    ours, theirs = (simulate(worst, plan.assignment, plan.sequence).value_us for plan in (found, trusting))
    assert ours <= 1.2 * best.value_us * (1 + 1e-9)
    if theirs <= 1.2 * best.value_us:
        assert found == trusting
