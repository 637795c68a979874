"""Parts of an op, put side by side, are the op: held against ONNX Runtime on the whole op with one thread."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from itertools import combinations
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from agent_sdk.model import Model, read_model
from agent_sdk.model.cutting import cut_model
from agent_sdk.model.feeds import draw
from agent_sdk.model.weights import LightModels
from hope_schema import Cut, merge
from hope_schema.cutgraph import cut_graph, node_of, part_super_op
from hope_schema.cutrules import granularity, reads
from hope_schema.cutting import CutError, Region, whole_because
from tests import CAMPAIGN
from tests.agent.model.cut_cases import KINDS, OPSET, model
from tests.agent.models import BRANCHING, computed

ROUNDING = 1e-5
"""What a sum that a runtime adds up in another order differs by, beside the largest of all."""
UNSHRUNK = settings(
    max_examples=300 if CAMPAIGN else 10, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
"""Cases are small as they are drawn, and compiling each is dear."""


def _difference(whole: Model, *cuts: Cut) -> float:
    """The largest difference that cuts make to an output, beside its largest element, as ONNX Runtime computes both."""
    parts = cut_model(whole, cuts)
    assert parts.graph == cut_graph(whole.graph, cuts)
    inputs = draw(whole, 1)
    expected, found = computed(whole, inputs), computed(parts, inputs)
    assert {name: array.shape for name, array in found.items()} == {n: a.shape for n, a in expected.items()}
    return max(
        float(np.max(np.abs(found[name] - array))) / max(1.0, float(np.max(np.abs(array))))
        for name, array in expected.items()
    )


def test_values_are_looked_at_in_a_cut_network_too() -> None:
    """What a runtime is not trusted with in the whole it is not trusted with in parts."""
    whole = read_model(BRANCHING)
    cuts = [Cut(op=next(one.id for one in merge(whole.graph) if one.ops[0].type == "Conv"), axes=(2,), at=((8,),))]
    parts = cut_model(whole, cuts)
    feed = draw(whole, 0)
    assert parts.guard.admits(feed)
    assert not parts.guard.admits({**feed, "x": np.full_like(feed["x"], np.inf)})


@pytest.mark.parametrize("kind", KINDS)
@UNSHRUNK
@given(data=st.data())
def test_parts_put_together_are_the_whole(kind: str, data: st.DataObject) -> None:
    """Every cut of every op along every axis, and into boxes of two, computes what the whole computes, if it can be."""
    whole = read_model(KINDS[kind](data.draw))
    super_op = merge(whole.graph)[-1]
    found = {}
    for axis, size in enumerate(whole.graph.tensor[super_op.id].shape):
        with suppress(CutError):
            step = granularity(super_op, axis)
            borders = data.draw(st.sets(st.integers(1, size // step - 1), min_size=1, max_size=2))
            at = tuple(sorted(step * border for border in borders))
            assert _difference(whole, Cut(op=super_op.id, axes=(axis,), at=(at,))) <= ROUNDING
            found[axis] = at
    for axes in combinations(found, 2):
        with suppress(CutError):
            assert _difference(whole, Cut(op=super_op.id, axes=axes, at=tuple(map(found.get, axes)))) <= ROUNDING


@UNSHRUNK
@given(data=st.data())
def test_what_is_no_number_crosses_the_same_borders_in_parts(data: st.DataObject) -> None:
    """A Resize spreads NaN and infinities along axes that keep their size, too: each cut that is allowed does so."""
    mode, rank = data.draw(
        st.sampled_from([("nearest", 4), ("cubic", 4), *(("linear", rank) for rank in (2, 3, 4, 5))])
    )
    factors = data.draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank).filter(lambda own: max(own) > 1))
    if mode != "nearest" and rank > 3:
        factors[:2] = 1, 1
        factors[-1] = 3 - factors[-2]
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode=mode)
    whole = read_model(model([node], {"x": (4,) * rank}, {"s": np.array(factors, np.float32)}))
    x = draw(whole, 1)["x"]
    x[tuple(data.draw(st.integers(0, 3)) for _ in range(rank))] = data.draw(st.sampled_from([np.nan, np.inf]))
    expected = computed(whole, {"x": x})["y"]
    super_op = merge(whole.graph)[-1]
    for axis in range(rank):
        with suppress(CutError):
            for border in range(granularity(super_op, axis), expected.shape[axis], granularity(super_op, axis)):
                parts = cut_model(whole, (Cut(op=super_op.id, axes=(axis,), at=((border,),)),))
                np.testing.assert_allclose(computed(parts, {"x": x})["y"], expected, rtol=ROUNDING, atol=ROUNDING)


def told(kind: str, dtype: int, *reads: str, **shapes: tuple[int, ...]) -> Model:
    """A network of one op, which is told ``q`` in the run and makes four by four; ``x`` is a constant if not fed."""
    nodes = [helper.make_node("Cast", ["p"], ["q"], to=dtype), helper.make_node(kind, reads, ["y"])]
    proto = model(nodes, shapes, {} if "x" in shapes else {"x": (4, 4)})
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 4)))
    return read_model(proto)


@pytest.mark.parametrize(
    "whole",
    [
        told("Pad", TensorProto.INT64, "x", "q", x=(4, 4), p=(4,)),
        told("Pad", TensorProto.INT64, "x", "q", p=(4,)),
        told("Resize", TensorProto.INT64, "x", "", "", "q", x=(4, 2), p=(2,)),
        told("Resize", TensorProto.INT64, "x", "", "", "q", p=(2,)),
        told("Resize", TensorProto.FLOAT, "x", "", "q", x=(4, 2), p=(2,)),
        told("Reshape", TensorProto.INT64, "x", "q", x=(4, 2, 2), p=(2,)),
    ],
)
def test_an_op_that_is_told_in_the_run_what_to_make_stays_whole(whole: Model) -> None:
    """How far it pads, the size, the factor, the shape: what it is told is the whole's, whatever part is made."""
    for axis in range(2):
        with pytest.raises(CutError):
            cut_model(whole, [Cut(op="y", axes=(axis,), at=((2,),))])


