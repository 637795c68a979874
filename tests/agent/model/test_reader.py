"""The reader keeps a model's meaning: what it plans and cuts computes what the file computes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from agent_sdk.model import Model, ModelError, extract, pre_softmax_outputs, read_model
from agent_sdk.model.model import read_network
from agent_sdk.runtimes.ort.graph import tensor_classes
from hope_schema import ModelGraph, merge
from tests import CAMPAIGN
from tests.agent.model.random_models import CHANNELS, SIDE, RandomModel, evaluate, sorted_proto

CASES = 400 if CAMPAIGN else 120
SHAPE = (1, CHANNELS, SIDE, SIDE)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """Put a small float model together; outputs are left to inference."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run_in_pieces(model: Model, pieces: list[tuple[list[str], tuple[str, ...], tuple[str, ...]]], feeds):
    """Run the pieces one by one, each seeing only the tensors it declares."""
    tensors = dict(feeds)
    for ops, inputs, outputs in pieces:
        piece = extract(model, ops, inputs, outputs)
        onnx.checker.check_model(piece, full_check=True)
        tensors.update(evaluate(piece, {name: tensors[name] for name in inputs}))
    return {name: tensors[name] for name in model.graph.outputs}


def random_pieces(model: Model, rng: random.Random) -> list[tuple[list[str], tuple[str, ...], tuple[str, ...]]]:
    """Cut the topological order at random places."""
    graph = model.graph
    order = list(graph.topological_ops)
    cuts = sorted(rng.sample(range(1, len(order)), rng.randrange(len(order)))) if len(order) > 1 else []
    pieces = []
    for start, stop in zip([0, *cuts], [*cuts, len(order)], strict=True):
        ops = order[start:stop]
        ids = {op.id for op in ops}
        own = [name for op in ops for name in op.outputs]
        reads = dict.fromkeys(name for op in ops for name in op.inputs if name not in own)
        crossing = [n for n in own if n in graph.outputs or any(r not in ids for r in graph.consumers.get(n, ()))]
        if crossing:
            pieces.append((list(ids), tuple(reads), tuple(crossing)))
    return pieces


