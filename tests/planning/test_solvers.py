"""One suite over every method: legal, never below the optimum, never above the best single processor, repeatable."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner_api.planning import Budget, Machine, PlanningError, Problem, check, optimise, simulate
from planner_api.planning.methods import METHODS, Method, Solution, UnknownMethod, features, solve
from planner_api.planning.problem.feasible import any_placement
from tests import CAMPAIGN
from tests.planning.drawn import draw, optimum

NAMES = tuple(METHODS)
ONE_A_HOST = frozenset({"single", "hpa", "vsm", "neurosurgeon", "dads"})
"""Methods that use one processor of each host."""


def work(seed: int) -> Budget:
    """Little, counted work: rounds for the search, so that the answer does not depend on this machine."""
    return Budget(rounds=3, seed=seed)


@pytest.mark.parametrize("method", NAMES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=200 if CAMPAIGN else 6)
def test_every_plan_is_legal_and_no_worse_than_the_best_single_processor(method: str, seed: int):
    """On random graphs of any kind on any machine: legal, at least the bound, at most the best processor alone."""
    problem = draw(seed, 14)
    try:
        outcome = optimise(problem, method, work(seed))
    except PlanningError:
        assert not np.isfinite(problem.transfer_us).all()  # the only reason for which draws have no plan
        return
    check(problem, outcome.solution.schedule)
    # Nothing is known of parts here, which some cannot do without.
    serves = features(problem) <= METHODS[method].serves and method != "codl"
    if np.isfinite(problem.transfer_us).all() and (outcome.singles or method != "single") and serves:
        assert not any("failed" in note for note in outcome.solution.notes)
    value = outcome.solution.schedule.value_us
    assert value >= outcome.bound.us
    assert all(value <= plan.value_us for plan in outcome.singles.values())


@pytest.mark.parametrize("method", NAMES)
@given(seed=st.integers(0, 10**6))
@example(seed=7731)  # jobs without a deadline, and a processor that no transfer leaves
@settings(max_examples=100 if CAMPAIGN else 4)
def test_no_bound_is_above_the_optimum_and_no_plan_below_it(method: str, seed: int):
    """Against trying everything: bound <= optimum <= makespan; a plan is found whenever one exists."""
    problem = draw(seed, 5, most_processors=3)
    best = optimum(problem)
    if math.isinf(best):
        with pytest.raises(PlanningError):
            optimise(problem, method, work(seed))
        return
    outcome = optimise(problem, method, work(seed))
    tolerance = 1e-9 * max(abs(best), 1.0)
    assert outcome.bound.us <= best + tolerance
    assert outcome.solution.schedule.value_us >= best - tolerance


@pytest.mark.parametrize("method", NAMES)
def test_the_same_seed_and_rounds_give_the_same_schedule(method: str):
    """Twice the same inputs, twice the same schedule, to the last bit."""
    for seed in (3, 8):
        problem = draw(seed, 40)
        try:
            one, two = (optimise(problem, method, work(seed)) for _ in range(2))
        except PlanningError:
            continue
        assert one.solution.schedule == two.solution.schedule
        assert one.bound == two.bound


@pytest.mark.parametrize("method", NAMES)
def test_every_method_respects_what_a_processor_supports(method: str):
    """Ops that only one processor supports are placed there by every method."""
    problem = draw(5, 30, most_processors=2, plain=True)
    latency = np.ones((len(problem.ops), 2))
    latency[::2, 0], latency[1::2, 1] = np.inf, np.inf
    pinned = Problem(
        ops=problem.ops,
        machine=Machine.apart(("even", "odd")),
        latency_us=latency[:, ::-1],
        producer=problem.producer,
        reads=problem.reads,
        is_output=problem.is_output,
        transfer_us=np.zeros((len(problem.tensors), 3, 3)),
        tensors=problem.tensors,
    )
    outcome = optimise(pinned, method, work(0))
    assert outcome.solution.schedule.assignment == tuple(op % 2 for op in range(len(problem.ops)))


@pytest.mark.parametrize("method", [method for method in NAMES if method not in ONE_A_HOST])
def test_independent_branches_are_spread(method: str):
    """Two equal, free-standing chains on two equal processors: methods that know parallelism halve the time."""
    n = 12
    problem = Problem(
        ops=tuple(f"op{op}" for op in range(n)),
        machine=Machine.apart(("p0", "p1")),
        latency_us=np.full((n, 2), 10.0),
        producer=np.arange(n),
        reads=tuple(() if op < 2 else (op - 2,) for op in range(n)),
        is_output=np.zeros(n, dtype=bool),
        transfer_us=np.where(np.eye(3, dtype=bool), 0.0, 1.0)[None].repeat(n, axis=0),
        tensors=tuple(f"t{op}" for op in range(n)),
    )
    makespan = optimise(problem, method, work(0)).solution.schedule.makespan_us
    assert makespan == (n * 10.0 if method in {"mosaic", "partitiontuner"} else n * 5.0)


@pytest.mark.parametrize("seed", range(1000 if CAMPAIGN else 10))
@pytest.mark.parametrize("method", ["auto", "greedy"])
def test_fuzz(method: str, seed: int):
    """Random graphs of up to 60 ops, 1 to 4 processors, any machine: no illegal plan, none worse than one processor."""
    problem = draw(10_000 + seed, 60)
    try:
        outcome = optimise(problem, method, Budget(rounds=2, seed=seed))
    except PlanningError:
        assert not np.isfinite(problem.transfer_us).all()
        return
    check(problem, outcome.solution.schedule)
    again = simulate(problem, outcome.solution.schedule.assignment, outcome.solution.schedule.sequence)
    assert again == outcome.solution.schedule
    value = again.value_us
    assert outcome.bound.us <= value
    assert all(value <= plan.value_us for plan in outcome.singles.values())


def test_ten_thousand_ops_are_planned():
    """The largest graphs go through the methods that answer at once."""
    n = 10_000
    problem = Problem(
        ops=tuple(f"op{op}" for op in range(n)),
        machine=Machine.apart(("p0", "p1")),
        latency_us=np.random.default_rng(0).uniform(1, 50, (n, 2)),
        producer=np.arange(n),
        reads=tuple((op - 3,) if op >= 3 else () for op in range(n)),
        is_output=np.zeros(n, dtype=bool),
        transfer_us=np.where(np.eye(3, dtype=bool), 0.0, 5.0)[None].repeat(n, axis=0),
        tensors=tuple(f"t{op}" for op in range(n)),
    )
    for method in ("greedy", "heft"):
        outcome = optimise(problem, method, Budget(0.0))
        assert outcome.bound.us <= outcome.solution.schedule.makespan_us
        assert all(outcome.solution.schedule.makespan_us < plan.makespan_us for plan in outcome.singles.values())


def test_an_unknown_method_is_an_error_that_lists_the_known_ones():
    """A method that does not exist never falls back in silence."""
    with pytest.raises(PlanningError, match="no method 'magic': choose one of single"):
        optimise(draw(1, 5, plain=True), "magic", Budget(0.0))
    with pytest.raises(PlanningError, match="no method"):
        solve(draw(1, 5, plain=True), "", Budget(0.0))


@pytest.mark.parametrize("budget", [{"seconds": math.nan}, {"seconds": -1.0}, {"seconds": math.inf}, {"rounds": -1}])
def test_a_budget_that_cannot_be_spent_is_an_error(budget: dict[str, float]):
    """NaN, negative and infinite budgets are refused before any work is done."""
    with pytest.raises(PlanningError, match="cannot be spent"):
        Budget(**budget)


def backwards(problem: Problem, budget: Budget) -> Solution:
    """A researcher's own method: every op on its last processor that supports it, in topological order."""
    home = [max(p for p, us in enumerate(row) if us < math.inf) for row in problem.lists.latency]
    return Solution(simulate(problem, home, problem.lists.order), "backwards")


