"""The planner's own method and its parts against the simulator and a brute force that shares nothing with them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_sdk.model import read_model
from benchmarks.planning import synthetic_profile
from benchmarks.profiles import phone_problem
from hope_zoo import shipped
from planner_api.planning import budget, build_problem, optimise
from planner_api.planning.auto import CLOSED
from planner_api.planning.auto import solve as auto
from planner_api.planning.bound import lower_bound
from planner_api.planning.bound.trivial import trivial
from planner_api.planning.budget import Budget
from planner_api.planning.construct.single import singles
from planner_api.planning.exact import articulation
from planner_api.planning.exact.articulation import cut_ops, decompose, pieces, solve_pieces
from planner_api.planning.exact.constants import constant_ops, put_back, without
from planner_api.planning.judge.checker import check
from planner_api.planning.judge.simulator import simulate
from planner_api.planning.methods import solve
from planner_api.planning.problem import Machine, PlanningError, Problem
from planner_api.planning.search.annealing import Kernels
from planner_api.planning.search.search import Search
from tests import CAMPAIGN
from tests.planning.drawn import draw, optimum, shuffled
from tests.planning.machines import apart
from tests.planning.phones import phone

CASES = 1000 if CAMPAIGN else 24
seeds = st.integers(0, 2**32 - 1)


def exact(problem: Problem) -> float:
    """The optimum by the label dynamic program, which another test holds to the brute force."""
    result = decompose(problem, Budget(60.0))
    assert result is not None
    assert result.schedule is not None
    return result.schedule.makespan_us


@pytest.mark.parametrize("seed", [4, 119, 262])
def test_one_processor_by_itself_is_charged_as_plans_are(seed: int):
    """Ops that run at once on one processor slow each other: it, too, is timed in the order in which they start."""
    for one in optimise(draw(seed, 12, rich=True), "auto", Budget(rounds=1)).singles.values():
        begun_us = [one.schedule.start_us[op] for op in one.schedule.sequence]
        assert begun_us == sorted(begun_us)


@pytest.mark.parametrize("seed", [227, 228, 244])
def test_ours_is_no_worse_than_what_it_starts_from_where_neighbours_slow_each_other(seed: int):
    """A plan that looks shorter in another order than that of its starts takes the place of none that is shorter."""
    problem = draw(seed, 12, rich=True)
    assert (problem.machine.slowdown > 1.0).any()
    ours = optimise(problem, "auto", Budget(rounds=100, seed=seed)).solution
    for method in ("heft", "greedy", "grain", "dmdar"):
        other = optimise(problem, method, Budget(rounds=100)).solution
        assert ours.value_us <= other.value_us * (1 + 1e-9), method


def test_pieces_give_up_where_the_budget_is_spent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that have no plan long after the deadline are not planned at all: a budget is what others wait for."""
    problem, solved = draw(1, 30), []
    real = articulation._solve_piece
    monkeypatch.setattr(articulation, "_solve_piece", lambda *given: solved.append(0) or real(*given))
    assert decompose(problem, Budget(0.0)) is None
    assert not solved
    assert decompose(problem, Budget(60.0)) is not None
    assert solved


@settings(max_examples=CASES)
@given(seeds)
def test_evaluator_is_the_simulator_to_the_last_bit(seed: int) -> None:
    """Any placement in any order gets the same times from the kernel as from the simulator."""
    problem = draw(seed, 30, rich=seed % 4 > 0, hosts=seed % 4 > 1)
    assignment, sequence = shuffled(problem, seed)
    kernels = Kernels(problem, assignment, sequence)
    value, timed = kernels.evaluate(), kernels.s
    expected = simulate(problem, assignment, sequence)
    if math.isfinite(expected.makespan_us):
        assert timed.start.tolist() == list(expected.start_us)
        assert timed.finish.tolist() == list(expected.finish_us)
        assert timed.done.tolist() == list(expected.done_us)
        if problem.objective == "makespan":
            assert value == expected.value_us


@settings(max_examples=CASES)
@given(seeds)
def test_annealing_tracks_the_exact_makespan(seed: int) -> None:
    """What a window believes its best schedule takes is what the simulator says, and it is never worse than before."""
    problem = draw(seed, 60, plain=True)
    schedule = simulate(problem, *shuffled(problem, seed))
    search = Search(problem, schedule, seed)
    if not search.movable:
        return
    for _ in range(3):
        before = search.value_us
        believed = search.round(moves=300)
        assert search.value_us <= before
        assert believed == pytest.approx(search.value_us, rel=1e-9)
    found = search.found("test").schedule
    assert found.value_us == search.value_us
    check(problem, found)