@pytest.mark.parametrize("kind", ["MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"])
def test_a_maximum_of_what_may_be_no_number_stays_whole(kind: str) -> None:
    """A root of less than 0 that it hides shows nowhere, and parts make something else of it; of a Relu's it is cut."""
    attributes = {"kernel_shape": [1, 1]} if kind == "MaxPool" else {}
    attributes |= {"axes": [2, 3]} if kind.startswith("Reduce") else {}
    for before in ("Sqrt", "Relu"):
        nodes = [helper.make_node(before, ["x"], ["t"]), helper.make_node(kind, ["t"], ["y"], **attributes)]
        whole = read_model(model(nodes, {"x": (1, 8, 7, 7)}, {}))
        with pytest.raises(CutError, match="no number") if before == "Sqrt" else nullcontext():
            cut_model(whole, [Cut(op="y", axes=(1,), at=((4,),))])


def test_an_axis_that_keeps_its_size_may_be_moved_all_the_same() -> None:
    """A Resize that crops is cut along no axis."""
    crop = helper.make_node(
        "Resize", ["x", "r", "", "s"], ["y"], coordinate_transformation_mode="tf_crop_and_resize", mode="nearest"
    )
    corners = np.array([0, 0.5, 1, 1], np.float32)
    proto = model([crop], {"x": (4, 4)}, {"r": corners, "s": np.array([4, 4], np.int64)})
    super_op = merge(read_model(proto).graph)[-1]
    for axis in range(2):
        with pytest.raises(CutError):
            granularity(super_op, axis)


@pytest.mark.parametrize(
    ("opset", "kind", "attributes", "weights", "axes"),
    [
        (9, "Pad", {"pads": [0, 0, 1, 0, 0, 0, -1, 0]}, {}, {0, 1, 3}),
        (OPSET, "Pad", {}, {"p": np.array([0, 0, 1, 0, 0, 0, -1, 0], np.int64)}, {0, 1, 3}),
        (7, "Upsample", {"scales": [1.0, 1.0, 1.1, 2.0]}, {}, {0, 1, 3}),
        (9, "Upsample", {}, {"s": np.array([1, 1, 1.1, 2], np.float32)}, {0, 1, 3}),
        (10, "Resize", {}, {"s": np.array([1, 1, 1.1, 2], np.float32)}, {0, 1, 3}),
        (18, "Resize", {"axes": [3, 2]}, {"": (), "s": np.array([2, 1], np.float32)}, set()),
        (19, "AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER", "ceil_mode": 1,
                             "dilations": [2, 2], "count_include_pad": 1}, {}, {0, 1}),
        (8, "BatchNormalization", {"spatial": 0},
         dict.fromkeys("smu", (4, 9, 9)) | {"v": np.ones((4, 9, 9), np.float32)}, {0, 1, 2, 3}),
        (OPSET, "LayerNormalization", {}, {"s": (2, 1, 9, 9), "m": (9, 9)}, {0, 1, 2}),
    ],
)  # fmt: skip
def test_axes_along_which_nothing_is_moved_are_cut(
    opset: int, kind: str, attributes: dict[str, Any], weights: dict[str, Any], axes: set[int]
) -> None:
    """Sizes do not say whether an op moves what it reads: attributes and constants do, wherever they stand."""
    node = helper.make_node(kind, ["x", *weights], ["y"], **attributes)
    held = {name: value for name, value in weights.items() if name}
    whole = read_model(model([node], {"x": (2, 4, 9, 9)}, held, opset))
    found = set()
    for axis, size in enumerate(whole.graph.tensor["y"].shape):
        for border in range(1, size):
            with suppress(CutError):
                assert _difference(whole, Cut(op="y", axes=(axis,), at=((border,),))) <= ROUNDING
                found.add(axis)
    assert found == axes


