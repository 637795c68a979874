"""The latency predictor: what it makes of an op, of figures, of wild figures, and of too few."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from benchmarks.prediction import main, phone_ops
from benchmarks.profiles import PhoneProfile
from hope_schema import (
    LatencyColumns,
    ModelGraph,
    Op,
    PartColumns,
    Processor,
    Profile,
    SuperOp,
    Tensor,
    TensorType,
    by_recipe,
    merge,
)
from hope_schema.cutgraph import part_super_op
from hope_schema.cutting import Region
from planner_api.prediction.asking import most_telling
from planner_api.prediction.complete import complete, train
from planner_api.prediction.features import TERMS, Features, blocks, features
from planner_api.prediction.lines import Lines, non_negative
from planner_api.prediction.parts import predicted_parts
from planner_api.prediction.predictor import Predictor, Sample, TooLittleError
from tests.planning.phones import FOLDER, phone


def convolution(
    shape: tuple[int, ...], filters: int, window: int = 3, stride: int = 1, groups: int = 1, relu: bool = False
) -> SuperOp:
    """A convolution, padded so that only the stride shrinks it, with a ReLU fused behind it if wanted."""
    batch, channels, height, width = shape
    out = (batch, filters, -(-height // stride), -(-width // stride))
    weight = TensorType(shape=(filters, channels // groups, window, window), dtype="float32")
    attributes = {"kernel_shape": (window, window), "strides": (stride, stride), "group": groups}
    ops = [Op(type="Conv", attributes=attributes, inputs=("x",), outputs=("y",), parameters=(weight,))]
    shapes = {"x": shape, "y": out}
    if relu:
        ops.append(Op(type="Relu", inputs=("y",), outputs=("z",)))
        shapes["z"] = out
    graph = ModelGraph(
        name="one",
        tensors=tuple(Tensor(name=name, shape=size, dtype="float32") for name, size in shapes.items()),
        ops=tuple(ops),
        inputs=("x",),
        outputs=(ops[-1].id,),
    )
    (merged,) = merge(graph)
    return merged


def test_features_say_what_an_op_does():
    """Window, stride, groups, weights, followers; channels count in whole blocks; a group per channel is depthwise."""
    op = features(convolution((1, 6, 32, 32), 10, window=3, stride=2, relu=True))
    assert (op.type, op.channels, op.filters, op.pixels, op.kernel, op.stride) == ("Conv", 6, 10, 256, (3, 3), 2)
    assert (op.read, op.written, op.weights, op.followers, op.packed) == (6 * 1024, 2560, 540, 1, False)
    assert op.multiplications == 256 * 8 * 12 * 9
    assert [blocks(channels) for channels in (1, 4, 5)] == [4, 4, 8]
    deep = features(convolution((1, 8, 16, 16), 8, groups=8))
    assert (deep.type, deep.multiplications) == ("DepthwiseConv", 256 * 8 * 9)


@pytest.mark.parametrize("size", [3, (), ("a", "b"), (1.5, 2.5), (3, 3, 3)])
def test_a_window_that_is_none_counts_as_none(size: object):
    """What a stranger's graph calls a kernel's shape stops no prediction."""
    pool = Op(type="MaxPool", attributes={"kernel_shape": size}, inputs=("x",), outputs=("y",))
    assert features(SuperOp(convolution((1, 8, 16, 16), 8).graph, (pool,))).kernel == (1, 1)


def drawn(seed: int, count: int = 60) -> list[Features]:
    """Random convolutions, pointwise, square and wide, all of different signature."""
    random = np.random.default_rng(seed)
    found: dict[Features, None] = {}
    while len(found) < count:
        channels, filters = (int(4 * random.integers(1, 80)) for _ in range(2))
        size = int(random.choice([7, 14, 28, 56]))
        window = int(random.choice([1, 3, 5]))
        found[features(convolution((1, channels, size, size), filters, window))] = None
    return list(found)


UNITS = dict(zip(TERMS, (30.0, 4.0, 2.0, 6.0, 9.0, 5.0, 3.0, 0.0, 0.0, 0.0), strict=True))


def true_us(op: Features) -> float:
    """A processor for which the formula holds exactly."""
    return float(op.terms @ list(UNITS.values()))


@given(seed=st.integers(0, 100))
@settings(max_examples=20)
def test_lines_find_the_formula_that_made_the_figures(seed: int):
    """Exact figures come back exactly, also for ops that were not among them; wild ones bend the lines little."""
    ops, unseen = drawn(seed), drawn(seed + 1000, 20)
    exact = Lines.fit(ops, [true_us(op) for op in ops])
    assert exact.us(unseen).tolist() == pytest.approx([true_us(op) for op in unseen], rel=1e-3)
    wild = [true_us(op) * (50.0 if index % 12 == 0 else 1.0) for index, op in enumerate(ops)]
    bent = Lines.fit(ops, wild)
    assert np.median(np.abs(bent.us(unseen) / [true_us(op) for op in unseen] - 1)) < 0.1
    assert len(json.dumps(exact.coefficients)) < 2048


@given(seed=st.integers(0, 10_000))
@settings(max_examples=100)
def test_no_non_negative_coefficients_come_nearer(seed: int):
    """SciPy's NNLS finds no smaller squares, whatever the sizes of the terms, missing or proportional ones included."""
    random = np.random.default_rng(seed)
    count, terms = (int(random.integers(1, most)) for most in (40, 11))
    rows = np.abs(random.normal(size=(count, terms))) * 10 ** random.uniform(-4, 4, terms)
    rows *= random.random((count, terms)) < random.random()
    rows[:, -1] = rows[:, 0] * random.choice([0.0, 1.0, 3.0])
    wanted = np.abs(random.normal(size=count)) * random.choice([0.0, 1.0, 1e6], p=[0.1, 0.6, 0.3])
    found = non_negative(rows, wanted)
    assert (found >= 0).all()
    assert np.linalg.norm(rows @ found - wanted) <= nnls(rows, wanted)[1] + 1e-9 * np.linalg.norm(wanted)


