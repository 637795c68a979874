"""Ops cut into parts: legal plans, a bound that holds, CoDL's formula, and gains where whole ops have none."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from hope_schema import Cut
from hope_schema.cutting import CutError, Node, Region, regions
from planner_api.planning import Budget, Job, Machine, PlanningError, Problem, check, check_periods, optimise, simulate
from planner_api.planning.bound.fluid import fluid
from planner_api.planning.bound.trivial import load
from planner_api.planning.construct.listing import realised
from planner_api.planning.judge.ways import AXIS, HIGH, HOME, LOW, PARTS, TENTH
from planner_api.planning.methods import solve
from planner_api.planning.problem.arrays import FloatArray
from planner_api.planning.problem.cuts import cut_problem, homes_of
from planner_api.planning.search.annealing import Kernels
from planner_api.planning.search.cuts import found_by, search_cuts
from planner_api.planning.search.search import Search
from tests.planning import machines
from tests.planning.cuttable import ELEMENT_US, FIXED, MOVE_US, cuttable
from tests.planning.oracle import timing
from tests.planning.test_vsm import hosts


def drawn(data: DataObject, most: int = 4) -> Problem:
    """A random network of convolutions on two or three processors."""
    n, p = data.draw(st.integers(1, most)), data.draw(st.integers(2, 3))
    before = [
        sorted(data.draw(st.sets(st.integers(max(0, k - 3), k - 1), min_size=1, max_size=2))) if k else []
        for k in range(n)
    ]
    latency = data.draw(st.lists(st.lists(st.floats(10, 300), min_size=p, max_size=p), min_size=n, max_size=n))
    return cuttable(latency, before, mixes=data.draw(st.booleans()))


@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_plans_with_cuts_are_legal_and_no_better_than_the_bound(data: DataObject):
    """Whatever is planned passes the checker, is no worse than whole ops, and lies above the bound; twice the same."""
    problem = drawn(data)
    budget = Budget(rounds=3, seed=data.draw(st.integers(0, 9)))
    found = optimise(problem, "auto", budget)
    solution = found.solution
    check(solution.cut or problem, solution.schedule)
    whole = optimise(problem.whole, "auto", budget).solution.schedule.makespan_us
    assert found.bound.us <= solution.schedule.makespan_us <= whole * (1 + 1e-9)
    assert bool(solution.cuts) == (solution.cut is not None)
    again = optimise(problem, "auto", budget).solution
    assert (again.cuts, again.schedule) == (solution.cuts, solution.schedule)
    paper = optimise(problem, "codl", Budget(0.0)).solution
    check(paper.cut or problem, paper.schedule)
    assert fluid(problem).us <= paper.schedule.makespan_us * (1 + 1e-9)


def brute(problem: Problem) -> float:
    """The best of all cuts in two along the rows on the grid, and all placements, in the order of the graph."""
    choices = problem.choices
    assert choices is not None
    names = list(problem.ops)
    every: list[list[Cut | None]] = [
        [
            None,
            *(choices.cut(name, 2, (k / 10, 1 - k / 10), chained) for k in range(1, 10) for chained in (False, True)),
        ]
        for name in names
    ]
    best = np.inf
    for cuts in itertools.product(*every):
        made = [cut for cut in cuts if cut is not None]
        if any(cut.chained and (op == 0 or cuts[op - 1] is None) for op, cut in enumerate(cuts) if cut):
            continue
        cut, pieces = cut_problem(problem, made)
        pairs = [((0, 1), (1, 0)) if one else ((0,), (1,)) for one in cuts]
        for homes in itertools.product(*pairs):
            home = homes_of(cut, pieces, dict(zip(names, homes, strict=True)))
            best = min(best, simulate(cut, home, cut.lists.order).makespan_us)
    return float(best)


@pytest.mark.parametrize("axes", [(2,), (2, 3)])
def test_an_output_is_put_together_on_the_host_for_nothing(axes: tuple[int, ...]):
    """Whatever joins it is no work there and nowhere else possible; a join that an op reads takes its time anywhere."""
    problem = cuttable([[9.0, 8.0, 7.0]] * 2, [[], [0]], 12, columns=12, machine=hosts(2))
    problem = replace(problem, cutter=replace(problem.cutter, glue_us=lambda *_: np.full(3, 5.0)))
    cuts = [Cut(op=op, axes=axes, at=((6,),) * len(axes)) for op in problem.ops]
    cut, made = cut_problem(problem, cuts)
    home = homes_of(cut, made, dict.fromkeys(problem.ops, (1, 2) * len(axes)))
    joins = {piece.writes[0]: op for op, piece in enumerate(made) if piece.kind == "join"}
    stored = {name: op for name, op in joins.items() if ">" not in name}
    assert "t1" in stored
    assert joins.keys() > stored.keys()
    for name, op in joins.items():
        assert cut.latency_us[op].tolist() == ([0.0, np.inf, np.inf] if name in stored else [5.0] * 3)
        assert (home[op] == 0) == (name in stored)
    check(cut, simulate(cut, home, cut.lists.order))


@pytest.mark.parametrize("home_us", [0.0, 15.0])
@pytest.mark.parametrize("latency", [[[100.0, 120.0], [80.0, 200.0]], [[60.0, 60.0], [300.0, 90.0]]])
def test_a_chain_is_cut_as_well_as_by_trying_everything(latency: list[list[float]], home_us: float):
    """Two convolutions on two processors: no whole op gains anything, cuts do; the bound is below all that exists.

    The way of the output to the host is in both.
    """
    problem = cuttable(latency, [[], [0]], home_us=home_us)
    best = brute(problem)
    found = optimise(problem, "auto", Budget(rounds=100))
    assert fluid(problem).us <= best
    assert fluid(problem).us == pytest.approx(fluid(cuttable(latency, [[], [0]])).us + home_us)
    assert found.solution.schedule.makespan_us <= 1.02 * best
    assert found.solution.schedule.makespan_us < 0.9 * min(found.singles[p].makespan_us for p in (0, 1))


@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_the_search_for_cuts_sees_what_the_simulator_sees(data: DataObject):
    """Whole ops take what the simulator says, a window believes what is so, and parts compute what cutting demands."""
    problem = drawn(data, 7)
    begun = solve(problem, "heft", Budget(0.0)).schedule
    choices = problem.choices
    assert choices is not None
    search = Search(problem, begun, data.draw(st.integers(0, 99)))
    assert search.value_us == pytest.approx(begun.makespan_us, rel=1e-12)
    believed = search.round(moves=data.draw(st.integers(1, 400)))
    assert search.value_us == pytest.approx(min(believed, begun.makespan_us), rel=1e-12)
    found = found_by(search)
    assert found.cut is not None
    check(found.cut, found.schedule)
    parts = regions(choices.cutter.nodes, found.cuts, choices.cutter.shapes)
    for name, own in parts.items():
        op = choices.index[name]
        assert [tuple(part.spans[0][1:]) for part in own] == [
            tuple(search.state.mode[op, k, LOW : HIGH + 1].tolist()) for k in range(len(own))
        ]


def test_what_is_copied_along_a_fifth_axis_counts():
    """An op whose parts would read a slice of its input along the last of five axes is not cut where that is dear."""

    def granularity(axis: int) -> int:
        if axis != 1:
            raise CutError("stays whole along this axis")
        return 1

    def needs(part: Region) -> dict[str, Region | None]:
        return {"x": Region.along(4, *part.spans[0][1:])}

    plain = cuttable([[100.0, 110.0]], [[]])
    node = Node("t0", ("x",), ("t0",), granularity, needs)
    shapes = {"x": (1, 2, 2, 4, 10), "t0": (1, 10, 2, 2, 4)}
    for copied_us, cut in ((0.0, True), (1e4, False)):
        glue = partial(lambda us, tensor, shape, axes, reads: np.full(2, us if axes == (4,) else 0.0), copied_us)
        problem = replace(plain, cutter=replace(plain.cutter, nodes=(node,), shapes=shapes, glue_us=glue))
        search = Search(problem, solve(problem, "heft", Budget(0.0)).schedule, 0)
        search.round(moves=250)
        assert (search.value_us < 100.0) == cut


def test_slices_of_thousands_of_rows_are_told_apart():
    """What brought seven rows of an input to a processor has not brought the 8200 that another op reads there."""
    rows = 9000
    plain = cuttable([[10.0, 10.0]] * 2, [[], []])

    def node(op: int) -> Node:
        def needs(part: Region) -> dict[str, Region | None]:
            ((axis, start, stop),) = part.spans
            low, high = (max(0, start - 900), stop - 800) if op == 0 else (min(start, 1), 8)
            return {"x": Region.along(axis, low, high)}

        return Node(f"t{op}", ("x",), (f"t{op}",), {1: rows, 2: 1}.__getitem__, needs)

    def move_us(tensor: str, shape: tuple[int, ...]) -> FloatArray:
        return np.where(np.eye(3, dtype=bool), 0.0, float(shape[2]))

    shapes = dict.fromkeys(plain.tensors, (1, 1, rows, 1))
    cutter = replace(plain.cutter, nodes=(node(0), node(1)), shapes=shapes, move_us=move_us)
    moves = np.stack([move_us(name, shapes[name]) for name in plain.tensors])
    problem = replace(plain, cutter=cutter, transfer_us=moves, latency_us=np.full((2, 2), 1e5))
    assert [*problem.choices.axes.values()] == [(2,), (2,)]
    kernels = Kernels(problem, [0, 0], [1, 0])
    for op in range(2):
        mode = kernels.s.mode[op]
        mode[0, [PARTS, AXIS]], mode[:2, HOME], mode[1, TENTH] = (2, 0), (0, 1), 1
    kernels.evaluate()
    spent = kernels.s.spent.reshape(2, -1)[:, 1] - problem.choices.parts_us[:, 0, 1, 10, 1]
    assert spent.tolist() == pytest.approx([8200.0, 7.0], abs=2.0)


def test_a_window_sees_that_a_chain_has_lost_its_hold():
    """An op of a chain reads two others: where one is cut anew, the parts of the other are those without the chain."""
    latency = [[10.0, 10.0], [76.0, 99.0], [123.0, 41.0], [15.0, 85.0], [10.0, 10.0]]
    problem = cuttable(latency, [[], [0], [0, 1], [0, 1], [1]])
    begun = solve(problem, "heft", Budget(0.0)).schedule
    for seed in range(20):
        search = Search(problem, begun, seed)
        assert search.round(moves=342) >= search.value_us * (1 - 1e-12)


def test_a_plan_with_cuts_takes_as_long_in_the_order_of_its_turns():
    """What a round sorts before it anneals stays as long: an op whose parts begin apart is overtaken by no other."""
    random = np.random.default_rng(0)
    latency = random.uniform(50, 300, size=(14, 2)).tolist()
    problem = cuttable(latency, [[], *([int(random.integers(0, op))] for op in range(1, 14))])
    begun = solve(problem, "heft", Budget(0.0)).schedule
    search = Search(problem, begun, 0)
    for _ in range(40):
        search.round(moves=300)
        search._by_start()
        assert search._evaluate() == pytest.approx(search.value_us, rel=1e-12)
    assert (search.state.mode[:, 0, PARTS] > 1).any()


def test_a_slice_of_what_stands_on_a_processor_is_made_there():
    """One reads all of a tensor on the second processor, half of an op a slice of it: it is moved there once."""
    problem = cuttable([[100.0, 100.0]] * 3, [[], [0], [0]])
    homes = {"t0": (0,), "t1": (0, 1), "t2": (1,)}
    begins = {"t0": (0.0,), "t1": (100.0, 250.0), "t2": (100.0,)}
    plan = realised(problem, {"t1": Cut(op="t1", axes=(2,), at=((5,),))}, homes, begins, "cuts")
    assert plan.cut is not None
    check(plan.cut, plan.schedule)
    moved = [plan.cut.tensors[move.tensor] for move in plan.schedule.transfers if move.finish_us > move.start_us]
    assert [name for name in moved if name.startswith("t0")] == ["t0"]


def test_where_cuts_gain_too_little_whole_ops_are_searched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a plan of cuts that is worth it what is left is spent on the plan that has none."""
    latency = np.random.default_rng(1).uniform(50, 300, size=(12, 2)).tolist()
    problem = cuttable(latency, [[], *([max(0, op - 3)] for op in range(1, 12))])
    searched: list[float] = []
    real = Search.run
    monkeypatch.setattr(Search, "run", lambda self, *turn: searched.append(self.value_us) or real(self, *turn))
    monkeypatch.setattr("planner_api.planning.auto.search_cuts", lambda *_: None)
    found = optimise(problem, "auto", Budget(rounds=2)).solution
    assert searched
    assert not found.cuts
    assert found.schedule.value_us <= searched[-1]