def _chain(channels: int, size: int, rows: list[tuple[int, int, int, int]]) -> onnx.ModelProto:
    """Convolutions in a row, each by its kernel, stride, padding and dilation; a maximum behind the second."""
    nodes, weights, name = [], {}, "x"
    for index, (kernel, stride, pad, dilation) in enumerate(rows):
        weights[f"w{index}"] = (channels, channels, kernel, kernel)
        made = "y" if index == len(rows) - 1 else f"c{index}"
        attributes = {"strides": [stride] * 2, "pads": [pad] * 4, "dilations": [dilation] * 2}
        nodes.append(helper.make_node("Conv", [name, f"w{index}"], [made], **attributes))
        if index == 1:
            nodes.append(helper.make_node("MaxPool", [made], ["p"], kernel_shape=[2, 2], strides=[1, 1]))
        name = "p" if index == 1 else made
    return model(nodes, {"x": (1, channels, size, size)}, weights)


@UNSHRUNK
@given(data=st.data())
def test_chains_are_the_whole_bit_for_bit(data: st.DataObject) -> None:
    """D3's tiles: for any F, S and P, pools and tilings along height, width or both, without exchanging anything.

    What they read may come in parts.
    """
    rows = st.tuples(st.integers(1, 4), st.integers(1, 2), st.integers(0, 3), st.integers(1, 2))
    axes = data.draw(st.sampled_from([(2,), (3,), (2, 3)]))
    whole = read_model(_chain(16, 96, data.draw(st.lists(rows, min_size=3, max_size=4))))
    ops = merge(whole.graph)
    ratios = [sorted(data.draw(st.sets(st.integers(2, 8), min_size=1, max_size=2))) for _ in axes]
    cuts = []
    for op in ops:
        shape = whole.graph.tensor[op.id].shape
        at = [
            tuple(sorted({max(1, round(tenth / 10 * shape[axis])) for tenth in own}))
            for axis, own in zip(axes, ratios, strict=True)
        ]
        cuts.append(Cut(op=op.id, axes=axes, at=tuple(at), chained=op != ops[0]))
    if data.draw(st.booleans()):
        cuts.append(Cut(op="x", axes=axes, at=tuple(tuple(10 * tenth for tenth in own) for own in ratios)))
    with suppress(CutError):
        assert _difference(whole, *cuts) == 0.0
        joined = [op.outputs[0] for op in cut_graph(whole.graph, cuts).ops if op.type == "Concat"]
        assert all(name.partition("[")[0] == "y" or ">" in name for name in joined)


def test_a_part_that_is_the_whole_is_read_as_it_is() -> None:
    """The second part of a deep chain needs all that is before it: nothing is put together of one part."""
    whole = read_model(_chain(16, 96, [(1, 2, 0, 2), (4, 2, 2, 2), (4, 1, 2, 2), (4, 1, 2, 1)]))
    ops = [op.id for op in merge(whole.graph)]
    cuts = [
        Cut(op=op, axes=(2,), at=((at,),), chained=op != ops[0]) for op, at in zip(ops, (10, 5, 4, 4, 4), strict=True)
    ]
    assert [op.outputs for op in cut_graph(whole.graph, cuts).ops if op.type == "Concat"] == [("y",)]
    assert _difference(whole, *cuts) == 0.0