def test_a_prediction_knows_how_far_it_is_from_what_was_measured():
    """What was measured comes back with a small spread, a type never seen with a large one."""
    ops = drawn(1)
    odd = [true_us(op) * (1.4 if op.kernel == (5, 5) else 1.0) for op in ops]
    predictor = Predictor([Sample(op, us) for op, us in zip(ops, odd, strict=True)])
    again = predictor(ops)
    assert np.median([abs(one.us / us - 1) for one, us in zip(again, odd, strict=True)]) < 0.05
    strange = predictor([replace(ops[0], type="Softmax"), ops[0]])
    assert strange[0].spread > 5 * strange[1].spread
    assert predictor([]) == []


def test_parts_are_predicted_as_ops_of_their_own():
    """A part takes what the formula says of an op of its size; a matrix product's launch makes its parts dearer."""
    ops = drawn(6, 120)
    predictor = Predictor([Sample(op, true_us(op)) for op in ops])
    whole = convolution((1, 64, 28, 28), 128)
    parts = predicted_parts([whole, whole], {"cpu": predictor})
    assert (parts.signature, parts.axis) == ((whole.signature,) * 2, (1, 2))
    for axis, fixed in zip(parts.axis, parts.fixed, strict=True):
        half = true_us(features(part_super_op(whole, Region.along(axis, 0, (64, 14)[axis - 1]))))
        assert fixed == pytest.approx(2 * half / true_us(features(whole)) - 1, abs=0.1)
    assert predicted_parts([whole], {}) == PartColumns()


CPU, GPU = (
    Processor(id=name, runtime=name, version="1", threads=1, core_class=name, resources=(name,))
    for name in ("cpu", "gpu")
)


