"""What nobody gave is drawn so that the network can run, whatever its inputs are for; ONNX Runtime is the judge."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk import Agent
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import read_model, read_network
from agent_sdk.model.feeds import ATTEMPTS, draw, feeds_of, feeds_of_ports
from tests.agent.model.random_models import evaluate

F, N, N32, U8, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.BOOL
Inputs = dict[str, tuple[int, Sequence[int]]]


def network(nodes: Sequence[Any], inputs: Inputs, **constants: Any) -> onnx.ModelProto:
    """A network that gives the sum of ``out``; nodes are (operator, inputs, outputs, attributes)."""
    nodes = [*nodes, ("Cast", "out", "floats", {"to": F}), ("ReduceSum", "floats", "sum", {"keepdims": 0})]
    made = [helper.make_node(op, reads.split(), made.split(), **own) for op, reads, made, own in nodes]
    graph = helper.make_graph(
        made,
        "net",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("sum", F, [])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = {"x": (F, [3, 4])}
BODY = helper.make_graph(
    [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["v"], ["w"])],
    "body",
    [*(helper.make_tensor_value_info(*port, []) for port in (("n", N), ("c", B))), onnx.ValueInfoProto(name="v")],
    [helper.make_tensor_value_info("d", B, []), onnx.ValueInfoProto(name="w")],
)
CASES: dict[str, onnx.ModelProto] = {
    "topk": network([("TopK", "x k", "out which", {})], {**X, "k": (N, [1])}),
    "topk of a scalar": network(
        [("Unsqueeze", "k zero", "ks", {}), ("Cast", "ks", "kl", {"to": N}), ("TopK", "x kl", "out which", {})],
        {**X, "k": (N32, [])},
        zero=np.array([0]),
    ),
    "split": network([("Split", "x sizes", "out b c", {"axis": 1})], {**X, "sizes": (N, [3])}),
    "range": network([("Range", "a b c", "out", {})], {"a": (N, []), "b": (N, []), "c": (N, [])}),
    "range of floats": network([("Range", "a b c", "out", {})], {"a": (F, []), "b": (F, []), "c": (F, [])}),
    "expand": network([("Expand", "x shape", "out", {})], {**X, "shape": (N, [3])}),
    "reshape": network([("Reshape", "x shape", "out", {})], {**X, "shape": (N, [3])}),
    "reshape by a piece": network(
        [("Concat", "n rest", "shape", {"axis": 0}), ("Reshape", "x shape", "out", {})],
        {**X, "n": (N, [1])},
        rest=np.array([4]),
    ),
    "tile": network([("Tile", "x times", "out", {})], {**X, "times": (N, [2])}),
    "pad": network([("Pad", "x pads", "out", {})], {**X, "pads": (N, [4])}),
    "one hot": network(
        [("OneHot", "i depth values", "out", {})], {"i": (N, [5]), "depth": (N, []), "values": (F, [2])}
    ),
    "slice": network(
        [("Slice", "x a b c d", "out", {})], {**X, "a": (N, [2]), "b": (N, [2]), "c": (N, [2]), "d": (N, [2])}
    ),
    "resize by scales": network(
        [("Resize", "y none scales", "out", {})], {"y": (F, [1, 1, 4, 4]), "scales": (F, [4])}, none=np.float32([])
    ),
    "gather": network([("Gather", "x i", "out", {"axis": 1})], {**X, "i": (N, [2, 2])}),
    "gather elements": network([("GatherElements", "x i", "out", {"axis": 1})], {**X, "i": (N, [3, 2])}),
    "gather nd": network([("GatherND", "x i", "out", {})], {**X, "i": (N, [5, 2])}),
    "scatter nd": network([("ScatterND", "x i u", "out", {})], {**X, "i": (N, [2, 2]), "u": (F, [2])}),
    "scatter elements": network(
        [("ScatterElements", "x i u", "out", {"axis": 1})], {**X, "i": (N, [3, 2]), "u": (F, [3, 2])}
    ),
    "divisor": network([("Div", "a b", "out", {})], {"a": (N, [4]), "b": (N, [4])}),
    "divisor of bytes": network([("Mod", "a b", "out", {})], {"a": (U8, [4]), "b": (U8, [4])}),
    "divisor from further up": network(
        [("Add", "b c", "d", {}), ("Div", "a d", "out", {})], {"a": (N, [4]), "b": (N, [4]), "c": (N, [4])}
    ),
    "fill": network([("ConstantOfShape", "s", "out", {})], {"s": (N, [3])}),
    "squeeze": network([("Squeeze", "y axes", "out", {})], {"y": (F, [3, 1, 4, 1]), "axes": (N, [2])}),
    "unsqueeze": network([("Unsqueeze", "x axes", "out", {})], {**X, "axes": (N, [2])}),
    "reduce": network([("ReduceSum", "x axes", "out", {})], {**X, "axes": (N, [2])}),
    "running sum": network([("CumSum", "x axis", "out", {})], {**X, "axis": (N, [])}),
    "scale": network([("QuantizeLinear", "x s z", "out", {})], {**X, "s": (F, []), "z": (U8, [])}),
    "lengths": network([("ReverseSequence", "x n", "out", {})], {**X, "n": (N, [4])}),
    "times": network([("Loop", "m go x", "out", {"body": BODY})], {**X, "m": (N, []), "go": (B, [])}),
    "window": network([("HannWindow", "n", "out", {})], {"n": (N, [])}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_draw_is_one_that_the_network_takes(name: str) -> None:
    """Of all kinds of inputs, the first attempt runs, as planned for and as the file has it, whatever the seed."""
    proto = CASES[name]
    read = read_network(proto)
    ports = feeds_of_ports(read.inputs, read)
    assert ports is not None
    for seed in range(3):
        for feed in (draw(read_model(proto), seed), ports.feed(seed)):
            assert evaluate(proto, feed)["sum"].shape == ()


@pytest.mark.parametrize("name", ["topk", "split", "range", "expand", "reshape", "divisor", "one hot", "tile"])
def test_a_network_with_such_an_input_is_planned(name: str, agent: Agent) -> None:
    """Nothing is struck out, and nothing left whole, because of a draw: the plan is there, and right."""
    session = agent.load(CASES[name], background=False)
    assert session.stats.prepared == 1, session.notes
    feed = draw(session.latest.model, 1)
    assert relative_error(session.run(feed), evaluate(CASES[name], feed)) < 1e-5
    assert session.verify().correct


def test_seeds_draw_data_and_attempts_draw_the_rest() -> None:
    """A feed that was tried stands for those of other seeds: nothing but the data differs."""
    feeds = feeds_of(read_model(CASES["topk"]))
    one, other, again = feeds.feed(0), feeds.feed(1), feeds.feed(0)
    assert one["k"] == other["k"] == [2]
    assert not np.array_equal(one["x"], other["x"])
    assert np.array_equal(one["x"], again["x"])
    counts = {int(feeds.feed(0, attempt)["k"][0]) for attempt in range(ATTEMPTS)}
    assert counts == {1, 2, 4}


def test_hard_values_are_data() -> None:
    """What is an index stays one where the data are hard; these are what normal ones never are."""
    feeds = feeds_of(read_model(CASES["gather"]))
    feed = feeds.feed(0, hard=True)
    assert len(np.unique(feed["x"])) < feed["x"].size
    assert feed["i"].min() >= 0
    assert feed["i"].max() < 4


def test_a_size_that_must_fit_others_is_found_by_trying() -> None:
    """A tensor reshaped by a number that the graph does not tell: some attempt is right."""
    proto = network(
        [("Concat", "n m", "shape", {"axis": 0}), ("Reshape", "x shape", "y", {}), ("Add", "y z", "out", {})],
        {"x": (F, [12]), "n": (N, [1]), "m": (N, [1]), "z": (F, [12, 1])},
    )
    feeds = feeds_of(read_model(proto))
    fitting = []
    for attempt in range(ATTEMPTS):
        try:
            fitting.append(evaluate(proto, feeds.feed(0, attempt)))
        except Exception:  # noqa: BLE001  the runtime's own classes
            continue
    assert fitting


def test_where_values_are_put_is_drawn_in_the_memory_that_it_takes() -> None:
    """The places of a MaxUnpool differ, all of them, and drawing them takes no more than a few times their size."""
    shape, unpool = [1, 8, 64, 64], {"kernel_shape": [2, 2], "strides": [2, 2]}
    model = read_model(network([("MaxUnpool", "x i", "out", unpool)], {"x": (F, shape), "i": (N, shape)}))
    tracemalloc.start()
    try:
        places = draw(model)["i"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(np.unique(places)) == places.size
    assert peak < 16 * places.nbytes