def test_codl_minimises_the_formula_of_its_paper():
    """One op: the ratio at which both parts end together, and the simulator takes what the parts and the join take."""
    problem = cuttable([[100.0, 300.0]], [[]])
    solution = solve(problem, "codl", Budget(0.0))
    (cut,) = solution.cuts
    assert cut.at in {((7,),), ((8,),)}
    first = 100.0 * (FIXED + 0.95 * cut.at[0][0] / 10)
    second = 300.0 * (FIXED + 0.95 * (1 - cut.at[0][0] / 10))
    assert solution.schedule.makespan_us >= max(first, second)
    assert solution.schedule.makespan_us < 100.0 + 2 * MOVE_US


def test_codl_chains_where_recomputing_costs_less_than_exchanging():
    """Four equal convolutions become one chain along the rows; where a part would be recomputed whole, none does."""
    problem = cuttable([[100.0, 100.0]] * 4, [[], [0], [1], [2]], rows=40)
    found = solve(problem, "codl", Budget(0.0))
    assert [cut.chained for cut in found.cuts] == [False, True, True, True]
    assert {cut.axes for cut in found.cuts} == {(2,)}
    halves = 4 * 100.0 * (FIXED + 0.95 * 0.5)
    recomputed = 100.0 * 0.95 * (3 + 2 + 1) / 40
    moved = MOVE_US + ELEMENT_US * 10 * 20 * 4
    assert found.schedule.makespan_us == pytest.approx(halves + recomputed + moved, rel=0.05)