@settings(max_examples=CASES, deadline=None)
@given(seed=st.integers(0, 10**9), steps=st.integers(1, 14))
def test_pieces_compute_what_the_file_computes(seed: int, steps: int) -> None:
    """Random models, read, cut at random and at super-ops, give bit for bit what the untouched file gives."""
    source = RandomModel(seed, steps)
    model = read_model(source.proto)
    rng = np.random.default_rng(seed)
    feeds = {name: rng.standard_normal(SHAPE).astype(np.float32) for name in ("x", "y")}
    expected = evaluate(sorted_proto(source.proto), feeds)
    supers = [([op.id for op in s.ops], s.inputs, s.outputs) for s in merge(model.graph)]
    for pieces in (random_pieces(model, random.Random(seed)), supers):
        found = run_in_pieces(model, pieces, feeds)
        assert set(found) == set(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


@settings(max_examples=CASES, deadline=None)
@given(seed=st.integers(0, 10**9), steps=st.integers(1, 14))
def test_the_graph_is_static_minimal_and_true_to_the_runtime(seed: int, steps: int) -> None:
    """No shape arithmetic, constants, dead ops or unread masks are left, and declared shapes are the real ones."""
    model = read_model(RandomModel(seed, steps).proto)
    graph = model.graph
    assert not {op.type for op in graph.ops} & {"Constant", "Shape", "Gather", "Sqrt", "Mul"}
    for op in graph.ops:
        assert op.inputs, f"{op.type} without activation inputs was not folded"
        assert len(op.outputs) == 1
        for name in op.outputs:
            assert name in graph.outputs or graph.consumers.get(name), f"dead op '{op.id}' is left"
    seen = set()
    for op in graph.ops:
        if not op.parameters and op.type != "Dropout" and op.id not in graph.outputs:
            same = (op.type, repr(op.attributes), op.inputs)
            assert same not in seen, f"'{op.id}' equals an op before it"
            seen.add(same)
    whole = onnx.ModelProto()
    whole.CopyFrom(model.proto)
    del whole.graph.output[:]
    whole.graph.output.extend(
        onnx.ValueInfoProto(name=tensor.name) for tensor in graph.tensors if tensor.name not in "xy"
    )
    whole = onnx.shape_inference.infer_shapes(whole)
    feeds = {name: np.zeros(SHAPE, np.float32) for name in ("x", "y")}
    for name, value in evaluate(whole, feeds).items():
        assert (graph.tensor[name].shape, graph.tensor[name].dtype) == (value.shape, str(value.dtype))


def test_twins_are_read_once() -> None:
    """Ops that compute the same become one, whatever only renames between; outputs, random ops and weights stay."""
    amounts = [[0, 0, 1, 1, 0, 0, 1, last] for last in (1, 1, 2)]
    whole = [numpy_helper.from_array(np.array(amount), f"pads{k}") for k, amount in enumerate(amounts)]
    scales = [numpy_helper.from_array(np.ones(1, np.float32), f"scale{k}") for k in range(2)]
    training = numpy_helper.from_array(np.array(True), "training")
    done = numpy_helper.from_array(np.array(False), "done")
    half = numpy_helper.from_array(np.array(0.5, np.float32), "half")
    nodes = [
        helper.make_node("Relu", ["x"], ["r0"]),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Dropout", ["same", "half", "done"], ["same_again"]),
        *(helper.make_node("Relu", [name], [f"r{k}"]) for k, name in enumerate(["same", "same_again"], 1)),
        *(helper.make_node("Pad", [f"r{k}", f"pads{k}"], [f"p{k}"]) for k in range(3)),
        *(helper.make_node("MaxPool", [f"p{k}"], [f"m{k}"], kernel_shape=[2, 2]) for k in range(3)),
        *(helper.make_node("Split", ["x"], [f"a{k}", f"b{k}"], axis=1, num_outputs=2) for k in range(2)),
        *(helper.make_node("Concat", [f"b{k}", f"a{k}"], [f"turned{k}"], axis=1) for k in range(2)),
        *(helper.make_node("RandomNormalLike", ["x"], [f"n{k}"]) for k in range(2)),
        *(helper.make_node("Dropout", ["x", "half", "training"], [f"d{k}"]) for k in range(2)),
        *(helper.make_node("Mul", ["x", f"scale{k}"], [f"w{k}"]) for k in range(2)),
        *(helper.make_node("Sigmoid", ["x"], [f"s{k}"]) for k in range(3)),
        helper.make_node("Concat", ["m0", "m1", "m2"], ["joined"], axis=3),
        helper.make_node("Concat", ["n0", "n1", "d0", "d1", "w0", "w1", "s2", "turned0", "turned1"], ["rest"], axis=3),
    ]
    graph = helper.make_graph(
        nodes,
        "twins",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("joined", "rest", "s0", "s1")],
        [*whole, *scales, training, done, half],
    )
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    read = model.graph
    assert read.op["joined"].inputs == ("m0", "m0", "m2")
    assert read.op["rest"].inputs == ("n0", "n1", "d0", "d1", "w0", "w1", "s0", "turned0", "turned0")
    assert {op.id for op in read.ops if op.type not in ("Identity", "Dropout", "Concat")} == (
        {"r0", "p0", "p2", "m0", "m2", "a0", "n0", "n1", "w0", "w1", "s0", "s1"}
    )
    classes = tensor_classes(model)
    assert classes["s0"] == classes["s1"]
    assert len({classes[name] for name in ("n0", "n1", "d0", "d1", "w0", "w1", "x")}) == 7


