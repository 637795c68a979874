"""What plans take in the mean where runs are not alike, against an independent Monte-Carlo, and what is made of it."""

from __future__ import annotations

import importlib
import math
import random
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hope_schema import LatencyColumns, Overheads, Processor, Profile, merge
from planner_api.planning import Budget, Problem, optimise, plan, simulate
from planner_api.planning.again import schedule_of
from planner_api.planning.auto import solve as auto
from planner_api.planning.methods import Solution
from planner_api.planning.native import NotBuilt
from planner_api.planning.problem import FloatArray, Job, PlanningError
from planner_api.planning.problem.build import build_problem
from planner_api.planning.problem.feasible import prune
from planner_api.planning.search import annealing, cuts
from planner_api.planning.search.replays import SIMULATED, Replays, expected, judged
from planner_api.planning.search.search import Search
from tests.agent.engine.generate import random_model
from tests.planning.cuttable import cuttable
from tests.planning.drawn import draw, shuffled
from tests.planning.machines import apart
from tests.planning.oracle import timing

RUNS = 600
"""Of the oracle."""


def varying(problem: Problem, spread: float | np.ndarray) -> Problem:
    """The problem on processors whose ops vary so much."""
    return replace(
        problem, machine=replace(problem.machine, spread=np.broadcast_to(spread, problem.host).astype(float).copy())
    )


@given(st.integers(0, 10**6))
@example(780393)  # a job of no ops
@settings(max_examples=12)
def test_means_are_those_of_runs_drawn_one_by_one(seed: int) -> None:
    """On any machine: lognormal latencies, each op's by itself, timed by the oracle, come to the same in the mean."""
    drawn = random.Random(seed)
    problem = varying(draw(seed, 9), np.array([drawn.uniform(0.0, 0.6) for _ in range(draw(seed, 9).host)]))
    assignment, sequence = shuffled(problem, seed)
    schedule = simulate(problem, assignment, sequence)
    if math.isinf(schedule.makespan_us) or problem.objective == "lateness":
        return
    told = expected(problem, schedule, 2048)
    spread = problem.machine.spread
    assert spread is not None
    deviations = [math.sqrt(math.log1p(spread[here] ** 2)) for here in assignment]
    found = []
    for _ in range(RUNS):
        latency = problem.latency_us.copy()
        for op, (here, deviation) in enumerate(zip(assignment, deviations, strict=True)):
            latency[op, here] *= drawn.lognormvariate(-(deviation**2) / 2, deviation)
        found.append(timing(replace(problem, latency_us=latency), assignment, sequence)[1])
    error = stdev(found) / math.sqrt(RUNS)
    assert told.makespan_us == pytest.approx(fmean(found), abs=5 * error + 0.01 * stdev(found) + 1e-9)


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_a_mean_is_above_what_means_come_to_and_grows_with_the_spread(seed: int) -> None:
    """Where ends are maxima of sums, of which the mean of a lane is what its ops are charged."""
    problem = draw(seed, 12, plain=True)
    assignment, sequence = shuffled(problem, seed)
    schedule = simulate(problem, assignment, sequence)
    means = [expected(varying(problem, spread), schedule, 512).makespan_us for spread in (0.0, 0.2, 0.4, 0.8)]
    assert means[0] == schedule.makespan_us
    assert all(mean >= schedule.makespan_us * (1 - 1e-9) for mean in means)
    assert all(narrow <= wide * (1 + 1e-3) for narrow, wide in pairwise(means))


