"""What a network's types round to, and over how many steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from typing_extensions import override

from agent_sdk.journey.reference import Reference
from agent_sdk.journey.rounding import FLOAT32, WIDEST, nearest, rounding
from agent_sdk.journey.verify import INSIDE, Judge, relative_error
from agent_sdk.model import Content, read_model
from hope_schema import ModelGraph, Op, Tensor


def chain(dtype: str, length: int, kind: str = "Relu") -> ModelGraph:
    """Return so many ops of one type in a row, with as many beside them that lead nowhere near."""
    names = [f"t{index}" for index in range(length + 1)]
    ops = [Op(type=kind, inputs=(a,), outputs=(b,)) for a, b in pairwise(names)]
    beside = [Op(type=kind, inputs=("t0",), outputs=(f"b{index}",)) for index in range(length)]
    tensors = [Tensor(name=name, shape=(4,), dtype=dtype) for name in (*names, *(op.id for op in beside))]
    outputs = (names[-1], *(op.id for op in beside))
    return ModelGraph(name="chain", tensors=tuple(tensors), ops=(*ops, *beside), inputs=("t0",), outputs=outputs)


@pytest.mark.parametrize("length", [1, 16, 100])
def test_rounding_grows_with_the_root_of_the_longest_path(length: int) -> None:
    """Half precision rounds by 2**-11 a step, a quantised range of 8 bits by one of 127 steps; float32 has its 1e-3."""
    half, whole = rounding(chain("float16", length)), rounding(chain("float32", length))
    assert half.tolerance == pytest.approx(max(FLOAT32, 2.0**-11 * math.sqrt(length)))
    assert half.differs
    assert "float16" in half.cause
    assert (whole.tolerance, whole.differs) == (FLOAT32, False)
    quantised = rounding(chain("int8", length, "QLinearSigmoid"))
    assert quantised.tolerance == pytest.approx(min(WIDEST, math.sqrt(length) / 127))


def test_integers_that_count_round_nothing() -> None:
    """Indices, masks and pixels are no quantised numbers."""
    assert rounding(chain("uint8", 9, "Gather")).tolerance == FLOAT32
    assert not rounding(chain("int8", 9, "Add")).differs


def test_a_network_computed_in_less_may_differ_by_more() -> None:
    """What a processor computes float32 in counts like the model's own type."""
    network = chain("float32", 100)
    assert rounding(network, "float16") == rounding(chain("float16", 100))
    assert rounding(network, "tf32").tolerance == rounding(network, "float16").tolerance > rounding(network).tolerance


@pytest.mark.parametrize("precision", ["float16", "tf32"])
def test_nearest_keeps_eleven_bits(precision: str) -> None:
    """No number moves by more than half a unit of the last place that is kept, and none becomes infinite."""
    plain = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    rounded = nearest(plain, precision)
    assert 2.0**-13 < np.abs(rounded / plain - 1).max() <= 2.0**-11
    assert np.array_equal(nearest(rounded, precision), rounded)
    assert np.isfinite(nearest(np.float32([3e38, -1e9]), precision)).all()
    assert nearest(np.arange(3), precision).dtype == np.int64
    none = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)  # some of all NaNs
    assert np.isnan(nearest(none, precision)).all()


class Asked(Reference):
    """Takes note of what its file is asked."""

    asked: list[str]

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        self.asked = []

    @override
    def outputs(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append("outputs")
        return super().outputs(feed)

    @override
    def narrowed(self, precision: str) -> Reference:
        self.asked.append("narrowed")
        return super().narrowed(precision)


@pytest.mark.parametrize(("apart", "fit"), [(0.05, True), (1e-4, False)])
def test_a_network_that_magnifies_rounding_may_differ_by_what_its_file_says(apart: float, fit: bool) -> None:
    """Two products that nearly cancel err by many times what they round; beyond WIDEST nothing is explained."""
    rng = np.random.default_rng(0)
    left, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 8), (1, 16)))
    right = (left * (1 + apart * rng.standard_normal(left.shape))).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "left"], ["a"]),
        helper.make_node("MatMul", ["x", "right"], ["b"]),
        helper.make_node("Sub", ["a", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "cancels",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 8))],
        [numpy_helper.from_array(left, "left"), numpy_helper.from_array(right, "right")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    reference = Asked(Content(proto))
    expected, (x16, left16, right16) = x @ left - x @ right, (nearest(one, "float16") for one in (x, left, right))
    moved = relative_error({"y": x16 @ left16 - x16 @ right16}, {"y": expected})
    assert (moved <= WIDEST) == fit

    judge = Judge(read_model(proto), {"x": x}, reference)
    for _ in range(2):
        assert judge.magnified({"float16"}) == pytest.approx(INSIDE * moved if fit else 0.0, rel=1e-2)
        assert judge.magnified({"model"}) == 0.0
    assert sorted(reference.asked) == ["narrowed", "outputs"]  # once, however often it is judged