@settings(max_examples=CASES // 2, deadline=None)
@given(seed=st.integers(0, 10**9), steps=st.integers(2, 12))
def test_hash_ignores_node_order_and_weights(seed: int, steps: int) -> None:
    """A network with its nodes shuffled and its weights changed keeps its model hash, not its content digest."""
    proto = RandomModel(seed, steps).proto
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    nodes = list(other.graph.node)
    random.Random(seed + 1).shuffle(nodes)
    del other.graph.node[:]
    other.graph.node.extend(nodes)
    for index, tensor in enumerate(other.graph.initializer, 1):
        tensor.raw_data = (numpy_helper.to_array(tensor) + index).tobytes()
    first, second = read_model(proto), read_model(other)
    assert first.graph.model_hash == second.graph.model_hash
    if first.constants.keys() & {tensor.name for tensor in other.graph.initializer}:
        assert first.content_digest != second.content_digest


def test_one_model_reached_four_ways_is_one_model(tmp_path: Path) -> None:
    """A ModelProto, its bytes, a file, and a file with external weights have one digest and one graph."""
    proto = RandomModel(7, 12).proto
    plain = tmp_path / "plain.onnx"
    onnx.save(proto, plain)
    split = onnx.ModelProto()
    split.CopyFrom(proto)
    convert_model_to_external_data(split, location="weights.bin", size_threshold=0)
    onnx.save(split, tmp_path / "split.onnx")
    models = [read_model(s, name="m") for s in (proto, proto.SerializeToString(), str(plain), tmp_path / "split.onnx")]
    assert len({model.content_digest for model in models}) == 1
    assert len({model.graph.model_dump_json() for model in models}) == 1
    assert models[2].path == plain
    assert models[0].path is None


def test_the_callers_model_is_left_alone() -> None:
    """Reading a ModelProto changes nothing in it."""
    proto = RandomModel(11, 12).proto
    before = proto.SerializeToString(deterministic=True)
    read_model(proto)
    assert proto.SerializeToString(deterministic=True) == before


def test_a_batch_symbol_is_fixed_wherever_it_recurs() -> None:
    """A symbol that names the batch of one input stands for 1 in another input's second axis too."""
    add = helper.make_node("Add", ["a", "b"], ["c"])
    graph = read_model(model_of([add], {"a": ["n", 3], "b": [2, "n", 3]}, ["c"])).graph
    assert graph.tensor["a"].shape == (1, 3)
    assert graph.tensor["b"].shape == (2, 1, 3)
    assert graph.tensor["c"].shape == (2, 1, 3)


def test_constants_are_parameters_and_attributes_are_canonical() -> None:
    """Weights show as types only, a default spelt out equals one left out, and an optional empty input is no input."""
    weights = {"w": np.ones((2, 3, 1, 1), np.float32), "high": np.float32(6)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=1, auto_pad="NOTSET", kernel_shape=[1, 1]),
        helper.make_node("Clip", ["c", "", "high"], ["y"]),
    ]
    graph = read_model(model_of(nodes, {"x": [1, 3, 5, 5]}, ["y"], weights)).graph
    conv, clip = graph.topological_ops
    assert conv.attributes == {"kernel_shape": (1, 1)}
    assert [str(p) for p in conv.parameters] == ["float32[2,3,1,1]"]
    assert clip.inputs == ("c",)
    assert [str(p) for p in clip.parameters] == ["float32[]"]
    assert ModelGraph.model_validate_json(graph.model_dump_json()) == graph


def test_a_first_output_that_is_left_empty_names_nothing() -> None:
    """An LSTM of which only the last hidden state is asked for is known by that tensor."""
    weights = {"w": np.ones((1, 8, 3), np.float32), "r": np.ones((1, 8, 2), np.float32)}
    node = helper.make_node("LSTM", ["x", "w", "r"], ["", "h", "unread"], hidden_size=2)
    model = read_model(model_of([node], {"x": [4, 1, 3]}, ["h"], weights))
    assert [op.id for op in model.graph.ops] == ["h"]
    assert model.graph.ops[0].outputs == ("h",)
    feeds = {"x": np.ones((4, 1, 3), np.float32)}
    piece = extract(model, ["h"], ["x"], ["h"])
    np.testing.assert_array_equal(evaluate(piece, feeds)["h"], evaluate(model.proto, feeds)["h"])


