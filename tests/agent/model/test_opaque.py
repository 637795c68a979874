"""What has no static shape, or is none of numbers, stands inside an op: the rest is planned, the whole stays true."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.errors import UnplannableError, UnsupportedOp
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import Model, extract, read_model
from agent_sdk.model.feeds import draw
from agent_sdk.model.opaque import OPAQUE
from agent_sdk.runtimes.base import Processor, segment_of
from hope_schema import SuperOp, merge
from tests import CAMPAIGN
from tests.agent.engine.generate import plan_of, random_order
from tests.agent.models import computed

node = helper.make_node
SHAPE = [2, 3, 4]
OPSETS = {"": 17, "com.microsoft": 1, "ai.onnx.ml": 3}


def float_info(name: str, shape: list[int | str] | None = None) -> onnx.ValueInfoProto:
    """Declare a float tensor, of the shape that all have here unless told."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE if shape is None else shape)


def constant(name: str, value: object) -> onnx.TensorProto:
    """Make an initialiser; whole numbers are int64."""
    return numpy_helper.from_array(np.array(value), name)


def subgraph(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str]) -> onnx.GraphProto:
    """Put a branch or a body together."""
    return helper.make_graph(nodes, "sub", inputs, [onnx.ValueInfoProto(name=name) for name in outputs])


def between(
    nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto] | None = None, last: str = "m", declare: bool = False
) -> onnx.ModelProto:
    """Return a model in which ``nodes`` make ``last`` from ``a`` between a Softplus and a Sigmoid, beside a Neg.

    ``declare`` has the file say that ``m`` is of the shape that all have here.
    """
    nodes = [node("Softplus", ["x"], ["a"]), *nodes, node("Neg", ["a"], ["side"])]
    nodes += [node("Sigmoid", [last], ["z"]), node("ReduceMean", ["side"], ["mean"], keepdims=0)]
    nodes.append(node("Add", ["z", "mean"], ["y"]))
    opsets = [
        helper.make_opsetid("", 17),
        helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("ai.onnx.ml", 3),
    ]
    ends = [float_info("x")], [onnx.ValueInfoProto(name="y")]
    graph = helper.make_graph(nodes, "between", *ends, constants or [], value_info=[float_info("m")] if declare else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def by_data() -> onnx.ModelProto:
    """Sizes that depend on data: what is above one half, gathered and summed."""
    nodes = [
        node("Greater", ["a", "half"], ["big"]),
        node("NonZero", ["big"], ["where"]),
        node("Transpose", ["where"], ["rows"]),
        node("GatherND", ["a", "rows"], ["found"]),
        node("Relu", ["found"], ["kept"]),
        node("ReduceSum", ["kept"], ["m"], keepdims=0),
    ]
    return between(nodes, [constant("half", np.float32(0.5))])


def around() -> onnx.ModelProto:
    """A path that leaves the hidden part by a static tensor and comes back into it."""
    nodes = [
        node("NonZero", ["a"], ["where"]),
        node("Shape", ["where"], ["size"]),
        node("Cast", ["size"], ["count"], to=TensorProto.FLOAT),
        node("Exp", ["count"], ["power"]),
        node("ReduceMax", ["power"], ["most"], keepdims=0),
        node("Cast", ["where"], ["floats"], to=TensorProto.FLOAT),
        node("Sub", ["floats", "most"], ["less"]),
        node("ReduceMax", ["less"], ["m"], keepdims=0),
    ]
    return between(nodes)


def branches() -> onnx.ModelProto:
    """A condition known in a run only, with a tensor taken from around both branches."""
    then = subgraph([node("Mul", ["a", "a"], ["t"])], [], ["t"])
    other = subgraph([node("Neg", ["a"], ["e0"]), node("Abs", ["e0"], ["e"])], [], ["e"])
    nodes = [
        node("ReduceSum", ["a"], ["sum"], keepdims=0),
        node("Greater", ["sum", "ten"], ["c"]),
        node("If", ["c"], ["m"], then_branch=then, else_branch=other),
    ]
    return between(nodes, [constant("ten", np.float32(10))])


def loop() -> onnx.ModelProto:
    """A loop whose number of turns depends on data."""
    body = subgraph(
        [node("Add", ["v", "a"], ["w"]), node("Identity", ["go"], ["on"])],
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            float_info("v"),
        ],
        ["on", "w"],
    )
    nodes = [
        node("ReduceMax", ["a"], ["top"], keepdims=0),
        node("Cast", ["top"], ["turns"], to=TensorProto.INT64),
        node("Loop", ["turns", "true", "a"], ["m"], body=body),
    ]
    return between(nodes, [constant("true", True)], declare=True)