def test_codl_chains_no_part_that_cannot_be():
    """A ratio beside the head's own may leave the next op a part smaller than its window: the chain ends there."""
    problem = cuttable([[2000.0, 1070.0]] * 3, [[], [0], [1]], rows=6, least=3)
    cuts = solve(problem, "codl", Budget(0.0)).cuts
    assert cuts
    assert all(1 < cut.at[0][0] < 5 for cut in cuts if cut.axes == (2,))


def test_codl_says_what_it_needs():
    """Without parts to plan with, or two processors side by side, its error says so; in the planner others answer."""
    problem = cuttable([[100.0, 100.0]], [[]])
    with pytest.raises(PlanningError, match="nothing is known of their parts"):
        solve(problem.whole, "codl", Budget(0.0))
    apart = machines.apart(("gang", "core"), np.ones((2, 2), dtype=np.bool_))
    with pytest.raises(PlanningError, match="side by side"):
        solve(cuttable([[100.0, 100.0]], [[]], machine=apart), "codl", Budget(0.0))
    found = optimise(problem.whole, "codl", Budget(0.0)).solution
    assert found.method.startswith("codl→")


def test_codl_shares_ops_between_the_fastest_pair() -> None:
    """Of three processors the two that would be fastest if ops could be split anywhere for nothing."""
    problem = cuttable([[900.0, 110.0, 100.0]], [[]])
    found = solve(problem, "codl", Budget(0.0))
    assert set(found.schedule.assignment) == {1, 2}
    assert len(found.cuts) == 1


