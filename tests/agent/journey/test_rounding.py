"""What a network's types round to, and over how many steps."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from agent_sdk.journey.rounding import FLOAT32, WIDEST, rounding
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
