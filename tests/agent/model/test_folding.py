"""What is folded is what ONNX Runtime computes, on the file's own operators at the file's operator set."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk import Agent
from agent_sdk.errors import ModelError
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import Content, fold, read_model
from agent_sdk.model.budget import MAX_FOLDED_OPERATIONS, operations
from agent_sdk.model.lone import computed as computed_alone
from tests.agent.models import computed, products
from tests.agent.onnx_cases import FLAG, over_constants

RNG = np.random.default_rng(3)
CUBE = RNG.standard_normal((2, 3, 4)).astype(np.float32)
IMAGE = RNG.standard_normal((1, 2, 5, 5)).astype(np.float32)
CHANNELS = [np.array(row, np.float32) for row in ([1.5, -0.5], [0.2, 3.0], [0.1, -2.0], [0.5, 4.0])]
SEQUENCE = RNG.standard_normal((4, 2, 3)).astype(np.float32) * 3
GATES = [RNG.standard_normal((1, 20, width)).astype(np.float32) for width in (3, 5)]
BIAS = RNG.standard_normal((1, 40)).astype(np.float32)
LENGTHS = np.array([4, 2], np.int32)
SPECIAL = np.array([[np.nan, 1, 2], [-np.inf, -np.inf, -np.inf], [np.inf, -1, np.nan]], np.float32)
NOTHING = np.array([], np.float32)

Example = tuple[str, int, list[np.ndarray | None], int, dict[str, Any]]
"""An operator, its set, what it reads, how many outputs it has, and its attributes."""

EXAMPLES: dict[str, Example] = {
    "softmax of all behind the axis": ("Softmax", 12, [CUBE], 1, {"axis": 1}),
    "softmax by default, set 11": ("Softmax", 11, [CUBE], 1, {}),
    "softmax of one axis": ("Softmax", 13, [CUBE], 1, {"axis": 1}),
    "logarithm of it, set 12": ("LogSoftmax", 12, [CUBE], 1, {"axis": 1}),
    "logarithm of it, set 13": ("LogSoftmax", 13, [CUBE], 1, {"axis": 0}),
    "hardmax, set 12": ("Hardmax", 12, [CUBE], 1, {"axis": 1}),
    "hardmax, set 13": ("Hardmax", 13, [CUBE], 1, {"axis": 1}),
    "hardmax of ties": ("Hardmax", 13, [np.zeros((2, 3), np.float32)], 1, {"axis": 1}),
    "batch norm, set 9": ("BatchNormalization", 9, [IMAGE, *CHANNELS], 1, {"epsilon": 0.1}),
    "batch norm, set 13": ("BatchNormalization", 13, [IMAGE, *CHANNELS], 1, {}),
    "batch norm, set 15": ("BatchNormalization", 15, [IMAGE, *CHANNELS], 1, {}),
    "resize by scales": ("Resize", 13, [IMAGE, None, np.array([1, 1, 1.4, 0.6], np.float32)], 1, {"mode": "linear"}),
    "resize to nearest": (
        "Resize",
        11,
        [IMAGE, NOTHING, NOTHING, np.array([1, 2, 3, 7])],
        1,
        {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "ceil"},
    ),
    "resize by cubes": (
        "Resize",
        18,
        [IMAGE, None, None, np.array([1, 2, 9, 3])],
        1,
        {"mode": "cubic", "antialias": 1, "coordinate_transformation_mode": "align_corners"},
    ),
    "resize, set 10": ("Resize", 10, [IMAGE, np.array([1, 1, 1.5, 0.5], np.float32)], 1, {"mode": "linear"}),
    "upsample": ("Upsample", 9, [IMAGE, np.array([1, 1, 2, 1.6], np.float32)], 1, {"mode": "linear"}),
    "regions": (
        "RoiAlign",
        16,
        [IMAGE, np.array([[0, 0, 3.7, 4.2], [1, 1, 0, 9]], np.float32), np.array([0, 0])],
        1,
        {"output_height": 3, "output_width": 2, "sampling_ratio": 0, "mode": "max"},
    ),
    "regions, set 10": (
        "RoiAlign",
        10,
        [IMAGE, np.array([[0, 0, 3.7, 4.2]], np.float32), np.array([0])],
        1,
        {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
    ),
    "grid, set 16": (
        "GridSample",
        16,
        [IMAGE, np.linspace(-1.5, 1.5, 24, dtype=np.float32).reshape(1, 3, 4, 2)],
        1,
        {"mode": "bicubic", "padding_mode": "reflection"},
    ),
    "grid, set 20": (
        "GridSample",
        20,
        [IMAGE, np.linspace(-1.5, 1.5, 24, dtype=np.float32).reshape(1, 3, 4, 2)],
        1,
        {"mode": "nearest", "padding_mode": "border", "align_corners": 1},
    ),
    "greatest of special values": ("ReduceMax", 18, [SPECIAL, np.array([1])], 1, {}),
    "least of special values": ("ReduceMin", 13, [SPECIAL], 1, {"axes": [1]}),
    "greatest of nothing": ("ReduceMax", 18, [np.zeros((2, 0), np.float32), np.array([1])], 1, {}),
    "gates that are clipped": ("LSTM", 14, [SEQUENCE, *GATES, BIAS], 3, {"hidden_size": 5, "clip": 0.3}),
    "sequences that end early": ("LSTM", 14, [SEQUENCE, *GATES, BIAS, LENGTHS], 3, {"hidden_size": 5}),
    "range of zeros": ("DynamicQuantizeLinear", 13, [np.zeros((2, 3), np.float32)], 3, {}),
    "mean of integers": ("ReduceMean", 13, [np.array([[7, 8], [-7, -8]], np.int32)], 1, {"axes": [1]}),
    "integers that divide towards zero": ("Div", 14, [np.array([7, -7]), np.array([2, 2])], 1, {}),
    "remainders": ("Mod", 13, [np.array([7, -7, 7]), np.array([3, 3, -3])], 1, {}),
    "power of integers": ("Pow", 15, [np.array([2, 3, -2]), np.array([3, -1, 63])], 1, {}),
    "rounding of ties": ("Round", 22, [np.array([0.5, 1.5, -2.5], np.float32)], 1, {}),
    "floats beyond integers": ("Cast", 19, [np.array([3e9, -3e9, 300.7], np.float32)], 1, {"to": TensorProto.INT32}),
}


def model_of(example: Example) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The operator as a model, and what it reads."""
    op, opset, values, outputs, attributes = example
    names = [f"in{place}" if value is not None else "" for place, value in enumerate(values)]
    given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    ends = [f"out{place}" for place in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, ends, **attributes)],
        "example",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in given.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in ends],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made), given


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_folded_constant_is_the_runtimes(name: str) -> None:
    """Where another evaluator has other rules, or other corners, the constant is bit by bit ONNX Runtime's."""
    model, given = model_of(EXAMPLES[name])
    proto = over_constants(model, given)
    feed = {FLAG: np.array(True)}
    right = Reference(Content(proto)).outputs(feed)
    read = read_model(proto)
    assert {op.type for op in read.graph.ops} == {"If"}, "it is not folded"
    found = computed(read, feed)
    for output, value in right.items():
        np.testing.assert_array_equal(found[output], value, strict=True)