def test_models_of_old_opsets_are_cut() -> None:
    """Before opset 10 a slice has its bounds as attributes: halves with halos are the whole all the same."""
    proto = _chain(4, 12, [(3, 1, 1, 1), (3, 1, 1, 1)])
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("", 9))
    whole = read_model(proto)
    cuts = [Cut(op=one.id, axes=(2,), at=((6,),)) for one in merge(whole.graph)]
    assert any(node.op_type == "Slice" for node in cut_model(whole, cuts).proto.graph.node)
    assert _difference(whole, *cuts) == 0.0


def test_a_chain_of_four_is_cut() -> None:
    """Four convolutions of 3x3 in two parts: one slice each in, one join out, three more rows at the first border."""
    whole = read_model(_chain(16, 32, [(3, 1, 1, 1)] * 4))
    ops = [op.id for op in merge(whole.graph)]
    cuts = [Cut(op=op, axes=(2,), at=((16,) if op != "y" else (15,),), chained=op != ops[0]) for op in ops]
    made = cut_graph(whole.graph, cuts)
    assert [op.type for op in made.ops].count("Slice") == 2
    assert [op.type for op in made.ops].count("Concat") == 1
    assert _difference(whole, *cuts) == 0.0


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_convolutions_of_whole_blocks_are_equal_to_the_bit(axis: int, kernel: int) -> None:
    """Where the runtime computes every output alike, as it does in blocks of channels, not a bit differs."""
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[kernel // 2] * 4)
    whole = read_model(model([node], {"x": (1, 32, 20, 20)}, {"w": (64, 32, kernel, kernel), "b": (64,)}))
    assert _difference(whole, Cut(op="y", axes=(axis,), at=((16,),))) == 0.0


@pytest.mark.parametrize(
    ("attributes", "weights", "axis", "step"),
    [
        ({}, (12, 8, 3, 3), 1, 1),
        ({"group": 8}, (8, 1, 3, 3), 1, 1),
        ({"group": 2}, (12, 4, 3, 3), 1, 6),
        ({"group": 2}, (12, 4, 3, 3), 2, 1),
    ],
)
def test_borders_lie_between_groups(attributes: dict[str, int], weights: tuple[int, ...], axis: int, step: int) -> None:
    """Channels are cut between groups, each channel of a depthwise convolution is one; rows are cut anywhere."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    whole = read_model(model([node], {"x": (1, 8, 9, 9)}, {"w": weights}))
    [super_op] = merge(whole.graph)
    assert granularity(super_op, axis) == step


@pytest.mark.parametrize("axis", [1, 2])
def test_a_part_has_the_signature_that_it_has_in_a_plan(axis: int) -> None:
    """Whoever knows the whole op knows what the latency of a part is kept under, before any plan holds it."""
    node = helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1])
    after = helper.make_node("Relu", ["c"], ["y"])
    whole = read_model(model([node, after], {"x": (1, 8, 12, 12)}, {"w": (16, 8, 3, 3), "b": (16,)}))
    [super_op] = merge(whole.graph)
    planned = {one.id: one.signature for one in merge(cut_graph(whole.graph, [Cut(op="y", axes=(axis,), at=((5,),))]))}
    for start, stop in ((0, 5), (5, whole.graph.tensor["y"].shape[axis])):
        region = Region.along(axis, start, stop)
        assert part_super_op(super_op, region).signature == planned[region.of("y")]


def test_heads_of_an_attention_are_cut_from_the_products_to_the_last_reshape() -> None:
    """A part of the heads goes from the reshape that makes them through scores, softmax and values without a join."""
    rows, heads, width = 6, 4, 5
    targets = {"apart": (1, rows, heads, width), "together": (1, rows, heads * width)}
    shapes = {name: np.array(target, np.int64) for name, target in targets.items()}
    nodes = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            helper.make_node("Reshape", [f"{name}0", "apart"], [f"{name}1"]),
            helper.make_node("Transpose", [f"{name}1"], [name], perm=perm),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["turned", "together"], ["y"]),
    ]
    proto = model(nodes, {"x": (1, rows, heads * width)}, shapes | {f"w{n}": (heads * width,) * 2 for n in "qkv"})
    whole = read_model(proto)
    axes = {"q1": 2, "k1": 2, "v1": 2, "q": 1, "k": 1, "v": 1, "scores": 1, "weights": 1, "mixed": 1}
    found = [op.id for op in merge(whole.graph)]
    cuts = [Cut(op=op, axes=(axes[op],), at=((1,),)) for op in found if op in axes]
    cuts += [Cut(op="turned", axes=(2,), at=((1,),))] if "turned" in found else []
    cuts += [Cut(op="y", axes=(2,), at=((width,),))] if "y" in found else []
    assert _difference(whole, *cuts) <= ROUNDING
    joins = [op for op in cut_graph(whole.graph, cuts).ops if op.type == "Concat"]
    assert [join.id for join in joins] == ["y"]


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (Cut(op="y", axes=(2,), at=((9,),)), "empty"),
        (Cut(op="y", axes=(1,), at=((3,),)), "multiples of 6"),
        (Cut(op="y", axes=(2,), at=((1,),)), "larger than the part"),
        (Cut(op="y", axes=(4,), at=((1,),)), "axis 4"),
        (Cut(op="nobody", axes=(1,), at=((1,),)), "no op 'nobody'"),
    ],
)
def test_what_cannot_be_cut_says_why(cut: Cut, reason: str) -> None:
    """An empty part, a border inside a group, a kernel larger than the part, no such axis, no such op."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=2, pads=[2, 2, 2, 2])
    whole = read_model(model([node], {"x": (1, 8, 9, 9)}, {"w": (12, 4, 5, 5)}))
    with pytest.raises(CutError, match=reason):
        cut_model(whole, [cut])


def test_padding_beyond_the_image_keeps_an_op_whole() -> None:
    """A part whose windows would see nothing but padding is none."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[3, 0, 3, 0])
    [super_op] = merge(read_model(model([node], {"x": (1, 4, 9, 9)}, {"w": (4, 4, 2, 2)})).graph)
    with pytest.raises(CutError, match="nothing but padding"):
        reads(super_op, Region.along(2, 0, 2))


@pytest.mark.parametrize(
    ("node", "shape", "weights", "reason"),
    [
        (helper.make_node("Conv", ["x", "w"], ["y"]), (1, 4, 3, 3), {"w": (1, 4, 3, 3)}, "has 1 along axis 1"),
        (helper.make_node("Conv", ["x", "w"], ["y"], pads=[5] * 4), (1, 1, 3, 3), {"w": (1, 1, 9, 9)}, "larger than"),
        (helper.make_node("Conv", ["x", "w"], ["y"], pads=[3] * 4), (1, 1, 1, 1), {"w": (1, 1, 2, 2)}, "but padding"),
        (helper.make_node("Softmax", ["x"], ["y"], axis=0), (1, 4, 6, 6), {}, "normalises over axis 1"),
        (helper.make_node("Einsum", ["x"], ["y"], equation="abcd->abdc"), (1, 4, 6, 6), {}, "no rule says how Einsum"),
    ],
)
def test_an_op_that_stays_whole_has_a_reason(
    node: onnx.NodeProto, shape: tuple[int, ...], weights: dict[str, tuple[int, ...]], reason: str
) -> None:
    """What no axis of an op allows is said: an empty part, a window larger than it, padding alone, no rule."""
    whole = read_model(model([node], {"x": shape}, weights))
    [super_op] = merge(whole.graph)
    said = whole_because(node_of(super_op), {one.name: one.shape for one in whole.graph.tensors})
    assert said is not None
    assert reason in said


def test_weights_are_cut_by_offset_in_the_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Filters of a part are a place in the whole's file, not a copy; columns of a matrix are not contiguous."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("MatMul", ["c", "m"], ["y"])]
    whole = read_model(model(nodes, {"x": (1, 16, 8, 32)}, {"w": (32, 16, 1, 1), "m": (32, 64)}))
    lights = LightModels(tmp_path_factory.mktemp("weights"))
    parts = cut_model(whole, [Cut(op="c", axes=(1,), at=((8,),)), Cut(op="y", axes=(3,), at=((32,),))])
    light, folder = lights.get(parts)
    places = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data} for tensor in light.constants.values()
    }
    assert places["w[0:8:32]"]["location"] == places["w[0:0:8]"]["location"] == "weights.bin"
    assert int(places["w[0:8:32]"]["offset"]) - int(places["w[0:0:8]"]["offset"]) == 8 * 16 * 4
    assert places["m[1:0:32]"]["location"] not in ("", "weights.bin")
    assert lights.get(whole)[1] == folder
    assert light.path is not None
    inputs = draw(whole, 1)
    [found] = ort.InferenceSession(light.path).run(["y"], dict(inputs))
    assert np.abs(found - computed(whole, inputs)["y"]).max() < ROUNDING
