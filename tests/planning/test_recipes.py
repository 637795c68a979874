"""Recipes: ops that have several kernels, of which the planner takes one each."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from hope_schema import LatencyColumns, ModelGraph, Processor, Profile, by_recipe, merge
from planner_api.planning import Budget, PlanningError, optimise, plan
from planner_api.planning.bound import lower_bound, quick_bound
from planner_api.planning.judge.simulator import in_start_order, simulate
from planner_api.planning.problem import Machine, Problem, Recipe
from planner_api.planning.problem.build import build_problem
from planner_api.planning.problem.recipes import by_recipes
from planner_api.planning.search.search import Search
from tests.planning.cuttable import cuttable
from tests.planning.drawn import draw, optimum, shuffled
from tests.planning.models import network, profile

CHIP = Processor(id="chip", runtime="torch", version="1", threads=1, core_class="g", resources=("chip0",))
Choice = dict[str, tuple[float, float]]


def drawn(seed: int, most_ops: int, most_processors: int = 3) -> Problem:
    """A random problem with shares, in which about half of the ops have one or two further recipes somewhere."""
    problem = draw(seed, most_ops, most_processors=most_processors, rich=True)
    random = np.random.default_rng(seed)
    share = problem.shares if problem.share is None else problem.share
    found: list[Recipe] = []
    for op, here in np.argwhere(np.isfinite(problem.latency_us)).tolist():
        us, own = float(problem.latency_us[op, here]), float(share[op, here])
        others = [
            Recipe(op, here, number, us * random.uniform(0.4, 1.5), own * random.uniform(0.1, 1.0))
            for number in range(random.integers(0, 3))
        ]
        found += [Recipe(op, here, -1, us, own), *others] if others else []
    return replace(problem, share=share, recipes=tuple(found))


def chosen(problem: Problem, seed: int) -> Problem:
    """The problem with a random recipe for each op that has several."""
    order = np.random.default_rng(seed).permutation(len(problem.recipes)).tolist()
    taken = {problem.recipes[index][:2]: problem.recipes[index] for index in order}
    return by_recipes(problem, taken.values())


def one_chip(graph: ModelGraph, own: Choice, others: Choice) -> Profile:
    """What ops take on a chip, microseconds and share, and by a second recipe."""
    signature = {op.id: op.signature for op in merge(graph)}
    rows = [(signature[op], *figures) for op, figures in own.items()]
    rows += [(by_recipe(signature[op], 2), *figures) for op, figures in others.items()]
    names, us, shares = zip(*rows, strict=True)
    count = len(rows)
    columns = LatencyColumns(
        signature=names, kind=(CHIP.kind,) * count, us=us, spread_us=(0.0,) * count, count=(1,) * count, share=shares
    )
    return profile(graph, {}, processors=(CHIP,)).model_copy(update={"latencies": columns})


KERNELS = (-1, 10.0, 0.6), (2, 60.0, 0.1)
"""Of an op: numbers, microseconds and shares."""
SIDE = {"a": ["x"], "long": ["a"], "b": ["a"], "c": ["a"], "d": ["long", "b", "c"]}
OWN: Choice = {"a": (10.0, 0.5), "long": (60.0, 0.6), "b": (20.0, 0.6), "c": (20.0, 0.6), "d": (10.0, 0.5)}
OTHERS: Choice = {"a": (14.0, 0.1), "long": (80.0, 0.2), "b": (28.0, 0.2), "c": (30.0, 0.2), "d": (14.0, 0.1)}


def test_the_fastest_on_the_longest_way_and_the_smallest_beside_it() -> None:
    """Small kernels run beside the long one, which itself takes its fastest: no choice of one for all does that."""
    graph = network(SIDE)
    made = plan(graph, one_chip(graph, OWN, OTHERS), rounds=20)
    assert {step.ops[-1]: step.recipe for step in made.steps} == dict.fromkeys(("a", "long", "d")) | {"b": 2, "c": 2}
    assert {step.ops[-1]: step.share for step in made.steps}["b"] == 0.2
    assert {step.ops[-1]: step.alone_us for step in made.steps}["c"] == 30.0
    assert made.makespan_us == pytest.approx(80.0)
    assert plan(graph, one_chip(graph, OWN, {}), rounds=20).makespan_us == pytest.approx(120.0)
    assert plan(graph, one_chip(graph, OTHERS, {}), rounds=20).makespan_us == pytest.approx(108.0)


def test_a_plan_goes_on_with_the_recipes_of_the_one_before() -> None:
    """A later version begins where the earlier one ended, also without time to search."""
    graph = network(SIDE)
    known = one_chip(graph, OWN, OTHERS)
    made = plan(graph, known, rounds=20)
    again = plan(graph, known, rounds=0, after=made)
    assert again.makespan_us == made.makespan_us
    assert [step.recipe for step in again.steps] == [step.recipe for step in made.steps]
    assert plan(graph, one_chip(graph, OWN, {}), rounds=20, after=made).makespan_us == pytest.approx(120.0)


@pytest.mark.parametrize("seed", range(60))
def test_no_choice_of_recipes_beats_the_bound(seed: int) -> None:
    """Whichever recipes ops take, wherever and in whatever order: nothing ends before the bound of them all."""
    problem = drawn(seed, 12)
    bound = lower_bound(problem, Budget(rounds=1))
    for other in range(6):
        made = chosen(problem, other)
        try:
            found = in_start_order(made, simulate(made, *shuffled(made, other)))
        except PlanningError:
            continue
        assert found.value_us >= bound.us - 1e-6 * max(1.0, abs(bound.us))


@pytest.mark.parametrize("seed", range(30))
def test_a_search_times_recipes_as_the_simulator_does(seed: int) -> None:
    """What a search believes its plan takes is what it takes, also where kernels are smaller than what counts."""
    problem = drawn(seed, 40)
    tiny = tuple(one._replace(share=one.share / 50) if one.number > 0 else one for one in problem.recipes)
    problem = replace(problem, recipes=tiny)
    begun = simulate(problem, *shuffled(problem, seed))
    if math.isinf(begun.value_us):
        return
    search = Search(problem, begun, seed)
    for _ in range(5 * search.movable):
        search.round(moves=100)
    assert search.found("test").value_us == pytest.approx(search.value_us, rel=1e-9)


def test_a_search_for_cuts_takes_ops_by_their_processors_own_choice() -> None:
    """Parts have no recipes: a part that took the share of one beside its own latency would be believed too small."""
    problem = cuttable([[100.0, 100.0]] * 4, [[], [0], [0], [1, 2]])
    others = [Recipe(op, here, 2, 10.0, 0.1) for op in range(4) for here in range(2)]
    own = [Recipe(op, here, -1, 100.0, 0.5) for op in range(4) for here in range(2)]
    problem = replace(problem, share=np.full((4, 2), 0.5), recipes=(*own, *others))
    search = Search(problem, simulate(problem, [0] * 4, range(4)), 0)
    for _ in range(10):
        search.round(moves=100)
    assert np.array_equal(search.kernels.a.share, problem.shares)
    assert np.array_equal(search.kernels.a.latency, problem.latency_us)


@pytest.mark.parametrize("recipe_us", [5.0, 22.0, 29.0])
def test_a_bound_holds_for_plans_with_cuts_where_recipes_make_cutting_pay_no_more(recipe_us: float) -> None:
    """By its own choice an op gains by cuts, by a faster recipe nothing would be gained: either plan may be made."""
    own = cuttable([[30.0, 31.0]], [[]])
    recipes = (Recipe(0, 0, -1, 30.0, 1.0), Recipe(0, 0, 0, recipe_us, 1.0))
    problem = replace(own, share=np.ones((1, 2)), recipes=recipes)
    best = min(optimise(one, "auto", Budget(rounds=20)).solution.value_us for one in (problem, problem.whole))
    assert best <= min(21.0, recipe_us)
    assert quick_bound(problem).us <= best


@pytest.mark.parametrize("twins", [1, 2])
def test_a_launch_takes_no_more_than_the_smallest_recipe_does(twins: int) -> None:
    """Ten kernels of a tenth launch at once, though each does as much work as the one that takes six tenths.

    Nor is a processor that has such kernels like one that has none.
    """
    n, columns = 10, range(twins)
    ops = [Recipe(op, twins - 1, number, us, share) for op in range(n) for number, us, share in KERNELS]
    problem = Problem(
        machine=Machine(
            processors=tuple(f"gpu{k}" for k in columns),
            uses=np.ones((twins, 1), dtype=bool),
            places=("host",),
            place=np.zeros(twins, dtype=np.int64),
            busy=np.full((1, 1), -1),
            queues=(),
            launch_us=np.full(twins, 100.0),
            end_us=np.zeros(twins),
            slowdown=np.ones(twins),
            memory=np.zeros(twins, dtype=np.int64),
        ),
        ops=tuple(f"op{op}" for op in range(n)),
        latency_us=np.full((n, twins), 10.0),
        producer=np.full(n, -1),
        reads=tuple((op,) for op in range(n)),
        is_output=np.zeros(n, dtype=bool),
        transfer_us=np.zeros((n, 1, 1)),
        tensors=tuple(f"t{op}" for op in range(n)),
        share=np.full((n, twins), KERNELS[0][2]),
        recipes=tuple(ops),
    )
    made = by_recipes(problem, [one for one in ops if one.number == 2])
    assert simulate(made, [twins - 1] * n, list(range(n))).value_us == 160.0
    assert lower_bound(problem, Budget(rounds=1)).us <= 160.0


def small(seed: int) -> bool:
    """Whether a drawn problem has recipes, and so few that all choices can be tried."""
    problem = drawn(seed, 4, 2)
    return len(problem.ops) <= 3 and 0 < len(problem.recipes) <= 9


@pytest.mark.parametrize("seed", list(filter(small, range(40))))
def test_a_plan_with_recipes_is_legal_and_no_better_than_the_best_of_all_choices(seed: int) -> None:
    """The checker has passed it, and trying everything finds nothing that it beats, nor that beats the bound."""
    problem = drawn(seed, 4, 2)
    try:
        found = optimise(problem, "auto", Budget(rounds=10)).solution
    except PlanningError:
        return
    ways: dict[tuple[int, int], list[Recipe]] = {}
    for one in problem.recipes:
        ways.setdefault((one.op, one.processor), []).append(one)
    best = min(optimum(by_recipes(problem, row)) for row in itertools.product(*ways.values()))
    margin = 1e-6 * max(1.0, abs(best))
    assert found.value_us + margin >= best >= lower_bound(problem, Budget(rounds=1)).us - margin
    assert math.isfinite(found.value_us)


def test_recipes_are_of_what_runs_as_a_whole_and_leaves_room() -> None:
    """Where every kernel takes all of its processor none is smaller, and what was refused has no recipe."""
    graph = network(SIDE)
    full: Choice = {op: (us, 1.0) for op, (us, _) in OWN.items()}
    assert build_problem(graph, one_chip(graph, full, {})).recipes == ()
    some = build_problem(graph, one_chip(graph, OWN, {"b": (28.0, 0.2)}))
    assert [(some.ops[one.op], one.number, one.us, one.share) for one in some.recipes] == [
        ("b", -1, 20.0, 0.6),
        ("b", 2, 28.0, 0.2),
    ]
    with pytest.raises(PlanningError, match="recipe 2"):
        replace(some, recipes=(Recipe(0, 0, 2, math.inf, 0.5),))
