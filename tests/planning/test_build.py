"""From graph and profile to problem: what is looked up, what is filled by which rule, what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from hope_schema import Overheads, Processor
from planner_api.planning import Job, Machine, PlanningError, Problem, build_problem
from planner_api.planning.problem.transfers import elements, fit
from tests.planning.drawn import draw
from tests.planning.models import BOTH_WAYS, CPU, DIAMOND, FIGURES, GPU, SHAPE, network, profile


def test_measured_figures_are_taken_as_they_are():
    """Latencies by (signature, kind), transfers by (shape, direction), nothing flagged."""
    graph = network(DIAMOND)
    problem = build_problem(graph, profile(graph, FIGURES, BOTH_WAYS))
    assert dict(zip(problem.ops, problem.latency_us.tolist(), strict=True)) == {
        "a": [40.0, 50.0],
        "b": [60.0, 30.0],
        "c": [60.0, 30.0],
        "d": [20.0, 90.0],
    }
    across = problem.tensors.index("a")
    assert (problem.crossing_us(across)[0, 1], problem.crossing_us(across)[1, 0]) == (10.0, 4.0)
    assert not problem.filled


def test_absent_stays_off_its_processor_as_unsupported_does():
    """What was neither measured nor predicted is placed elsewhere, and the plan can say so; null needs no word."""
    graph = network(DIAMOND)
    figures = {"cpu": FIGURES["cpu"], "gpu": {"b": 30.0, "c": 120.0, "d": None}}
    problem = build_problem(graph, profile(graph, figures, BOTH_WAYS))
    assert problem.latency_us[:, 1].tolist() == [math.inf, 30.0, 120.0, math.inf]
    (sentence,) = problem.filled
    assert sentence == "not measured on 'gpu', nor predicted, so not placed there: 'a'"


def test_a_missing_transfer_follows_its_direction_s_line():
    """Two measured sizes give the line; the tensor in between lies on it, in bytes as in elements."""
    graph = network(DIAMOND)
    moves = [("cpu", "gpu", (1, 8, 8, 8), 5.0), ("cpu", "gpu", (1, 8, 32, 32), 65.0), *BOTH_WAYS[1:]]
    problem = build_problem(graph, profile(graph, FIGURES, moves))
    slope = 60.0 / (8 * 32 * 32 - 8 * 8 * 8)
    expected = 5.0 + slope * (8 * 16 * 16 - 8 * 8 * 8)
    assert problem.crossing_us(problem.tensors.index("a"))[0, 1] == pytest.approx(expected)
    assert any("fitted line" in sentence for sentence in problem.filled)


def test_overheads_are_part_of_every_move_between_processors():
    """The source's end and the target's launch are added to moves between processors, never to those of the host."""
    graph = network(DIAMOND)
    overheads = Overheads(launch_us={GPU.kind: 3.0}, end_us={CPU.kind: 0.5, GPU.kind: 0.5})
    problem = build_problem(graph, profile(graph, FIGURES, BOTH_WAYS, overheads=overheads))
    across = problem.tensors.index("a")
    assert (problem.crossing_us(across)[0, 1], problem.crossing_us(across)[1, 0]) == (13.5, 4.5)
    assert not problem.transfer_us[problem.tensors.index("x"), problem.machine.host].any()


@pytest.mark.parametrize("seed", range(20))
def test_what_kinds_of_processors_pay_each_other_is_what_every_pair_of_them_pays(seed: int):
    """Prices between kinds, each as often as it has pairs, are those of all ordered pairs of different processors."""
    problem = draw(seed, 6, most_processors=6)
    price, pairs = problem.between_us
    each = list(itertools.permutations(range(problem.host), 2))
    for row, between in zip(map(problem.crossing_us, range(len(price))), price, strict=True):
        assert sorted(row[a, b] for a, b in each) == pytest.approx(sorted(np.repeat(between, pairs.ravel())))


def test_equal_cores_share_figures_and_gangs_share_cores():
    """Two processors of one kind get the same latencies; a gang excludes both of its cores; both move for free."""
    graph = network(DIAMOND)
    cores = [
        Processor(id=f"ort@{core}", runtime="ort", version="1", threads=1, core_class="big", resources=(f"cpu{core}",))
        for core in (0, 1)
    ]
    gang = Processor(id="ort@0-1", runtime="ort", version="1", threads=2, core_class="big", resources=("cpu0", "cpu1"))
    figures = {"ort@0": FIGURES["cpu"], "ort@0-1": {op: us / 2 for op, us in FIGURES["cpu"].items() if us}}
    problem = build_problem(graph, profile(graph, figures, processors=(*cores, gang)))
    assert (problem.latency_us[:, 0] == problem.latency_us[:, 1]).all()
    assert problem.machine.conflicts.tolist() == [[True, False, True], [False, True, True], [True, True, True]]
    assert not problem.transfer_us.any()


def test_two_runtimes_without_rows_move_through_the_host():
    """Where no row joins two processors, both halves over the host do."""
    graph = network(DIAMOND)
    moves = [("cpu", "host", SHAPE, 2.0), ("host", "gpu", SHAPE, 5.0), ("gpu", "cpu", SHAPE, 4.0)]
    problem = build_problem(graph, profile(graph, FIGURES, moves, channels=()))
    assert problem.crossing_us(problem.tensors.index("a"))[0, 1] == 7.0


@given(rows=st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1e5)), min_size=1, max_size=12))
@settings(max_examples=100)
def test_the_line_is_the_best_non_negative_one(rows: list[tuple[int, float]]):
    """No non-negative line has smaller squares: SciPy's NNLS agrees."""
    counts, costs = [row[0] for row in rows], [row[1] for row in rows]
    line = fit(counts, costs)
    scale = max(counts)
    _, residual = nnls(np.array([[1.0, count / scale] for count in counts]), np.array(costs))
    squares = sum((cost - line.cost_us(count)) ** 2 for count, cost in rows)
    assert min(line.intercept_us, line.slope_us) >= 0
    assert math.sqrt(squares) <= residual * (1 + 1e-6) + 1e-3