def test_a_method_of_ones_own_is_named_or_put_into_the_table(monkeypatch: pytest.MonkeyPatch):
    """An entry ``module:function`` is a method, under its own name or a short one; one that does not exist is none."""
    problem = draw(3, 20, plain=True)
    expected = backwards(problem, Budget(0.0)).schedule
    entry = f"{__name__}:backwards"
    assert solve(problem, entry, Budget(0.0)).schedule == expected
    monkeypatch.setitem(METHODS, "mine", Method(entry))
    assert solve(problem, "mine", Budget(0.0)).schedule == expected
    with pytest.raises(UnknownMethod, match="no method 'nowhere:solve'"):
        solve(problem, "nowhere:solve", Budget(0.0))
    with pytest.raises(UnknownMethod, match="or MODULE:FUNCTION"):
        solve(problem, "nowhere", Budget(0.0))


def test_a_method_says_what_it_cannot_serve():
    """The integer program knows nothing of shares: who asks for it gets another plan, and the reason."""
    problem = replace(draw(3, 20, plain=True), share=None)
    shared = replace(problem, share=np.full(problem.latency_us.shape, 0.5))
    with pytest.raises(PlanningError, match="ilp knows nothing of shares"):
        solve(shared, "ilp", Budget(0.0))
    assert any("nothing of shares" in note for note in optimise(shared, "ilp", work(0)).solution.notes)


def test_any_placement_is_found_where_there_is_one():
    """Where channels are missing it is legal, and there is none only where the brute force finds none."""
    for seed in range(3000 if CAMPAIGN else 100):
        problem = draw(seed, 5, most_processors=3, hosts=seed % 3 > 0)
        try:
            placement = any_placement(problem)
        except PlanningError:
            assert math.isinf(optimum(problem))
        else:
            assert math.isfinite(simulate(problem, placement, problem.lists.order).makespan_us)