def test_nothing_is_annealed_once_the_budget_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cuts start from is as good as it came: a budget is what others wait for."""
    problem = cuttable([[100.0, 120.0], [80.0, 200.0]], [[], [0]])
    whole = solve(problem, "single", Budget(0.0)).schedule
    rounds: list[bool] = []
    real = Search.round
    monkeypatch.setattr(
        Search, "round", lambda self, *turn: rounds.append(bool(self.problem.cutter.nodes)) or real(self, *turn)
    )
    search_cuts(problem, whole, Budget(0.0), 0.0)
    assert not rounds
    search_cuts(problem, whole, Budget(rounds=1), 0.0)
    assert set(rounds) == {True, False}


def test_no_search_begins_where_no_op_can_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search takes a while to set up: where links alone make cuts worth it there is nothing for it."""
    problem = cuttable([[100.0, 120.0]], [[]])
    whole = solve(problem, "single", Budget(0.0)).schedule
    problem.choices.axes.clear()
    monkeypatch.setattr("planner_api.planning.search.cuts.Search", None)
    assert search_cuts(problem, whole, Budget(rounds=1), 0.0) is None


@pytest.mark.parametrize("us", [20.0, 22.0])
def test_a_chain_is_cut_where_no_op_of_it_is_worth_it(us: float) -> None:
    """Eight convolutions together save what bringing parts together takes, and keep a period that whole ones cannot."""
    problem = cuttable([[us, us]] * 8, [[], *([k] for k in range(7))], rows=100)
    found = optimise(problem, "auto", Budget(rounds=3))
    assert found.solution.cuts
    assert found.solution.schedule.makespan_us < 0.7 * 8 * us
    assert found.bound.us <= found.solution.schedule.makespan_us
    check_periods(replace(problem, jobs=(Job(period_us=0.7 * 8 * us),)))