def completed(rows: list[tuple[str, Processor, float | None]], ops: dict[str, Features]) -> set[tuple[str, str]]:
    """For which ops and kinds a profile of these rows gets predictions; both kinds are known by other ops."""
    latencies = LatencyColumns(
        signature=tuple(signature for signature, _, _ in rows),
        kind=tuple(processor.kind for _, processor, _ in rows),
        us=tuple(us for _, _, us in rows),
        spread_us=(0.0,) * len(rows),
        count=(1,) * len(rows),
    )
    profile = Profile(soc="soc", frequency="top", processors=(CPU, GPU), latencies=latencies, version=1)
    predictor = Predictor([Sample(op, true_us(op)) for op in drawn(7)])
    found = complete(profile, {CPU.kind: predictor, GPU.kind: predictor}, ops).predicted
    return set(zip(found.signature, found.kind, strict=True))


def test_a_recipe_that_was_refused_leaves_the_op_its_others():
    """A kind that refused one further recipe of a convolution is given convolutions; one that refused the op is not."""
    known, unseen = "Conv:1", "Conv:2"
    ops = dict(zip((known, unseen), drawn(8), strict=False))
    rows: list[tuple[str, Processor, float | None]] = [(known, CPU, 5.0), (by_recipe(known, 1), CPU, None)]
    assert completed(rows, ops) == {(unseen, CPU.kind), (known, GPU.kind), (unseen, GPU.kind)}
    assert completed([*rows, (known, GPU, None)], ops) == {(unseen, CPU.kind)}


def test_what_one_kind_refused_is_predicted_for_another_that_nobody_tried():
    """An op of a type that no kind ran, and one refused, is not left without any processor."""
    strange = replace(drawn(9)[0], type="Strange")
    assert completed([("Strange:1", CPU, None)], {"Strange:1": strange}) == {("Strange:1", GPU.kind)}


def test_predictions_do_not_depend_on_who_was_first():
    """Of two kinds that are known as well the same one stands for a third, in whatever order their figures came."""
    ops = drawn(10, 30)
    known = {
        kind: [Sample(op, factor * true_us(op)) for op in ops[:count]]
        for kind, factor, count in (("a", 1.0, 20), ("b", 30.0, 20), ("c", 5.0, 6))
    }
    first, then = (train(dict(kinds), {}) for kinds in (known.items(), reversed(known.items())))
    assert first["c"](ops) == then["c"](ops)


def test_a_wild_figure_is_not_believed():
    """One signature said to take a hundred times as long moves neither its neighbours nor much of itself."""
    ops = drawn(2)
    figures = [true_us(op) for op in ops]
    honest = Predictor([Sample(op, us) for op, us in zip(ops, figures, strict=True)])
    figures[7] *= 100
    lied = Predictor([Sample(op, us) for op, us in zip(ops, figures, strict=True)])
    for one, other in zip(honest(ops[:7] + ops[8:]), lied(ops[:7] + ops[8:]), strict=True):
        assert other.us == pytest.approx(one.us, rel=0.1)
    assert lied(ops[7:8])[0].us < 3 * true_us(ops[7])


def test_too_little_is_said():
    """Under twenty signatures nothing is predicted from lines; beside another kind a few scale it, none leave doubt."""
    ops = drawn(3)
    with pytest.raises(TooLittleError, match="12 signatures were measured; predictions rest on 20"):
        Predictor([Sample(op, true_us(op)) for op in ops[:12]])
    slow = Predictor([Sample(op, true_us(op)) for op in ops])
    assert all(one.spread > 0.9 for one in Predictor([], beside=slow)(ops))
    fast = Predictor([Sample(op, true_us(op) / 5) for op in ops[:3]], beside=slow)
    for op, one in zip(ops, fast(ops), strict=True):
        assert one.us == pytest.approx(true_us(op) / 5, rel=0.2)