def scan() -> onnx.ModelProto:
    """A running sum along the first axis."""
    body = subgraph(
        [node("Add", ["state", "row"], ["next"]), node("Identity", ["next"], ["out"])],
        [float_info("state", [3, 4]), float_info("row", [3, 4])],
        ["next", "out"],
    )
    return between([node("Scan", ["start", "a"], ["end", "m"], body=body, num_scan_inputs=1)], [START])


START = constant("start", np.zeros((3, 4), np.float32))


def strings() -> onnx.ModelProto:
    """Numbers to text and back."""
    text = node("Cast", ["a"], ["text"], to=TensorProto.STRING)
    return between([text, node("Cast", ["text"], ["m"], to=TensorProto.FLOAT)])


def sequences() -> onnx.ModelProto:
    """A sequence of tensors, taken apart and put together."""
    split = node("SplitToSequence", ["a", "one"], ["parts"], axis=1)
    return between([split, node("ConcatFromSequence", ["parts"], ["m"], axis=1)], [constant("one", 1)], declare=True)


def optionals() -> onnx.ModelProto:
    """A value that might be absent."""
    nodes = [node("Optional", ["a"], ["maybe"]), node("OptionalGetElement", ["maybe"], ["m"])]
    return between(nodes, declare=True)


def contrib() -> onnx.ModelProto:
    """Operators that ONNX does not define; with static shapes they are ops like any other."""
    fast = node("FastGelu", ["a"], ["b"], domain="com.microsoft")
    return between([fast, node("QuickGelu", ["b"], ["m"], domain="com.microsoft", alpha=1.5)])


def sparse() -> onnx.ModelProto:
    """Weights that are stored as their few values."""
    proto = between([node("Add", ["a", "w"], ["m"])])
    for name, dims, at in (("w", [3, 4], [[0, 1], [2, 3]]),):
        values = numpy_helper.from_array(np.array([2, 3], np.float32), name)
        proto.graph.sparse_initializer.append(
            helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(at, np.int64), "at"), dims)
        )
    return proto


def dictionary() -> onnx.ModelProto:
    """Text constants that stand in an operator's inputs."""
    nodes = [
        node("Cast", ["a"], ["text"], to=TensorProto.STRING),
        node("Concat", ["text", "words"], ["all"], axis=2),
        node("LabelEncoder", ["all"], ["m0"], domain="ai.onnx.ml", keys_strings=["a"], values_floats=[2.0]),
        node("ReduceSum", ["m0"], ["m"], keepdims=0),
    ]
    return between(nodes, [numpy_helper.from_array(np.full((2, 3, 1), "a", object), "words")])


def words() -> onnx.ModelProto:
    """A text constant that becomes a number in every run."""
    nodes = [node("Cast", ["number"], ["two"], to=TensorProto.FLOAT), node("Mul", ["a", "two"], ["m"])]
    return between(nodes, [numpy_helper.from_array(np.full(1, "2.5", object), "number")])


MODELS: list[tuple[Callable[[], onnx.ModelProto], str, list[str]]] = [
    (by_data, OPAQUE, ["NonZero", "Transpose", "GatherND", "Relu", "ReduceSum"]),
    (around, OPAQUE, ["NonZero", "Shape", "Exp", "Sub", "ReduceMax"]),
    (branches, "If", ["If"]),
    (loop, "Loop", ["Loop"]),
    (scan, "Scan", ["Scan"]),
    (strings, OPAQUE, ["Cast"]),
    (words, OPAQUE, ["Cast"]),
    (sequences, OPAQUE, ["SplitToSequence", "ConcatFromSequence"]),
    (optionals, OPAQUE, ["Optional", "OptionalGetElement"]),
    (dictionary, OPAQUE, ["Cast", "Concat", "ai.onnx.ml:LabelEncoder"]),
]