def test_elements_count_an_empty_dimension_as_one():
    """The rule's measure is the product of max(d, 1)."""
    assert elements([0, 3, 4]) == 12
    assert elements([]) == 1


def test_what_cannot_be_planned_is_refused_by_name():
    """Unknown processor, no processor, op unsupported everywhere, op measured nowhere, tensor that cannot move."""
    graph = network(DIAMOND)
    good = profile(graph, FIGURES, BOTH_WAYS)
    split = {"cpu": {"a": 1.0, "b": None, "c": 1.0, "d": 1.0}, "gpu": {"a": None, "b": 1.0, "c": None, "d": None}}
    nobody = {place: row | {"c": None} for place, row in FIGURES.items()}
    nowhere = {place: {op: us for op, us in row.items() if op != "c"} for place, row in FIGURES.items()}
    cases = [
        (good, ["npu"], "processor 'npu' is not in the profile"),
        (good, [], "no processor to plan for"),
        (profile(graph, nobody, BOTH_WAYS), None, "no processor supports op 'c'"),
        (profile(graph, nowhere, BOTH_WAYS), None, "op 'c' .* no measured latency"),
        (profile(graph, split, channels=()), None, "tensor '[ab]' cannot move between op '[ab]' and op '[bd]'"),
        (profile(graph, split, BOTH_WAYS[:1], channels=()), None, "tensor 'b' cannot move between op 'b' and op 'd'"),
    ]
    for figures, processors, words in cases:
        with pytest.raises(PlanningError, match=words):
            build_problem(graph, figures, processors)
    with pytest.raises(PlanningError, match="0 networks for 0 jobs"):
        build_problem([], good)
    assert build_problem(graph, profile(graph, split, BOTH_WAYS)).ops == ("a", "b", "c", "d")


def plain(**changes: object) -> Problem:
    """Two ops in a row on one processor, with some columns replaced."""
    columns: dict[str, object] = {
        "ops": ("a", "b"),
        "machine": Machine.apart(("cpu",)),
        "latency_us": np.ones((2, 1)),
        "producer": np.array([0, 1]),
        "reads": ((), (0,)),
        "is_output": np.array([False, True]),
        "transfer_us": np.zeros((2, 2, 2)),
        "tensors": ("ta", "tb"),
    }
    return Problem(**(columns | changes))


BAD = [
    ({"ops": (), "latency_us": np.ones((0, 1)), "reads": ()}, "no ops"),
    ({"share": np.array([[1.0], [0.0]])}, "share of op 'b' on 'cpu' is 0.0"),
    ({"share": np.array([[1.0], [1.5]])}, "share of op 'b' on 'cpu' is 1.5"),
    ({"jobs": (Job(5.0, 4.0),)}, "released at 5.0 µs cannot be due at 4.0"),
    ({"jobs": (Job(weight=0.0),)}, "weight must be positive"),
    ({"job": np.array([0, 1])}, "a job that does not exist"),
    ({"latency_us": np.array([[1.0], [-1.0]])}, "latency of op 'b' on 'cpu' is -1.0"),
    ({"latency_us": np.array([[1.0], [math.nan]])}, "latency of op 'b' on 'cpu' is nan"),
    ({"latency_us": np.array([[1.0], [math.inf]])}, "no processor supports op 'b'"),
    ({"latency_us": np.ones((3, 1))}, "latency_us has shape"),
    ({"transfer_us": np.full((2, 2, 2), -1.0)}, "transfer of tensor 'ta'"),
    ({"transfer_us": np.full((2, 2, 2), 1.0)}, "to itself must cost nothing"),
    ({"reads": ((1,), (0,))}, "cycle through op '[ab]'"),
    ({"reads": ((), (0, 0))}, "op 'b' reads a tensor twice"),
    ({"reads": ((), (5,))}, "op 'b' reads"),
    ({"producer": np.array([0, 9])}, "produced by an op that does not exist"),
]


@pytest.mark.parametrize(("changes", "words"), BAD)
def test_bad_figures_never_become_a_problem(changes: dict[str, object], words: str):
    """Empty, cyclic, negative, NaN, infinite or misshapen: a typed error that says which op and why."""
    with pytest.raises(PlanningError, match=words):
        plain(**changes)