def test_the_most_telling_figures_leave_the_least_uncertain():
    """Against trying each op: the first one asked for leaves the least spread; frequent long ops come first."""
    ops = drawn(4, 40)
    known, asked = ops[:25], ops[25:]
    predictor = Predictor([Sample(op, true_us(op)) for op in known])
    weights = {op: 1 + index % 3 for index, op in enumerate(asked)}

    def left(op: Features) -> float:
        more = Predictor([Sample(one, true_us(one)) for one in [*known, op]])
        us = [one.us for one in predictor(asked)]
        variances = np.maximum(np.diag(more.covariance(asked)), 0)
        return sum(math.sqrt(v) * u * weights[one] for v, u, one in zip(variances, us, asked, strict=True))

    chosen = most_telling([predictor], weights, 5)
    assert len(set(chosen)) == 5
    ranked = sorted(asked, key=left)
    assert chosen[0] in ranked[:3]
    assert most_telling([predictor], weights, 100) == most_telling([predictor], weights, len(asked))
    assert most_telling([predictor], {}, 3) == []


def test_how_slow_the_slower_kind_is_changes_no_question():
    """Figures ten or a hundred times those of another kind are asked for alike: no plan uses them."""
    ops = drawn(5, 60)
    known, asked = ops[:40], ops[40:]
    kinds = [Predictor([Sample(op, factor * true_us(op)) for op in known]) for factor in (1.0, 10.0, 100.0)]
    weights = {op: 1 + index % 3 for index, op in enumerate(asked)}
    assert most_telling([kinds[0], kinds[1]], weights, 10) == most_telling([kinds[0], kinds[2]], weights, 10)


def test_layouts_are_followed_through_a_network():
    """What a layout op does, and whether another works in blocks, hangs on what stands before it, not on its name."""
    chain = ["a/Conv2D", "a___tr4b", "b/add", "b___tr4c", "c/Relu", "c___tr4d", "d/strided_slice"]
    names = ["x", *chain]
    ops = [
        {"name": name, "inputs": [names[index]], "outputs": [name], "latency_us": {}}
        for index, name in enumerate(chain)
    ]
    found = phone_ops(PhoneProfile("p--m", ops, {name: [1, 8, 4, 4] for name in names}, [], {}))
    assert [op.type for op in found] == ["Conv", "Unpack", "Add", "Pack", "Relu", "UnpackHost", "strided_slice"]
    assert [op.packed for op in found] == [True, True, False, True, True, True, False]


def test_windows_of_pools_without_a_size_in_their_names_are_read_off_where_they_stand():
    """A cell's own pool takes every other pixel, one behind which nothing is left all of them, any other 3x3."""
    names = ["cell_4/AvgPool_1", "cell_4/comb_iter_0/left/MaxPool2D/MaxPool", "Logits/AvgPool_1a/AvgPool"]
    shapes = {"x": [1, 8, 14, 14], **{name: [1, 8, size, size] for name, size in zip(names, (7, 7, 1), strict=True)}}
    ops = [{"name": name, "inputs": ["x"], "outputs": [name], "latency_us": {}} for name in names]
    found = phone_ops(PhoneProfile("p--m", ops, shapes, [], {}))
    assert [op.kernel for op in found] == [(1, 1), (3, 3), (14, 14)]


def test_the_benchmark_prints_and_writes_its_rows(tmp_path: Path):
    """Three networks of one phone: a case per number of measured signatures, the more the better in the mean."""
    phone("redmi--inception-v3")
    out = tmp_path / "found.json"
    models = "redmi--inception-v3,redmi--inception-v4"
    main([str(FOLDER), "--models", models, "--rounds", "1", "--json", str(out)])
    found = json.loads(out.read_text())
    assert {row["measure"] for row in found["rows"]} >= {"leave one network out: ops within 10 %"}
    cases = [case for case in found["cases"] if case["left_out"] == "network"]
    assert [case["measured"] for case in cases] == [0, 5, 20, 50] * 2
    by_k = {k: np.mean([c["within_cpu"] for c in cases if c["measured"] == k]) for k in (0, 50)}
    assert by_k[50] > by_k[0] > 0.5
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "nowhere")])
