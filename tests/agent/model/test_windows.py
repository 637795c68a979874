"""The sizes that are inferred are those that ONNX Runtime makes: they decide buffers, and what is asked for a shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from agent_sdk import Agent
from agent_sdk.errors import HopeError, UnplannableError
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import Content, read_model
from tests import CAMPAIGN

Draw = Callable[[st.SearchStrategy[Any]], Any]
Case = tuple[str, int, dict[str, Any], list[tuple[int, ...]], list[np.ndarray | None]]
"""An operator, its set, its attributes, the shapes of its inputs, and the constants behind them."""


def sizes(draw: Draw, low: int, high: int, count: int = 2) -> list[int]:
    """Whole numbers."""
    return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))


def padding(draw: Draw, most: list[int]) -> dict[str, Any]:
    """Of windows: by hand, or left to the operator."""
    if draw(st.booleans()):
        return {"auto_pad": draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))}
    return {"pads": [draw(st.integers(0, size)) for size in (*most, *most)]}


def pool(draw: Draw) -> Case:
    """A pool that may round up, at an old or a new set."""
    op, rank = draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"])), draw(st.integers(1, 2))
    opset = draw(st.sampled_from([22] if op == "LpPool" else [10, 11, 12, 19, 22]))
    kernel = sizes(draw, 1, 4, rank)
    attributes = {"kernel_shape": kernel, "strides": sizes(draw, 1, 4, rank), "ceil_mode": draw(st.integers(0, 1))}
    attributes |= padding(draw, [size - 1 for size in kernel])
    if op != "AveragePool" or opset > 18:
        attributes["dilations"] = sizes(draw, 1, 2, rank)
    return op, opset, attributes, [(2, 3, *sizes(draw, 3, 11, rank))], []


def convolution(draw: Draw) -> Case:
    """A convolution, forwards or backwards, whose output may be padded or told."""
    op, kernel, groups = draw(st.sampled_from(["Conv", "ConvTranspose"])), sizes(draw, 1, 4), draw(st.integers(1, 2))
    attributes = {"kernel_shape": kernel, "strides": sizes(draw, 1, 4), "dilations": sizes(draw, 1, 2), "group": groups}
    attributes |= padding(draw, [3, 3])
    weights = (4, 2 // groups) if op == "Conv" else (2, 3)
    if op == "ConvTranspose" and draw(st.booleans()):
        attributes["output_padding"] = [draw(st.integers(0, stride - 1)) for stride in attributes["strides"]]
    if op == "ConvTranspose" and draw(st.booleans()):
        attributes["output_shape"] = sizes(draw, 5, 20)
        attributes.pop("pads", None)
    return op, 17, attributes, [(2, 2, *sizes(draw, 4, 11)), (*weights, *kernel)], []


def resize(draw: Draw) -> Case:
    """A scale that floats round up or down, or that crops."""
    op, opset = draw(st.sampled_from([("Resize", 10), ("Resize", 11), ("Resize", 13), ("Resize", 19), ("Upsample", 9)]))
    least = 10 if op == "Upsample" else 1
    tenths = st.integers(least, 40).map(lambda value: value / 10)
    scales = np.array([1, 1, draw(tenths), draw(tenths)], np.float32)
    attributes: dict[str, Any] = {"mode": draw(st.sampled_from(["nearest", "linear"]))}
    region: np.ndarray | None = None if opset > 11 else np.array([], np.float32)
    if opset > 10 and draw(st.booleans()):
        attributes["coordinate_transformation_mode"] = "tf_crop_and_resize"
        region = np.array([0, 0, 0.1, 0.2, 1, 1, 0.7, 0.9], np.float32)
    elif opset > 18 and draw(st.booleans()):
        attributes["axes"], scales = [3, 2], scales[2:]
    behind = [scales] if opset < 11 else [region, scales]
    return op, opset, attributes, [(2, 3, *sizes(draw, 1, 30))], behind


def model_of(case: Case) -> onnx.ModelProto:
    """The operator as a model that says nothing of its output's shape."""
    op, opset, attributes, shapes, behind = case
    constants = [f"c{place}" if value is not None else "" for place, value in enumerate(behind)]
    graph = helper.make_graph(
        [helper.make_node(op, [*(f"x{place}" for place in range(len(shapes))), *constants], ["y"], **attributes)],
        "sizes",
        [helper.make_tensor_value_info(f"x{place}", TensorProto.FLOAT, shape) for place, shape in enumerate(shapes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in zip(constants, behind, strict=True) if name],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("kind", [pool, convolution, resize])
@settings(max_examples=2000 if CAMPAIGN else 60)
@given(data=st.data())
def test_inferred_sizes_are_the_runtimes(kind: Callable[[Draw], Case], data: st.DataObject) -> None:
    """Whatever the attributes and the set: ONNX's rules differ where windows end behind the input, or floats round."""
    case = kind(data.draw)
    proto = model_of(case)
    try:
        feed = {f"x{place}": np.zeros(shape, np.float32) for place, shape in enumerate(case[3])}
        right = Reference(Content(proto)).outputs(feed)["y"].shape
    except HopeError:
        return
    try:
        model = read_model(proto)
    except UnplannableError:
        return
    assert model.graph.tensor["y"].shape == right


@pytest.mark.parametrize("asked", [False, True])
def test_a_network_is_planned_by_the_sizes_that_the_runtime_makes(asked: bool, tmp_path: Path) -> None:
    """5 · 1.4 is 7 in its kernel and 6 by ONNX's rules: in the buffers of a plan, and where the graph asks for a shape.

    NOTE: there ONNX Runtime itself answers by the rules, as long as the file's shapes are fixed; its answer is right.
    """
    scales = numpy_helper.from_array(np.array([1, 1, 1.4, 1.4], np.float32), "scales")
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Resize", ["e", "", "scales"], ["big"], mode="linear"),
        helper.make_node("Relu", ["big"], ["y"]),
    ]
    if asked:
        nodes[2:] = [helper.make_node("Shape", ["big"], ["s"]), helper.make_node("Expand", ["scale", "s"], ["y"])]
        nodes.insert(0, helper.make_node("ReduceMean", ["x"], ["scale"], axes=[2, 3]))
    graph = helper.make_graph(
        nodes,
        "resized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [scales],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feed = {"x": np.random.default_rng(0).standard_normal((1, 2, 5, 5)).astype(np.float32)}
    right = Reference(Content(proto)).outputs(feed)
    assert right["y"].shape == ((1, 2, 6, 6) if asked else (1, 2, 7, 7))
    with Agent(processors="ort@0", cache=tmp_path) as agent, agent.load(proto, background=False) as session:
        assert session.stats.prepared == (0 if asked else 1)
        assert relative_error(session.run(feed), right) < 1e-6


def test_a_window_beyond_all_bounds_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few bytes may ask for any work: its sizes are those of ONNX's rules then, and nothing is computed."""
    asked: list[str] = []
    monkeypatch.setattr("agent_sdk.model.windows.computed", lambda node, *_: asked.append(node.op_type))
    for width in (3, 2**40):
        node = helper.make_node("LpPool", ["x"], ["y"], auto_pad="SAME_LOWER", kernel_shape=[width, 2])
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 32, 32]) for name in "xy"]
        graph = helper.make_graph([node], "pooled", ends[:1], ends[1:])
        model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10))
        assert model.graph.tensor["y"].shape == (1, 3, 32, 32)
    assert asked == ["LpPool"]