def test_the_order_on_one_gpu_is_searched() -> None:
    """On a single processor that runs ops side by side, what begins when decides: a chain is best begun at once."""
    chained, beside = range(4), range(4, 8)
    problem = Problem(
        machine=Machine.apart(("gpu",)),
        ops=tuple("abcdefgh"),
        latency_us=np.full((8, 1), 10.0),
        producer=np.array([-1, *range(8)]),
        reads=(*((op,) for op in chained), *((0,) for _ in beside)),
        is_output=np.array([False] * 4 + [True] * 5),
        transfer_us=np.zeros((9, 2, 2)),
        tensors=tuple("xabcdefgh"),
        share=np.full((8, 1), 0.5),
    )
    late = simulate(problem, [0] * 8, [*beside, *chained])
    assert late.makespan_us == 60.0
    search = Search(problem, late, seed=0)
    search.run(Budget(rounds=20), target_us=40.0)
    assert search.found("test").schedule.makespan_us == 40.0


@settings(max_examples=CASES)
@given(seeds)
def test_pieces_add_up_to_the_optimum(seed: int) -> None:
    """Where no output is written early, the decomposition's plan and its bound both equal the brute force's optimum."""
    problem = draw(seed, 5, most_processors=3, hope=True)
    best = optimum(problem)
    result = decompose(problem, Budget(60.0))
    assert result is not None
    assert result.bound.us <= best * (1 + 1e-12)
    last = set(pieces(problem)[-1])
    early = any(out and problem.producer[t] not in last for t, out in enumerate(problem.is_output))
    if math.isfinite(best) and not early:
        assert result.schedule is not None
        assert result.schedule.makespan_us == pytest.approx(best, rel=1e-12)
        assert result.bound.us == pytest.approx(best, rel=1e-12)


def beside_idle_ones(problem: Problem, idle: int) -> Problem:
    """The problem on a device with more processors, numbered first, that support nothing."""
    n, p = problem.latency_us.shape
    transfer = np.ones((len(problem.tensors), idle + p + 1, idle + p + 1))
    transfer[:, idle:, idle:] = problem.transfer_us
    transfer[:, np.arange(idle), np.arange(idle)] = 0.0
    conflicts = np.eye(idle + p, dtype=bool)
    conflicts[idle:, idle:] = problem.machine.conflicts
    return replace(
        problem,
        machine=apart((*(f"idle{k}" for k in range(idle)), *problem.processors), conflicts),
        latency_us=np.hstack([np.full((n, idle), np.inf), problem.latency_us]),
        transfer_us=transfer,
    )


