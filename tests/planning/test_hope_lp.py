"""HOPE:LP: Algorithm 1, eqs 1-6, and the figures that the authors' own program gave."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner_api.planning import Budget, check, simulate
from planner_api.planning.construct.earliest import placed
from planner_api.planning.construct.listing import layers
from planner_api.planning.highs import Program, SolverFailed, run
from planner_api.planning.ilp import solve_part, start
from planner_api.planning.ilp.model import Window
from planner_api.planning.ilp.partition import bisect, partition
from planner_api.planning.judge.simulator import Decoder
from planner_api.planning.methods import solve
from tests import CAMPAIGN
from tests.planning.drawn import draw, optimum
from tests.planning.phones import collapsed_module, phone


def chain_then_fan() -> list[list[int]]:
    """13 vertices; ranks 1, 2, 3, 3, 4, 5 make six, one alone at rank 5, and seven lie above it."""
    return [[], [0], [1], [1], [2, 3], [4], [5], [5], [5], [6], [7], [8], [9, 10, 11]]


def test_fig_1_is_cut_at_upward_rank_5():
    """Algorithm 1 cuts a graph with Fig. 1's counts at rank 5 into 6 and 7 vertices with a vertex cut of 1."""
    before = chain_then_fan()
    vertices = list(range(13))
    ranked = layers(vertices, before)
    first, second = bisect(vertices, before)
    assert (len(first), len(second)) == (6, 7)
    assert sum(map(len, ranked[:5])) == len(first)
    assert len(ranked[4]) == 1
    assert max(len(first), len(second)) <= 1.2 * 13 / 2


@given(seed=st.integers(0, 10**6), limit=st.integers(1, 14))
@settings(max_examples=500 if CAMPAIGN else 20)
def test_parts_are_small_ordered_and_complete(seed: int, limit: int):
    """Every op lies in exactly one part, edges point forward, and a part above NT is one level that cannot be cut."""
    lists = draw(seed, 40).lists
    parts = partition(lists.order, lists.before, limit)
    assert sorted(itertools.chain(*parts)) == sorted(lists.order)
    home = {op: index for index, part in enumerate(parts) for op in part}
    for op, before in enumerate(lists.before):
        assert all(home[earlier] <= home[op] for earlier in before)
    for part in parts:
        assert len(part) <= limit or len(layers(part, lists.before)) == 1


MODULES = {
    "Mixed_5b": 17.923278,
    "Mixed_5c": 18.845278,
    "Mixed_5d": 19.102778,
    "Mixed_6b": 34.657958,
    "Mixed_6c": 44.748372,
    "Mixed_6d": 44.720861,
    "Mixed_6e": 59.530258,
    "Mixed_7b": 26.702998,
    "Mixed_7c": 30.928494,
}


@pytest.mark.parametrize(("module", "milliseconds"), MODULES.items())
def test_inception_modules_of_the_redmi(module: str, milliseconds: float):
    """The authors' ILP objective for each Inception-v3 module of the redmi, branches collapsed, two CPU threads."""
    problem = collapsed_module(phone("redmi--inception-v3"), "cpu_big_2", module)
    exact, proven = solve_part(problem, Decoder(problem), problem.lists.order)
    assert proven
    assert max(exact.finish) == pytest.approx(milliseconds * 1e3, rel=1e-4, abs=0.5)


@given(seed=st.integers(0, 10**6), cut=st.integers(0, 8))
@settings(max_examples=500 if CAMPAIGN else 15)
def test_a_part_starts_from_a_legal_schedule_at_least_as_good_as_greedy(seed: int, cut: int):
    """What HiGHS starts from places exactly the part, ends no later than the greedy order, and replays as it says."""
    problem = draw(seed, 12, plain=True)
    order = problem.lists.order
    cut = min(cut, len(order) - 1)
    fixed, part = placed(Decoder(problem), order[:cut]), order[cut:]
    found, plain = start(problem, fixed, part), placed(fixed.copy(), part)
    assert sorted(found.sequence) == sorted(order)
    assert found.sequence[:cut] == order[:cut]
    assert max(found.finish[op] for op in part) <= max(plain.finish[op] for op in part)
    schedule = simulate(problem, found.home, found.sequence)
    check(problem, schedule)
    assert list(schedule.finish_us) == pytest.approx(found.finish)


@given(seed=st.integers(0, 10**6))
@example(seed=6427)
@example(seed=8582)
@example(seed=12151)
@settings(max_examples=500 if CAMPAIGN else 20)
def test_a_window_is_solved_to_the_optimum(seed: int):
    """HiGHS finds the brute-force optimum of a small blocking problem, and its objective is what the simulator says."""
    problem = draw(seed, 5, most_processors=3, plain=True)
    best = optimum(problem)
    window = Window(problem, Decoder(problem), problem.lists.order, best * (1 + 1e-6) + 1e-6)
    answer = run(window.program)
    assignment, order = window.decode(answer.values)
    ops = problem.lists.order
    placement = [0] * len(ops)
    for i, processor in enumerate(assignment):
        placement[ops[i]] = processor
    schedule = simulate(problem, placement, [ops[i] for i in order])
    check(problem, schedule)
    assert answer.optimal
    assert answer.objective == pytest.approx(max(schedule.finish_us), rel=1e-5, abs=1e-3)
    assert max(schedule.finish_us) <= best * (1 + 1e-5) + 1e-3


@given(seed=st.integers(0, 10**6), cut=st.integers(0, 12))
@settings(max_examples=500 if CAMPAIGN else 20)
def test_no_cut_forbids_a_schedule_that_exists(seed: int, cut: int):
    """A feasible warm start is never cut off: with the limit at its own makespan the window stays feasible."""
    problem = draw(seed, 12, hope=True)
    lists = problem.lists
    fixed = Decoder(problem)
    ops = lists.order[cut:]
    for op in lists.order[:cut]:
        fixed.place(op, min(range(problem.host), key=lambda p: fixed.times(op, p).finish))
    after = fixed.copy()
    for op in ops:
        after.place(op, min(range(problem.host), key=lambda p: after.times(op, p).finish))
    if not ops or math.isinf(max(after.finish)):
        return
    limit = max(after.finish[op] for op in ops)
    window = Window(problem, fixed, ops, limit * (1 + 1e-9) + 1e-9)
    columns = ([row[op] for op in ops] for row in (after.home, after.start, after.finish))
    for column, value in window.point(*columns).items():
        if window.program.integer[column]:
            window.program.lower[column] = window.program.upper[column] = value
    assert run(window.program).objective <= limit - min(fixed.free) + 1e-3


def test_an_infeasible_program_is_an_error():
    """A HiGHS status without a solution raises, and the message carries the status."""
    program = Program()
    x = program.binary()
    program.at_least([(x, 1.0)], 2.0)
    with pytest.raises(SolverFailed, match="Infeasible"):
        run(program)


def test_parts_without_time_fall_back_and_say_so():
    """With no time at all the ILP route still gives a legal plan and notes that nothing was proven."""
    problem = draw(7, 40, plain=True)
    solution = solve(problem, "ilp", Budget(0.0))
    check(problem, solution.schedule)
    assert "stopped before" in solution.notes[0]