@pytest.mark.parametrize(("launch_us", "worth"), [(78.0, True), (79.0, False), (81.0, False)])
def test_cuts_save_more_than_a_launch_and_one_per_cent(launch_us: float, worth: bool) -> None:
    """Eight halved ops save 80 µs of 160: less than that and 1.6 µs to launch parts is worth a search."""
    machine = replace(Machine.apart(("p0", "p1")), launch_us=np.full(2, launch_us))
    problem = cuttable([[20.0, 20.0]] * 8, [[], *([k] for k in range(7))], machine=machine)
    assert problem.choices.possible
    assert bool(problem.choices.axes) == worth


def test_a_period_that_whole_ops_keep_needs_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What parts take at least is worked out where the longest path of whole ops is above the period."""
    problem = cuttable([[20.0, 20.0]] * 2, [[], [0]])
    monkeypatch.setattr("planner_api.planning.periods.smallest_parts", None)
    check_periods(replace(problem, jobs=(Job(period_us=40.0),)))


@pytest.mark.parametrize(
    ("limit", "launch_us", "quick"),
    [("MOST_OPS", 0.0, True), ("MOST_CHOICES", 0.0, False), ("MOST_CHOICES", 1e6, True)],
)
def test_many_ops_are_spread_evenly_without_a_program(
    limit: str, launch_us: float, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limits each op counts with its least work: lower than the program's optimum, but no solver runs."""
    machine = replace(Machine.apart(("p0", "p1")), launch_us=np.full(2, launch_us))
    problem = cuttable([[100.0, 110.0]] * 8, [[]] * 8, machine=machine)
    exact = fluid(problem).us
    monkeypatch.setattr(f"planner_api.planning.bound.fluid.{limit}", 2)
    assert (fluid(problem).us < exact) == quick
    if quick:
        monkeypatch.setattr("planner_api.planning.bound.fluid.Program", None)
        assert fluid(problem).us == pytest.approx(load(problem).us)


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_nothing_is_proved_that_cuts_can_beat(data: DataObject) -> None:
    """On two cores, or these and their gang: no plan in halves is below a bound, however little an op saves by itself.

    Each op is tried whole, and in halves that are chained to those before or not, wherever each can be.
    """
    n, gang = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    before = [sorted(data.draw(st.sets(st.integers(0, k - 1), min_size=1, max_size=2))) if k else [] for k in range(n)]
    us = [data.draw(st.floats(5, 60)) for _ in range(n)]
    latency = [[one, one * data.draw(st.floats(1.0, 1.5)), *[one * 0.7] * gang] for one in us]
    uses = np.array([[True, False], [False, True], *[[True, True]] * gang])
    paid = np.full(len(uses), data.draw(st.sampled_from([0.0, 5.0, 20.0, 60.0])))
    machine = Machine.apart(("core0", "core1", "gang")[: len(uses)])
    machine = replace(machine, uses=uses, launch_us=paid, end_us=paid / 10)
    if data.draw(st.booleans()):  # in one memory
        busy, memory = np.full((1, 1), -1), np.zeros(len(uses), dtype=np.int64)
        machine = replace(machine, places=("host",), place=memory, busy=busy, memory=memory)
    problem = cuttable(latency, before, rows=40, machine=machine)
    homes: dict[bool, list[tuple[int, ...]]] = {False: [(p,) for p in range(len(uses))], True: [(0, 1), (1, 0)]}
    best = np.inf
    for ways in itertools.product((None, False, True), repeat=n):
        cuts = [Cut(op=f"t{op}", axes=(2,), at=((20,),), chained=way) for op, way in enumerate(ways) if way is not None]
        try:
            cut, pieces = cut_problem(problem, cuts)
        except CutError:
            continue  # a chain that holds on to nothing
        for where in itertools.product(*(homes[way is not None] for way in ways)):
            home = homes_of(cut, pieces, dict(zip(problem.ops, where, strict=True)))
            best = min(best, timing(cut, home, cut.lists.order)[1])
    for rounds in (0, 2):
        assert optimise(problem, "auto", Budget(rounds=rounds)).bound.us <= best * (1 + 1e-9)