def test_what_the_runtime_computes_in_float32_is_not_folded_in_float16() -> None:
    """It has few kernels in float16 and rounds where a chain of others ends: 300 · 300 / 300 is no infinity there."""
    large = numpy_helper.from_array(np.full(2, 300, np.float16), "large")
    nodes = [
        helper.make_node("Mul", ["large", "large"], ["square"]),
        helper.make_node("Div", ["square", "large"], ["again"]),
        helper.make_node("Concat", ["large", "large"], ["twice"], axis=0),
        helper.make_node("Add", ["x", "again"], ["y"]),
        helper.make_node("Add", ["xx", "twice"], ["yy"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2 * len(name)]) for name in ("x", "xx", "y", "yy")
    ]
    graph = helper.make_graph(nodes, "half", ends[:2], ends[2:], [large])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feed = {"x": np.zeros(2, np.float16), "xx": np.zeros(4, np.float16)}
    right, model = Reference(Content(proto)).outputs(feed), read_model(proto)
    assert right["y"].tolist() == [300, 300]
    assert "Concat" not in {op.type for op in model.graph.ops}, "it moves numbers, and is folded"
    assert {name: value.tolist() for name, value in computed(model, feed).items()} == {"y": [300] * 2, "yy": [300] * 4}


def shared() -> onnx.ModelProto:
    """A softmax over a constant, at a set at which it runs over all behind its axis, beside what is computed."""
    mix = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(1, 2, 3) / 4, "mix")
    nodes = [
        helper.make_node("Softmax", ["mix"], ["share"], axis=1),
        helper.make_node("Mul", ["x", "share"], ["scaled"]),
        helper.make_node("Exp", ["scaled"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "mix", ends[:1], ends[1:], [mix])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)


def test_a_session_answers_by_the_folded_constant_of_its_file(tmp_path: Path) -> None:
    """End to end, with a plan."""
    proto = shared()
    feed = {"x": RNG.standard_normal((1, 2, 3)).astype(np.float32)}
    right = Reference(Content(proto)).outputs(feed)
    with (
        Agent(processors="ort@0", cache=tmp_path) as agent,
        agent.load(proto, background=False) as session,
    ):
        assert [op.type for op in session.latest.model.graph.ops] == ["Mul", "Exp"]
        assert relative_error(session.run(feed), right) < 1e-6
        assert session.verify(feed).correct


def test_a_plan_over_a_wrong_constant_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is the judge, not what was made of it: the whole network answers, and a note says what was wrong."""
    monkeypatch.setattr(
        fold,
        "computed",
        lambda node, *given: {
            name: numpy_helper.from_array(np.full((1, 2, 3), 0.3, np.float32), name) for name in node.output
        },
    )
    proto = shared()
    feed = {"x": RNG.standard_normal((1, 2, 3)).astype(np.float32)}
    with Agent(processors="ort@0", cache=tmp_path) as agent, agent.load(proto, background=False) as session:
        assert session.stats.prepared == 0
        assert "away from ONNX Runtime's" in session.notes[0]
        assert relative_error(session.run(feed), Reference(Content(proto)).outputs(feed)) == 0.0


def test_operations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 300 bytes that asks for 2·10¹¹ multiply-adds is refused before they begin."""
    assert {op.type for op in read_model(products(90)).graph.ops} == {"Add"}
    begun: list[str] = []
    monkeypatch.setattr(
        fold, "computed", lambda node, *given: begun.append(node.op_type) or computed_alone(node, *given)
    )
    proto = products(4000)
    assert proto.ByteSize() < 400
    with pytest.raises(ModelError, match=rf"\(MatMul\).* more than {MAX_FOLDED_OPERATIONS} multiply-adds"):
        read_model(proto)
    assert begun == ["ConstantOfShape"]


@pytest.mark.parametrize(
    ("op", "inputs", "made", "least"),
    [
        ("MatMul", [(20, 25), (25, 20)], 400, 10_000),
        ("Gemm", [(20, 25), (25, 20)], 400, 10_000),
        ("Conv", [(1, 8, 9, 9), (4, 8, 3, 3)], 4 * 49, 4 * 49 * 72),
        ("ConvTranspose", [(1, 8, 9, 9), (8, 4, 3, 3)], 4 * 121, 8 * 81 * 36),
        ("MaxPool", [(1, 1, 9, 9)], 81, 81 * 9),
        ("Einsum", [(20, 25), (25, 20)], 400, 10_000),
        ("Det", [(9, 9)], 1, 81),
        ("Add", [(10, 1), (1, 10)], 100, 100),
    ],
)
def test_no_operation_is_counted_as_less_than_it_is(op: str, inputs: list[Any], made: int, least: int) -> None:
    """By the textbook's count; and by no more than a few times as much, so that what is cheap is folded."""
    node = helper.make_node(op, ["a", "b"], ["y"])
    if op == "MaxPool":
        node.attribute.append(helper.make_attribute("kernel_shape", [3, 3]))
    touched = 8 * max(made, sum(map(math.prod, inputs)))
    assert least <= operations(node, inputs, made) <= touched + made * 600


CRASHING = """
import numpy as np
from onnx import numpy_helper
from agent_sdk.model import read_model
from tests.agent.model.test_folding import EXAMPLES, model_of
from tests.agent.onnx_cases import over_constants
for op in ("Div", "Mod"):
    for value, by in ((np.iinfo(np.int64).min, -1), (1, 0)):
        model, given = model_of((op, 14, [np.array([value]), np.array([by])], 1, {}))
        print(*(op.type for op in read_model(over_constants(model, given)).graph.ops))
"""


def test_a_division_that_ends_the_process_is_not_folded() -> None:
    """Nothing kills the application while its file is read; who runs the op says what is wrong with it."""
    ended = subprocess.run([sys.executable, "-c", CRASHING], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, [*["Div", "If"] * 2, *["Mod", "If"] * 2]), ended.stderr


def test_what_no_output_needs_is_not_computed() -> None:
    """A runtime drops it before it folds; so an op that it would refuse there refuses no network."""
    proto = products(90)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2**40, 2**20]), "huge"))
    proto.graph.node.insert(0, helper.make_node("ConstantOfShape", ["huge"], ["dead"]))
    proto.graph.node.append(helper.make_node("Neg", ["dead"], ["dead too"]))
    assert {op.type for op in read_model(proto).graph.ops} == {"Add"}


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_what_is_drawn_is_drawn_in_every_run(op: str) -> None:
    """An op that is no function of its inputs stays, also over constants."""
    model, given = model_of((op, 15, [np.full((2, 3), 0.5, np.float32)], 1, {}))
    assert op in {one.type for one in read_model(over_constants(model, given)).graph.ops}