@given(st.integers(0, 10**6))
@settings(max_examples=10)
def test_one_processor_takes_in_the_mean_what_it_is_charged(seed: int) -> None:
    """Factors of each op are stratified: what follows one another adds up exactly."""
    drawn = draw(seed, 12, most_processors=1, plain=True)
    problem = varying(replace(drawn, transfer_us=np.zeros_like(drawn.transfer_us)), 0.7)
    schedule = simulate(problem, *shuffled(problem, seed))
    assert expected(problem, schedule).makespan_us == pytest.approx(schedule.makespan_us, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_without_kernels_the_simulator_says_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: jobs, queues, shares and neighbours too; of no more replays than it has time for."""
    problem = varying(draw(seed, 20, rich=True), 0.3)
    schedule = simulate(problem, *shuffled(problem, seed))
    built = expected(problem, schedule, SIMULATED)

    def absent() -> None:
        raise NotBuilt("no compiler")

    monkeypatch.setattr(annealing, "library", absent)
    assert expected(problem, schedule) == expected(problem, schedule, SIMULATED) == built


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5])  # which have a plan
def test_a_spread_of_nothing_changes_no_plan(seed: int) -> None:
    """Whatever the method: schedules, values and bounds are those of runs that are alike."""
    problem = draw(seed, 25, rich=True)
    for method in ("auto", "heft", "single"):
        alike, still = (optimise(one, method, Budget(rounds=6)) for one in (problem, varying(problem, 0.0)))
        assert alike.solution.schedule == still.solution.schedule
        assert (alike.bound, alike.solution.value_us) == (still.bound, still.solution.value_us)


def forked() -> Problem:
    """A fork of two equal ops: side by side on two cores, or on both one after the other, a little later."""
    cores = np.array([[True, False], [False, True], [True, True]])
    machine = replace(
        apart(("p", "q", "both"), cores @ cores.T),
        place=np.zeros(3, dtype=np.int64),
        places=("cores", "host"),
        busy=np.full((2, 2), -1, dtype=np.int64),
        memory=np.zeros(3, dtype=np.int64),
    )
    return Problem(
        machine=machine,
        ops=("a", "b", "c", "d"),
        latency_us=np.array([[9.0, 9.0, 5.0], [60.0, 60.0, 31.0], [60.0, 60.0, 31.0], [9.0, 9.0, 5.0]]),
        producer=np.arange(4),
        reads=((), (0,), (0,), (1, 2)),
        is_output=np.array([False, False, False, True]),
        transfer_us=np.zeros((4, 2, 2)),
        tensors=("ta", "tb", "tc", "td"),
    )


def test_the_search_prefers_what_is_early_in_the_mean() -> None:
    """Two lanes win by 3 % where runs are alike; where single cores vary the later of two loses more than that."""
    problem = forked()
    alike = optimise(problem, "auto", Budget(rounds=20)).solution
    assert {alike.schedule.assignment[op] for op in (1, 2)} == {0, 1}
    real = varying(problem, np.array([0.5, 0.5, 0.0]))
    found = optimise(real, "auto", Budget(rounds=20)).solution
    assert found.schedule.assignment[1:3] == (2, 2)
    assert found.value_us == pytest.approx(72.0)
    assert expected(real, alike.schedule).makespan_us > 80.0


def test_a_search_of_few_ops_ends_though_no_mean_meets_the_bound() -> None:
    """A mean stays above the bound: a network of six ops would else be searched for as long as it may."""
    problem = varying(draw(0, 6, plain=True), 0.1)
    search = Search(problem, simulate(problem, *shuffled(problem, 0)), seed=0)
    search.run(Budget(rounds=20_000), 0.0)
    assert search.movable
    assert 0 < search.rounds < 2_000


def test_a_mean_asks_for_no_parts() -> None:
    """A plan of whole ops is replayed without working out how they could be cut, and takes the same."""

    def refuse(*_: object) -> FloatArray:
        raise AssertionError("a part was asked for")

    problem = varying(cuttable([[900.0, 1000.0]] * 4, [[], [0], [0], [1, 2]]), 0.3)
    problem = replace(problem, cutter=replace(problem.cutter, part_us=refuse))
    assert problem.cuttable
    schedule = simulate(problem, [0, 0, 1, 0], problem.lists.order)
    assert expected(problem, schedule) == expected(problem.whole, schedule)


def test_cuts_are_compared_by_their_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what its lanes find the search for cuts returns the plan that is earliest in the mean, which it says."""
    problem = forked()
    real = varying(problem, np.array([0.5, 0.5, 0.0]))
    lanes, both = (judged(real, optimise(one, "auto", Budget(rounds=20)).solution) for one in (problem, real))
    assert lanes.schedule.value_us < both.schedule.value_us
    found = iter((lanes, both))
    monkeypatch.setattr(cuts, "_lane", lambda *_: next(found))
    searched = cuttable([[100.0, 120.0], [80.0, 200.0]], [[], [0]])
    whole = optimise(searched.whole, "single", Budget(0.0)).solution.schedule
    assert cuts.search_cuts(searched, whole, Budget(rounds=1), 0.0) == both


def test_what_cuts_make_says_its_mean() -> None:
    """A plan with cuts is judged by replays of the ops that its cuts make."""
    problem = varying(cuttable([[100.0, 120.0], [80.0, 200.0]], [[], [0]]), 0.5)
    whole = optimise(problem.whole, "single", Budget(0.0)).solution.schedule
    found = cuts.search_cuts(problem, whole, Budget(rounds=20), 0.0)
    assert found is not None
    assert found.cut is not None
    assert found.expected == expected(found.cut, found.schedule)
    assert found.value_us > found.schedule.value_us


def test_a_hedged_plan_is_judged_by_what_is_predicted() -> None:
    """Its mean is that of the figures as they stand, not of those that it was cautious with."""
    problem = varying(draw(15, 12, most_processors=3, plain=True), 0.5)
    predicted = np.random.default_rng(15).uniform(0.1, 0.9, problem.latency_us.shape)
    problem = replace(problem, predicted_spread=predicted)
    found = auto(problem, Budget(rounds=3))
    assert any("hedged" in note for note in found.notes)
    assert found.expected == expected(problem, found.schedule)


def test_first_aid_says_its_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every method fails, the placement that is left is judged like others."""

    def fail(*_: object) -> Solution:
        raise PlanningError("no plan")

    problem = varying(forked(), 0.5)
    orchestrator = importlib.import_module("planner_api.planning.optimise")
    monkeypatch.setattr(orchestrator, "solve", fail)
    monkeypatch.setattr(orchestrator, "start", fail)
    monkeypatch.setattr(orchestrator, "singles", lambda _: [])
    found = optimise(problem, "heft", Budget(0.0)).solution
    assert found.method == "heft→any"
    assert found.expected == expected(problem, found.schedule)


@pytest.mark.parametrize("seed", [79, 219, 350])
def test_single_processors_are_told_by_their_means(seed: int) -> None:
    """As the plan beside them is, which takes no longer than any; equal ones take the same."""
    problem = varying(draw(seed, 12, rich=True), 0.5)
    outcome = optimise(problem, "heft", Budget(0.0))
    assert outcome.singles
    for one in outcome.singles.values():
        assert one.expected == expected(prune(problem), one.schedule)
        assert outcome.solution.value_us <= one.value_us


def test_every_job_has_an_end() -> None:
    """The last one too, where it has no ops."""
    problem = replace(varying(forked(), 0.5), jobs=(Job(), Job()))
    schedule = simulate(problem, [0, 0, 1, 0], [0, 1, 2, 3])
    told = expected(problem, schedule)
    assert told.job_us == (told.makespan_us, 0.0)


def test_the_order_of_a_plan_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round whose plan stands in the order of its starts replays what it found alone."""
    problem = varying(forked(), 0.5)
    judgements: list[int] = []
    timed = Replays.timed
    monkeypatch.setattr(Replays, "timed", lambda self, kernels: judgements.append(1) or timed(self, kernels))
    search = Search(problem, optimise(problem, "auto", Budget(rounds=20)).solution.schedule, 1)
    search.round()
    settled_us, before = search.value_us, len(judgements)
    for _ in range(10):
        search.round()
    assert search.value_us == settled_us
    assert len(judgements) - before <= 10


def test_a_plan_says_its_mean() -> None:
    """The plan's and its job's end are means over replays, its steps' times those of a run in which nothing varies."""
    model = random_model(random.Random(4), 40)
    cores = [
        Processor(id=name, runtime="r", version="1", threads=1, core_class=name, resources=(name,), place="host/r")
        for name in ("a", "b", "c")
    ]
    rows = list(dict.fromkeys((op.signature, core.kind) for op in merge(model.graph) for core in cores))
    drawn = random.Random(4)
    profile = Profile(
        soc="soc",
        frequency="fixed",
        processors=tuple(cores),
        latencies=LatencyColumns(
            signature=tuple(signature for signature, _ in rows),
            kind=tuple(kind for _, kind in rows),
            us=tuple(drawn.uniform(20.0, 60.0) for _ in rows),
            spread_us=(0.0,) * len(rows),
            count=(1,) * len(rows),
        ),
        version=1,
    )
    varied = profile.model_copy(update={"overheads": Overheads(spread={core.kind: 0.5 for core in cores})})
    made = plan(model.graph, varied, rounds=4)
    problem = build_problem(model.graph, varied)
    schedule = schedule_of(made, problem)
    assert made.makespan_us == pytest.approx(expected(problem, schedule).makespan_us)
    assert made.makespan_us == made.jobs[0].finish_us > max(step.finish_us for step in made.steps)
    still = profile.model_copy(update={"overheads": Overheads(spread={core.kind: 0.0 for core in cores})})
    assert plan(model.graph, still, rounds=4) == plan(model.graph, profile, rounds=4)