def test_local_functions_are_inlined() -> None:
    """A model-local function becomes the ops of its body."""
    body = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    proto = model_of([helper.make_node("Twice", ["x"], ["y"], domain="local")], {"x": [1, 3]}, ["y"])
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.functions.append(body)
    assert [op.type for op in read_model(proto).graph.ops] == ["Add"]


def test_an_op_without_an_inference_rule_gets_its_shape() -> None:
    """The normalisations that ONNX defines by a function alone have the shape of their input, as the runtime agrees."""
    nodes = [
        helper.make_node("MeanVarianceNormalization", ["x"], ["a"]),
        helper.make_node("GroupNormalization", ["a", "s", "s"], ["y"], num_groups=2),
    ]
    proto = model_of(nodes, {"x": [1, 4, 3, 3]}, ["a", "y"], {"s": np.ones(4, np.float32)}, opset=21)
    model = read_model(proto)
    for name, value in evaluate(model.proto, {"x": np.ones((1, 4, 3, 3), np.float32)}).items():
        assert model.graph.tensor[name].shape == value.shape


def test_random_ops_are_never_folded() -> None:
    """An op without inputs that draws numbers stays an op."""
    nodes = [
        helper.make_node("RandomNormal", [], ["r"], shape=[1, 3]),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    assert sorted(op.type for op in read_model(model_of(nodes, {"x": [1, 3]}, ["y"])).graph.ops) == [
        "Add",
        "RandomNormal",
    ]


def test_extract_refuses_what_is_no_piece() -> None:
    """Unknown ops, missing inputs, foreign outputs and empty pieces are refused by name."""
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    model = read_model(model_of(nodes, {"x": [1, 3]}, ["b"]))
    for ops, inputs, outputs, text in (
        (["nope"], ["x"], ["b"], "no op 'nope'"),
        (["b"], [], ["b"], "reads 'a'"),
        (["a"], ["x"], ["b"], "'b'"),
        ([], [], ["b"], "at least one op"),
        (["a"], ["x"], [], "at least one op"),
        (["a", "b"], ["x", "a"], ["b"], "'a' cannot be an input"),
    ):
        with pytest.raises(ModelError, match=text):
            extract(model, ops, inputs, outputs)


def test_comparisons_are_made_before_a_final_softmax() -> None:
    """Reshapes between softmax and output are looked through; a softmax in the middle, an input and other ends not."""
    shape = {"s": np.array([1, 2, 2], np.int64)}
    nodes = [
        helper.make_node("Relu", ["x"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["p"], axis=1),
        helper.make_node("Reshape", ["p", "s"], ["shown"]),
        helper.make_node("Neg", ["p"], ["other"]),
    ]
    graph = read_model(model_of(nodes, {"x": [1, 4]}, ["shown", "other", "logits"], shape)).graph
    assert pre_softmax_outputs(graph) == ("logits", "other", "logits")
    alone = read_model(model_of([helper.make_node("Softmax", ["x"], ["p"])], {"x": [1, 4]}, ["p"])).graph
    assert pre_softmax_outputs(alone) == ("p",), "an input is not computed: there is nothing to compare"


def test_ports_are_those_of_the_file_whatever_becomes_of_its_graph() -> None:
    """A session is asked for its outputs while another thread rewrites the graph for a plan."""
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])]
    undeclared = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", infos, undeclared)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    network, untouched = read_network(file), read_network(file)
    network.bound_in_place(None)
    assert (network.inputs, network.outputs) == (untouched.inputs, untouched.outputs)
    assert [port.name for port in network.outputs] == ["y"]