@settings(max_examples=CASES // 3)
@given(seeds)
def test_pieces_are_solved_on_many_processors(seed: int) -> None:
    """Twelve more processors that nothing can run on change neither plan nor proof; seventeen are left to others."""
    problem = draw(seed, 6, most_processors=3, plain=True)
    few, many = decompose(problem, Budget(60.0)), decompose(beside_idle_ones(problem, 12), Budget(60.0))
    assert few is not None
    assert many is not None
    assert many.bound.us == pytest.approx(few.bound.us, rel=1e-12)
    assert (few.schedule is None) == (many.schedule is None)
    if few.schedule is not None and many.schedule is not None:
        assert many.schedule.makespan_us == pytest.approx(few.schedule.makespan_us, rel=1e-12)
    assert decompose(beside_idle_ones(problem, 17 - len(problem.processors)), Budget(60.0)) is None


@settings(max_examples=CASES)
@given(seeds)
def test_no_bound_exceeds_the_optimum(seed: int) -> None:
    """Critical path, load, intervals and pieces stay below the best of all schedules, on any machine."""
    most_processors = 4 if seed % 4 == 0 else 3
    hosts = seed % 3 > 0
    problem = draw(seed, 3 if most_processors == 4 else 5, most_processors=most_processors, hosts=hosts)
    best = optimum(problem)
    best += 1e-9 * abs(best)
    assert trivial(problem).us <= best
    assert lower_bound(problem, Budget(60.0)).us <= best
    result = solve_pieces(problem, Budget(60.0))
    assert result is None or result.bound.us <= best


@pytest.mark.parametrize("least_us", [0.0, 5e-324, 1e-300, 1e-9])
def test_a_bound_survives_ops_that_take_next_to_nothing(least_us: float, caplog: pytest.LogCaptureFixture) -> None:
    """Beside figures of an hour, too: no figure overflows in the program's unit, and no solver refuses it."""
    problem = draw(7, 8, plain=True)
    latency = np.full(problem.latency_us.shape, 3.6e9)
    latency[:, 0] = least_us
    problem = replace(problem, latency_us=latency)
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        bound = lower_bound(problem, Budget(60.0))
    assert 0.0 <= bound.us <= solve(problem, "single", Budget(0.0)).value_us
    assert not caplog.records


def equal_cores(seed: int) -> Problem:
    """Up to four ops on two or three equal cores that slow each other, and perhaps a gang of them all."""
    random = np.random.default_rng(seed)
    problem = draw(seed, 4, plain=True)
    cores, gang = int(random.integers(2, 4)), bool(random.random() < 0.5)
    p = cores + gang
    single = problem.latency_us[:, :1]
    columns = [np.repeat(single, cores, axis=1)] + [single * random.uniform(0.4, 1.0, single.shape)] * gang
    uses = np.vstack([np.eye(cores, dtype=bool)] + [np.ones((1, cores), dtype=bool)] * gang)
    machine = Machine(
        processors=tuple(f"p{k}" for k in range(p)),
        uses=uses,
        places=("host",),
        place=np.zeros(p, dtype=np.int64),
        busy=np.full((1, 1), -1),
        queues=(),
        launch_us=np.full(p, float(single.mean()) * random.choice([0.0, 0.1, 0.5])),
        end_us=np.zeros(p),
        slowdown=np.full(p, random.uniform(1.1, 2.5)),
        memory=np.zeros(p, dtype=np.int64),
    )
    return replace(
        problem,
        machine=machine,
        latency_us=np.hstack(columns),
        transfer_us=np.zeros((len(problem.tensors), 1, 1)),
    )


@settings(max_examples=CASES)
@given(seeds)
def test_no_bound_exceeds_the_optimum_where_equal_cores_slow_each_other(seed: int) -> None:
    """What neighbours take of each other counts in the load, and never too much: against trying everything."""
    problem = equal_cores(seed)
    best = optimum(problem)
    assert lower_bound(problem, Budget(60.0)).us <= best * (1 + 1e-9)


def test_two_cores_that_slow_each_other_do_less_than_twice_the_work() -> None:
    """Twelve equal ops beside each other at half speed: the bound is two thirds of the work, not half of it."""
    problem = replace(chain(12), reads=((),) * 12, transfer_us=np.zeros((12, 3, 3)))
    one = np.zeros(2, dtype=np.int64)
    machine = replace(problem.machine, slowdown=np.full(2, 2.0), memory=one, place=one)
    bound = lower_bound(replace(problem, machine=machine), Budget(60.0)).us
    assert bound == pytest.approx(120.0 / 1.5, rel=1e-4)


@settings(max_examples=CASES // 3)
@given(seeds)
@example(111421)  # a job without a deadline, and a processor that no transfer leaves
def test_portfolio_is_legal_proven_and_never_worse_than_one_processor(seed: int) -> None:
    """Any drawn problem gets a legal plan between its bound and the best single processor, twice the same."""
    problem = draw(seed, 20)
    try:
        found = optimise(problem, "auto", Budget(rounds=2, seed=seed))
    except PlanningError:
        assert not np.isfinite(problem.transfer_us).all()
        return
    schedule = found.solution.schedule
    check(problem, schedule)
    assert found.bound.us <= schedule.value_us
    alone = min((plan.value_us for _, plan in singles(problem)), default=math.inf)
    assert schedule.value_us <= alone
    assert optimise(problem, "auto", Budget(rounds=2, seed=seed)).solution == found.solution


@settings(max_examples=CASES // 3)
@given(seeds)
def test_portfolio_finds_the_optimum_of_small_problems(seed: int) -> None:
    """With five ops and blocking transfers the plan is as good as the brute force's."""
    problem = draw(seed, 5, most_processors=2, plain=True)
    found = auto(problem, Budget(rounds=5, seed=seed))
    assert found.schedule.makespan_us == pytest.approx(optimum(problem), rel=1e-9)


@settings(max_examples=CASES)
@given(seeds)
def test_constants_come_back_legally(seed: int) -> None:
    """A plan of the problem without its constant ops grows back into a legal plan of the whole."""
    problem = draw(seed, 25, plain=True)
    smaller, kept = without(problem, constant_ops(problem))
    plan = simulate(smaller, *shuffled(smaller, seed))
    check(problem, simulate(problem, *put_back(problem, kept, plan.assignment, plan.sequence)))


def test_branches_run_side_by_side_on_halves_of_the_cores() -> None:
    """A gang ends any op first, and every op after the other later than halves would: ``grain`` sees that."""
    machine = replace(
        Machine.apart(("ab", "a", "b")),
        uses=np.array([[True, True], [True, False], [False, True]]),
        memory=np.zeros(3, int),
    )
    problem = Problem(
        machine=machine,
        ops=tuple(f"op{k}" for k in range(8)),
        latency_us=np.tile([0.6, 1.0, 1.0], (8, 1)),
        producer=np.array([-1, -1, *range(8)]),
        reads=tuple((k,) for k in range(8)),
        is_output=np.array([False] * 8 + [True] * 2),
        transfer_us=np.zeros((10, 4, 4)),
        tensors=tuple(f"t{k}" for k in range(10)),
    )
    assert solve(problem, "heft", Budget()).schedule.makespan_us == pytest.approx(8 * 0.6)
    assert solve(problem, "grain", Budget()).schedule.makespan_us == pytest.approx(4 * 1.0)
    assert auto(problem, Budget(1e-9)).schedule.makespan_us == pytest.approx(4 * 1.0)  # however short the budget


def chain(n: int, processors: int = 2) -> Problem:
    """A chain of ops, each as fast on every processor, with dear transfers."""
    return Problem(
        ops=tuple(f"op{op}" for op in range(n)),
        machine=Machine.apart([f"p{p}" for p in range(processors)]),
        latency_us=np.full((n, processors), 10.0),
        producer=np.arange(n),
        reads=tuple(() if op == 0 else (op - 1,) for op in range(n)),
        is_output=np.zeros(n, dtype=bool),
        transfer_us=np.full((n, processors + 1, processors + 1), 100.0) * (1 - np.eye(processors + 1)),
        tensors=tuple(f"t{op}" for op in range(n)),
    )


def test_every_op_of_a_chain_is_a_cut() -> None:
    """A chain falls apart into single ops and is proven optimal without a search."""
    problem = chain(50)
    assert cut_ops(problem) == list(range(50))
    found = auto(problem, Budget(60.0))
    assert found.rounds == 0
    assert found.schedule.makespan_us == pytest.approx(500.0)
    assert found.bound is not None
    assert found.bound.us == pytest.approx(500.0)


@pytest.mark.parametrize("stem", ["redmi--inception-v3", "huawei_p40--inception-v4"])
def test_inceptions_of_real_phones_are_proven_optimal(stem: str) -> None:
    """Their modules are solved exactly and add up: plan and bound meet before any search."""
    profile = phone(stem)
    problem = phone_problem(profile, profile.cpus[-1])
    found = auto(problem, Budget(rounds=1))
    check(problem, found.schedule)
    assert found.rounds == 0
    assert found.bound is not None
    assert found.schedule.makespan_us <= found.bound.us * (1 + CLOSED)


@pytest.mark.parametrize("network", ["squeezenet", "resnet50"])
def test_squeezenet_and_resnet_are_proven_on_a_synthetic_profile(network: str) -> None:
    """Two networks as the onnx package ships them, on a seeded profile of two processors: within 1 %."""
    graph = read_model(shipped.FOLDER / shipped.FILES[network]).graph
    problem = build_problem(graph, synthetic_profile(graph, seed=0))
    found = auto(problem, Budget(rounds=1))
    check(problem, found.schedule)
    assert found.bound is not None
    assert found.schedule.makespan_us <= found.bound.us * 1.01


def test_pieces_beyond_proof_leave_time_to_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the pieces take all the time they may, more than half of the budget is left when the search begins."""
    ticks = count()
    # Every look at the clock takes two milliseconds, so that no other machine and no other load changes the result.
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: next(ticks) * 2e-3))
    left: list[float] = []
    run = Search.run

    def endless(problem: Problem, budget: Budget) -> None:
        while budget.left() > 0:
            pass

    def noted(search: Search, budget: Budget, target_us: float) -> None:
        left.append(budget.left())
        run(search, budget, target_us)

    monkeypatch.setattr(articulation, "solve_pieces", endless)
    monkeypatch.setattr(Search, "run", noted)
    problem = draw(7, 200, plain=True)
    check(problem, auto(problem, Budget(1.0)).schedule)
    assert [seconds > 0.5 for seconds in left] == [True]


def test_a_tensor_that_jumps_over_an_op_forbids_the_cut() -> None:
    """A residual edge around an op means that the op is no cut."""
    problem = chain(4)
    assert cut_ops(replace(problem, reads=(*problem.reads[:3], (2, 0)))) == [0, 3]


def test_a_budget_of_zero_answers_with_a_legal_plan() -> None:
    """No time buys the best constructive plan and the bound that costs nothing."""
    problem = draw(7, 200, plain=True)
    found = auto(problem, Budget(0.0))
    check(problem, found.schedule)
    assert optimise(problem, "auto", Budget(0.0)).bound == trivial(problem)


def test_an_unreachable_processor_is_a_planning_error() -> None:
    """Two ops on two processors with no way between them: no plan, and the error says so."""
    problem = chain(2)
    latency = np.array([[1.0, math.inf], [math.inf, 1.0]])
    transfer = np.where(np.eye(3, dtype=bool), 0.0, math.inf) * np.ones((2, 3, 3))
    with pytest.raises(PlanningError, match="no legal plan"):
        auto(replace(problem, latency_us=latency, transfer_us=transfer), Budget(rounds=1))