@pytest.mark.parametrize(("enough_us", "turns"), [(0.0, 1), (1e9, 2)])
def test_tiles_that_gain_too_little_in_their_trial_are_given_up(
    enough_us: float, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tiles as of cuts: a trial that gains too little is all that is searched; one that gains enough is half."""
    problem = cuttable([[100.0, 120.0], [80.0, 200.0]], [[], [0]])
    whole = solve(problem, "single", Budget(0.0)).schedule
    tiles = solve(problem, "codl", Budget(0.0))
    assert tiles.cut is not None
    rounds: list[bool] = []
    real = Search.round
    monkeypatch.setattr(
        Search, "round", lambda self, *turn: rounds.append(self.problem is tiles.cut) or real(self, *turn)
    )
    found = search_cuts(problem, whole, Budget(rounds=3), -np.inf, enough_us, lambda: [tiles])
    assert sum(rounds) == 3 * turns
    assert (found is None) == (enough_us == 0.0)


def test_a_trial_ends_once_it_has_long_gained_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both searches end after five rounds for each op, whatever is left of the budget."""
    problem = cuttable([[100.0, 120.0], [80.0, 200.0]], [[], [0]])
    whole = solve(problem, "single", Budget(0.0)).schedule
    rounds: Counter[Search] = Counter()

    def idle(search: Search, _moves: int) -> None:
        search.rounds += 1
        rounds[search] += 1

    monkeypatch.setattr(Search, "round", idle)
    assert search_cuts(problem, whole, Budget(rounds=100), -np.inf, 0.0) is None
    assert [*rounds.values()] == [5 * 2] * 2


def test_more_than_two_processors_share_an_op():
    """Three equal processors: an op is cut in three where moving costs little."""
    problem = cuttable([[3000.0, 3000.0, 3000.0]], [[]])
    assert problem.choices is not None
    assert problem.choices.teams["t0"] == [(0, 1), (0, 1, 2)]
    found = optimise(problem, "auto", Budget(rounds=60))
    assert len(found.solution.cuts[0].at[0]) == 2
    assert found.solution.schedule.makespan_us < 0.5 * 3000.0


def test_a_problem_goes_with_who_holds_it() -> None:
    """What is remembered of a problem, and of those made of it, keeps none alive, nor waits for the collector."""
    gc.collect()
    gc.disable()
    try:
        problem = cuttable([[100.0, 90.0]] * 4, [[], [0], [1], [2]])
        assert problem.cuttable
        outcome = optimise(problem, "auto", Budget(rounds=2))
        there = [weakref.ref(problem), weakref.ref(problem.lists), weakref.ref(problem.choices)]
        del problem, outcome
        assert [each() for each in there] == [None, None, None]
    finally:
        gc.enable()