def in_pieces(model: Model, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run every super-op by itself, seeing nothing but the tensors that it declares."""
    tensors = dict(inputs)
    for super_op in merge(model.graph):
        piece = extract(model, [op.id for op in super_op.ops], super_op.inputs, super_op.outputs)
        session = ort.InferenceSession(piece.SerializeToString(), providers=["CPUExecutionProvider"])
        given = {name: tensors[name] for name in super_op.inputs}
        tensors |= dict(zip(super_op.outputs, session.run(list(super_op.outputs), given), strict=True))
    return {name: tensors[name] for name in model.graph.outputs}


def assert_true(proto: onnx.ModelProto, model: Model) -> None:
    """What the pieces compute, and what the whole does, is what the untouched file computes."""
    inputs = draw(model, 1)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    right = dict(zip(model.graph.outputs, session.run(list(model.graph.outputs), inputs), strict=True))
    assert relative_error(in_pieces(model, inputs), right) < 1e-6
    assert relative_error(computed(model, inputs), right) < 1e-6


@pytest.mark.parametrize(("build", "kind", "holds"), MODELS)
def test_what_cannot_be_cut_is_one_op(build: Callable[[], onnx.ModelProto], kind: str, holds: list[str]) -> None:
    """The hidden part, and no more, is one op with static borders; everything around it stays an op of its own."""
    proto = build()
    model = read_model(proto)
    (hiding,) = [op for op in model.graph.ops if "anatomy" in op.attributes]
    assert hiding.type == kind
    assert set(holds) <= set(str(hiding.attributes["ops"]).split("+"))
    assert {"Softplus", "Neg", "Sigmoid"} <= {op.type for op in model.graph.ops if op is not hiding}
    assert_true(proto, model)


@pytest.mark.parametrize("build", [contrib, sparse])
def test_foreign_ops_and_sparse_weights_are_ops_like_any_other(build: Callable[[], onnx.ModelProto]) -> None:
    """With static shapes nothing need be hidden: every node is an op."""
    proto = build()
    model = read_model(proto)
    assert not [op for op in model.graph.ops if "anatomy" in op.attributes]
    assert len(model.graph.ops) == len(proto.graph.node)
    assert_true(proto, model)


def test_a_decided_branch_is_opened() -> None:
    """An If that asks for a rank becomes the branch it takes, nested ones too, and names in both do not clash."""
    deep = subgraph([node("Exp", ["t"], ["u"])], [], ["u"])
    never = subgraph([node("Squeeze", ["t"], ["u"])], [], ["u"])
    then = subgraph(
        [node("Mul", ["a", "w"], ["t"]), node("If", ["yes"], ["v"], then_branch=deep, else_branch=never)], [], ["v"]
    )
    then.initializer.append(constant("w", np.float32(3)))
    other = subgraph([node("Squeeze", ["a"], ["t"])], [], ["t"])
    nodes = [
        node("Shape", ["a"], ["size"]),
        node("Size", ["size"], ["rank"]),
        node("Equal", ["rank", "three"], ["yes"]),
        node("If", ["yes"], ["m"], then_branch=then, else_branch=other),
        node("If", ["yes"], ["n"], then_branch=then, else_branch=other),
        node("Add", "mn", ["o"]),
    ]
    proto = between(nodes, [constant("three", 3)], "o")
    model = read_model(proto)
    types = [op.type for op in model.graph.ops]
    assert "If" not in types
    assert "Squeeze" not in types
    assert types.count("Exp") == types.count("Mul") == 2
    assert_true(proto, model)


def test_twins_inside_branches_are_read_under_the_name_that_is_left() -> None:
    """A subgraph that reads a twin which was merged away reads the other one."""
    then = subgraph([node("Neg", ["twin"], ["t"])], [], ["t"])
    other = subgraph([node("Identity", ["twin"], ["e"])], [], ["e"])
    nodes = [
        node("Exp", ["a"], ["first"]),
        node("Exp", ["a"], ["twin"]),
        node("ReduceSum", ["first"], ["sum"], keepdims=0),
        node("Greater", ["sum", "ten"], ["c"]),
        node("If", ["c"], ["n"], then_branch=then, else_branch=other),
        node("Add", ["n", "first"], ["m"]),
    ]
    proto = between(nodes, [constant("ten", np.float32(1e9))])
    model = read_model(proto)
    assert [op.type for op in model.graph.ops].count("Exp") == 1
    assert_true(proto, model)


def test_the_hash_tells_what_is_hidden_but_not_its_names_or_weights() -> None:
    """Another op or shape inside another signature; other inner names and weights the same; hidden names never show."""

    def hidden(inner: str, name: str, weight: float) -> Model:
        nodes = [
            node("NonZero", ["a"], [name]),
            node("Cast", [name], [f"{name}f"], to=TensorProto.FLOAT),
            node("Mul", [f"{name}f", "w"], [f"{name}w"]),
            node(inner, [f"{name}w"], [f"{name}i"]),
            node("ReduceMax", [f"{name}i"], ["m"], keepdims=0),
        ]
        return read_model(between(nodes, [constant("w", np.float32(weight))]))

    def signature(model: Model) -> str:
        return next(group.signature for group in merge(model.graph) if group.ops[0].type == OPAQUE)

    one, other, different = hidden("Neg", "p", 1), hidden("Neg", "q", 2), hidden("Abs", "p", 1)
    assert signature(one) == signature(other) != signature(different)
    assert one.graph.model_hash == other.graph.model_hash != different.graph.model_hash
    assert not [tensor.name for tensor in one.graph.tensors if tensor.name.startswith("p")]


def test_a_border_that_cannot_be_planned_is_named() -> None:
    """An output that depends on data, or an input of text, says which op or input it is due to."""
    graph = helper.make_graph(
        [node("NonZero", ["x"], ["w"]), node("Neg", ["w"], ["y"])],
        "g",
        [float_info("x")],
        [onnx.ValueInfoProto(name="y")],
    )
    opsets = [helper.make_opsetid("", 17)]
    with pytest.raises(UnplannableError, match=r"'w' \(NonZero\).*'y'"):
        read_model(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [2])
    graph = helper.make_graph(
        [node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], "g", [text], [onnx.ValueInfoProto(name="y")]
    )
    with pytest.raises(UnplannableError, match="input 'x'"):
        read_model(helper.make_model(graph, opset_imports=opsets, ir_version=8))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_symbol_that_is_bound_once_holds_everywhere(batch: int) -> None:
    """A size given with one input counts in another, shape arithmetic folds with it, and the hash tells sizes apart."""
    nodes = [
        node("Shape", ["x"], ["size"]),
        node("Reshape", ["z", "size"], ["back"]),
        node("Add", ["x", "back"], ["y"]),
    ]
    inputs = [float_info("x", ["n", "w", 4]), float_info("z", [4, "w", "n"])]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = read_model(proto, shapes={"x": (batch, 5, 4)})
    assert [op.type for op in model.graph.ops] == ["Reshape", "Add"]
    assert model.graph.tensor["z"].shape == (4, 5, batch)
    assert model.graph.tensor["y"].shape == (batch, 5, 4)
    assert model.graph.model_hash != read_model(proto, shapes={"x": (batch, 6, 4)}).graph.model_hash
    assert_true(proto, model)


def test_compressed_weights_stay_compressed() -> None:
    """Quantised weights are handed to the runtime as they are, in one super-op with what reads them."""
    weights = [constant("w", np.ones((4, 5), np.int8)), constant("s", np.float32(0.1)), constant("o", np.int8(0))]
    scale = [constant("sa", np.float32(0.05)), constant("oa", np.uint8(128))]
    nodes = [
        node("QuantizeLinear", ["a", "sa", "oa"], ["aq"]),
        node("DequantizeLinear", ["aq", "sa", "oa"], ["ad"]),
        node("DequantizeLinear", ["w", "s", "o"], ["wd"]),
        node("MatMul", ["ad", "wd"], ["mm"]),
        node("QuantizeLinear", ["mm", "sa", "oa"], ["mq"]),
        node("DequantizeLinear", ["mq", "sa", "oa"], ["m"]),
    ]
    model = read_model(between(nodes, weights + scale))
    groups = [[op.type for op in group.ops] for group in merge(model.graph)]
    assert ["DequantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear"] in [sorted(group) for group in groups]
    assert model.graph.tensor["aq"].dtype == "uint8"
    assert_true(between(nodes, weights + scale), model)


ALL = [build for build, _, _ in MODELS] + [contrib, sparse]


def supports(processor: Processor, super_op: SuperOp, model: Model) -> bool:
    """Whether a processor compiles an op."""
    try:
        processor.compile(segment_of(super_op, model)).close()
    except UnsupportedOp:
        return False
    return True


@pytest.mark.parametrize("build", ALL)
def test_any_plan_with_hidden_parts_is_carried_out_right(build: Callable[[], onnx.ModelProto], device: Device) -> None:
    """Scattered over all processors that say they support the ops, the answer is that of the untouched file."""
    proto = build()
    model = read_model(proto)
    able = {
        group.id: [processor for processor in device.processors.values() if supports(processor, group, model)]
        for group in merge(model.graph)
    }
    assert all(any(processor.id.startswith("ort") for processor in some) for some in able.values())
    for seed in range(3 if CAMPAIGN else 1):
        rng, super_ops = random.Random(seed), merge(model.graph)
        where = {index: rng.choice(able[group.id]).id for index, group in enumerate(super_ops)}
        plan = plan_of(model, super_ops, random_order(super_ops, rng), where, list(device.processors))
        inputs = draw(model, seed)
        with Executor(build_program(plan, model, device.processors), device) as executor:
            outputs, _ = executor.run(inputs)
        assert relative_error(outputs, computed(model, inputs)) < 1e-4
