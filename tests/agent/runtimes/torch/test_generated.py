"""Kernels that Triton generates on a GPU, carried out by NumPy, against torch in float64."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from agent_sdk.model import read_model
from agent_sdk.runtimes.torch.node import Node, node_of
from agent_sdk.runtimes.torch.table import registry
from tests.agent.runtimes.torch.triton_by_numpy import stand_in

GENERATED = "agent_sdk.runtimes.torch.table.generated"

Makers = dict[tuple[str, ...], list[Callable[..., registry.Call | None]]]


@pytest.fixture(scope="module")
def makers() -> Iterator[Makers]:
    """What the module enters into the table, where Triton is there."""
    found: Makers = {}
    with pytest.MonkeyPatch.context() as patched:
        for name, module in stand_in(0).items():
            patched.setitem(sys.modules, name, module)
        patched.setattr(registry, "OTHERS", found)
        patched.delitem(sys.modules, GENERATED, raising=False)
        importlib.import_module(GENERATED)
        yield found
        patched.delitem(sys.modules, GENERATED)


def nodes(op: str, size: int, weight: np.ndarray | None, bias: np.ndarray | None, *, relu: bool, **said) -> list[Node]:
    """The nodes of one op, and of a Relu behind it, as a GPU sees them; the weight's channels, or so many, are read."""
    constants = {name: value for name, value in {"w": weight, "b": bias}.items() if value is not None}
    channels = said.pop("channels")
    row = [helper.make_node(op, ["x", *constants], ["c"], **said)]
    row += [helper.make_node("Relu", ["c"], ["r"])] * relu
    graph = helper.make_graph(
        row,
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, channels, size, size])],
        [helper.make_tensor_value_info("r" if relu else "c", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9))
    return [node_of(model, op.id, half=True, cuda=True, channels_last=True) for op in model.graph.ops]


@given(
    inner=st.sampled_from([8, 40, 136]),
    outer=st.sampled_from([8, 72]),
    apart=st.booleans(),
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    biased=st.booleans(),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_generated_convolutions_compute_what_torch_does(
    makers: Makers, inner: int, outer: int, apart: bool, size, strides, dilations, pads, biased, relu, seed
) -> None:
    """Whatever the window, by every tile and each channel by itself, in whole and in parts; no number hides another."""
    rng = np.random.default_rng(seed)
    groups, outputs = (inner, inner) if apart else (1, outer)
    weight = rng.standard_normal((outputs, inner // groups, *size), np.float32) / 8
    bias = rng.standard_normal(outputs, np.float32) if biased else None
    said = {"kernel_shape": size, "strides": strides, "dilations": dilations, "pads": pads, "group": groups}
    row = nodes("Conv", 6, weight, bias, relu=relu, channels=inner, **said)
    x = torch.from_numpy(rng.standard_normal((2, inner, 6, 6), np.float32)).half()
    x[0, 0, 0, 0] = torch.nan if seed % 4 == 0 else 1.0
    w, b = torch.from_numpy(weight).half(), None if bias is None else torch.from_numpy(bias).half()
    above, left, below, right = pads
    padded = torch.nn.functional.pad(x.double(), (left, right, above, below))
    shift = None if b is None else b.double()
    right_answer = torch.nn.functional.conv2d(padded, w.double(), shift, strides, 0, dilations, groups)
    right_answer = right_answer.relu() if relu else right_answer
    calls = [call for maker in makers[tuple(node.type for node in row)] if (call := maker(*row)) is not None]
    assert len(calls) == (1 if apart else 5)
    for call in calls:
        for laid_out in (x, x.contiguous(memory_format=torch.channels_last)):
            answer = call(laid_out, w.contiguous(memory_format=torch.channels_last), b)
            assert answer.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(answer.double(), right_answer, rtol=2e-3, atol=2e-3, equal_nan=True)


@pytest.mark.parametrize("counted", [0, 1])
def test_generated_means_compute_what_torch_does(makers: Makers, counted: int) -> None:
    """With what is padded counted, or not."""
    said = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": counted, "channels": 12}
    (maker,) = makers["AveragePool",]
    call = maker(*nodes("AveragePool", 7, None, None, relu=False, **said))
    x = torch.randn(2, 12, 7, 7, generator=torch.Generator().manual_seed(0)).half()
    assert call is not None
    right = torch.nn.functional.avg_pool2d(x.double(), 3, 1, 1, count_include_pad=bool(counted))
    torch.testing.assert_close(call(x).double(), right, rtol=2e-3, atol=2e-3)


def test_what_no_generated_kernel_computes_stays_torchs(makers: Makers) -> None:
    """Groups of several channels, channels that are no multiple of what is read at once, and other devices."""
    said = {"kernel_shape": [1, 1], "channels": 16}
    grouped = nodes("Conv", 4, np.ones((16, 8, 1, 1), np.float32), None, relu=False, group=2, **said)
    odd = nodes("Conv", 4, np.ones((12, 16, 1, 1), np.float32), None, relu=False, **said)
    for row in (grouped, odd):
        assert all(maker(*row) is None for maker in makers["Conv",])
