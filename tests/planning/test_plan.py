"""plan(): the whole way, and what every plan promises."""

from __future__ import annotations

import gc
import logging
import math
import sys
import types
import weakref
from pathlib import Path

import pytest

from hope_schema import Cause, Channel, ModelGraph, Plan, Profile, merge
from planner_api.planning import Budget, Job, PlanningError, methods, optimise, plan
from planner_api.planning.assemble import MAX_GAP
from planner_api.planning.highs import SolverFailed
from planner_api.planning.judge.causes import next_best
from planner_api.planning.methods import Bound
from tests.planning.cuttable import cuttable
from tests.planning.drawn import draw
from tests.planning.models import BOTH_WAYS, DIAMOND, FIGURES, network, profile


@pytest.fixture
def diamond() -> tuple[ModelGraph, Profile]:
    """Four ops on a CPU and a GPU, everything measured."""
    graph = network(DIAMOND)
    return graph, profile(graph, FIGURES, BOTH_WAYS)


def test_the_method_that_the_readme_shows_plans(
    diamond: tuple[ModelGraph, Profile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved under the name that the page says, it makes a plan that the checker proves legal."""
    page = (Path(__file__).parents[2] / "README.md").read_text()
    code = page.partition("say in `mine.py`")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert plan(*diamond, method="mine:solve").method == "mine"


@pytest.mark.parametrize("method", ["auto", "ilp", "greedy", "partitiontuner"])
@pytest.mark.parametrize("busy", [None, "dma"])
def test_a_plan_carries_its_proof(diamond: tuple[ModelGraph, Profile], method: str, busy: str | None):
    """Makespan, bound, gap, profile version, single processors and a cause per step, all consistent."""
    graph, figures = diamond
    ways = [("host/cpu", "gpu"), ("gpu", "host/cpu")]
    channels = (*figures.channels, *(Channel(source=start, target=end, busy=busy) for start, end in ways))
    made = plan(graph, figures.model_copy(update={"channels": channels}), method=method, rounds=3)
    assert made.model_hash == graph.model_hash
    assert (made.soc, made.frequency, made.profile_version) == ("soc", "top", 7)
    assert made.single_processor_us == {"cpu": 180.0, "gpu": 200.0}
    assert made.lower_bound_us <= made.makespan_us <= 180.0
    assert made.gap == pytest.approx(made.makespan_us / made.lower_bound_us - 1)
    assert [step.ops for step in made.steps] == [("a",), ("b",), ("c",), ("d",)]
    assert max(step.finish_us for step in made.steps) == made.makespan_us
    assert all(move.over == busy for move in made.transfers if "host" not in (move.source, move.target))
    assert Plan.model_validate_json(made.model_dump_json()) == made


def test_a_step_says_where_it_could_run_instead(diamond: tuple[ModelGraph, Profile]):
    """Each step has its own figure and the other processor's, from the profile; nothing where nobody else can."""
    graph, figures = diamond
    rows = figures.latencies
    us = dict(zip(zip(rows.signature, rows.kind, strict=True), rows.us, strict=True))
    kinds = {processor.id: processor.kind for processor in figures.processors}
    signatures = {op.ops[-1].id: op.signature for op in merge(graph)}
    for step in plan(graph, figures, rounds=1).steps:
        other = {"cpu": "gpu", "gpu": "cpu"}[step.processor]
        assert step.alone_us == us[signatures[step.ops[-1]], kinds[step.processor]]
        assert step.next_best is not None
        assert (step.next_best.processor, step.next_best.us) == (other, us[signatures[step.ops[-1]], kinds[other]])
    assert next_best([1.0, float("inf")], 0, ["a", "b"]) is None
    assert next_best([1.0, 1.0, 3.0], 0, ["a", "a", "b"]) == (2, 3.0)
    assert next_best([1.0, 1.0, float("inf")], 0, ["a", "a", "b"]) == (1, 1.0)


def test_the_optimum_of_the_diamond(diamond: tuple[ModelGraph, Profile]):
    """By hand: a, one of b and c, and d on the CPU, the other beside them on the GPU: 40 + 60 + 4 + 20 = 124."""
    made = plan(*diamond, rounds=3)
    assert (made.makespan_us, made.lower_bound_us) == (124.0, 124.0)
    placed = {step.ops[0]: (step.processor, step.cause) for step in made.steps}
    assert placed["a"] == placed["d"] == ("cpu", Cause.FASTER)
    assert {placed["b"], placed["c"]} == {("gpu", Cause.FASTER), ("cpu", Cause.PARALLEL_BRANCH)}
    other = "b" if placed["b"][0] == "gpu" else "c"
    moves = {(move.tensor, move.source, move.target) for move in made.transfers}
    cpu = "host/cpu"
    assert moves == {("x", "host", cpu), ("a", cpu, "gpu"), (other, "gpu", cpu), ("d", cpu, "host")}
    readers = {move.tensor: move.reader for move in made.transfers}
    ids = {step.ops[0]: step.id for step in made.steps}
    assert readers == {"x": ids["a"], "a": ids[other], other: ids["d"], "d": None}


def test_every_cause_is_told_apart():
    """Only supported, faster, avoids a transfer, parallel branch: one op of each kind."""
    graph = network({"a": ["x"], "b": ["a"], "p": ["x"], "q": ["x"], "end": ["b", "p", "q"]})
    figures = {
        "cpu": {"a": 10.0, "b": 11.0, "p": 100.0, "q": 100.0, "end": 1.0},
        "gpu": {"a": 90.0, "b": 10.0, "p": 120.0, "q": 120.0, "end": None},
    }
    made = plan(graph, profile(graph, figures, [("cpu", "gpu", (1, 8, 16, 16), 2.0), BOTH_WAYS[1]]), rounds=20)
    why = {step.ops[0]: (step.processor, step.cause) for step in made.steps}
    assert why["a"] == ("cpu", Cause.FASTER)
    assert why["b"] == ("cpu", Cause.AVOIDS_TRANSFER)
    assert why["end"] == ("cpu", Cause.ONLY_SUPPORTED)
    assert sorted(why[op][1] for op in ("p", "q")) == [Cause.FASTER, Cause.PARALLEL_BRANCH]


def test_the_same_inputs_seed_and_rounds_give_the_same_bytes(diamond: tuple[ModelGraph, Profile]):
    """Design promise 3, for every method that a request can name."""
    for method in ("auto", "ilp", "greedy", "partitiontuner"):
        bodies = {plan(*diamond, method=method, seed=5, rounds=4).model_dump_json() for _ in range(2)}
        assert len(bodies) == 1


def test_no_budget_still_gives_a_plan(diamond: tuple[ModelGraph, Profile]):
    """A budget of zero answers with the first plan, never slower than the best single processor."""
    for method in ("auto", "ilp", "greedy", "partitiontuner"):
        assert plan(*diamond, method=method, budget_s=0.0).makespan_us <= 180.0
    for seconds in (-1.0, math.nan, math.inf):
        with pytest.raises(PlanningError, match="cannot be spent"):
            plan(*diamond, budget_s=seconds)


def test_a_plan_whose_method_was_beaten_says_so_on_the_wire(diamond: tuple[ModelGraph, Profile]):
    """A method's own name, or with an arrow the one that found it, which survives the way to JSON and back."""
    made = plan(*diamond, method="partitiontuner")
    assert made.method in ("partitiontuner", "partitiontuner→single")
    arrow = made.model_copy(update={"method": "ilp→single"})
    assert Plan.model_validate_json(arrow.model_dump_json()).method == "ilp→single"


def test_filled_figures_are_flagged(diamond: tuple[ModelGraph, Profile]):
    """What was not measured is said in the plan."""
    graph, _ = diamond
    figures = {"cpu": FIGURES["cpu"], "gpu": {"a": 50.0, "b": 30.0, "c": 30.0}}
    made = plan(graph, profile(graph, figures, BOTH_WAYS), method="greedy")
    assert any("not measured on 'gpu'" in sentence and "'d'" in sentence for sentence in made.filled)


def test_restricting_the_processors_restricts_the_plan(diamond: tuple[ModelGraph, Profile]):
    """Only the processors asked for are candidates."""
    made = plan(*diamond, processors=["gpu"], method="greedy")
    assert (made.processors, made.processors_used, made.makespan_us) == (("gpu",), ("gpu",), 200.0)


@pytest.mark.parametrize("failure", [SolverFailed("HiGHS ended with 'Solve error'"), RuntimeError("out of luck")])
def test_a_method_that_fails_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch, failure: Exception):
    """The best plan in hand comes back, with the failure in its notes."""

    def fail(problem: object, budget: object) -> None:
        raise failure

    monkeypatch.setitem(sys.modules, "failing_solver", types.SimpleNamespace(solve=fail))
    monkeypatch.setitem(methods.METHODS, "ilp", methods.Method("failing_solver:solve", at_once=False))
    problem = draw(11, 20, plain=True)
    outcome = optimise(problem, "ilp", Budget(0.0))
    best = min(
        optimise(problem, name, Budget(0.0)).solution.schedule.makespan_us for name in ("greedy", "heft", "dmdar")
    )
    assert outcome.solution.schedule.makespan_us <= best
    assert str(failure) in outcome.solution.notes[-1]


@pytest.mark.parametrize("method", ["ilp", "auto", "heft"])
def test_a_solver_that_refuses_the_bounds_model_costs_the_bound_alone(monkeypatch: pytest.MonkeyPatch, method: str):
    """The plan that was found comes back, with the bound that needs no solver."""

    def refuse(*_: object) -> None:
        raise SolverFailed("HiGHS refused the model")

    monkeypatch.setattr("planner_api.planning.bound.interval.interval_load", refuse)
    problem = draw(11, 20, plain=True)
    outcome = optimise(problem, method, Budget(rounds=1))
    assert outcome.solution.method.split("→")[0] in (method, "annealing", "articulation", "heft", "single", "greedy")
    assert not any("refused" in note for note in outcome.solution.notes)
    assert outcome.bound.us <= outcome.solution.schedule.value_us


@pytest.mark.parametrize("method", ["heft", "auto"])
def test_a_bound_above_the_plan_proves_nothing_and_is_seen(
    diamond: tuple[ModelGraph, Profile], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It is an error here; elsewhere it is logged, and the plan says so instead of that it was proven optimal."""
    monkeypatch.setattr("planner_api.planning.bound.trivial", lambda _: Bound(1e4, "too-high"))
    with pytest.raises(AssertionError, match="'too-high' is wrong"):
        plan(*diamond, method=method, rounds=1)
    monkeypatch.setattr(logging.getLogger("planner_api.planning.optimise"), "handlers", [])
    made = plan(*diamond, method=method, rounds=1)
    assert (made.lower_bound_us, made.gap) == (0.0, MAX_GAP)
    assert "'too-high' is wrong" in made.notes[-1]
    assert str(made).endswith(", nothing proven")


def test_a_solved_problem_is_forgotten():
    """Nothing keeps a problem, nor what was worked out on it, once its plan is made: large ones follow each other."""
    gc.collect()
    gc.disable()  # what only a collection finds is still there when the next large one comes
    try:
        problem = cuttable([[100.0, 120.0]] * 3, [[], [0], [1]])
        optimise(problem, "codl", Budget(0.0))
        kept = weakref.ref(problem), weakref.ref(problem.choices)
        del problem
        assert [one() for one in kept] == [None, None]
    finally:
        gc.enable()


def test_a_bound_does_not_hang_on_the_unit_of_weights(diamond: tuple[ModelGraph, Profile]):
    """Lateness that counts a million times as much, or as little, is no other plan, and no other gap."""
    graph, known = diamond
    found = [
        plan(
            [graph, graph],
            known,
            jobs=[Job(deadline_us=50.0, weight=weight), Job(release_us=30.0, deadline_us=90.0, weight=2.0 * weight)],
            objective="lateness",
            rounds=20,
        )
        for weight in (1.0, 1e-6, 1e5)
    ]
    assert 0.0 < found[0].gap < 1.0
    assert [each.makespan_us for each in found] == pytest.approx([found[0].makespan_us] * 3)
    assert [each.gap for each in found] == pytest.approx([found[0].gap] * 3, rel=1e-3)
