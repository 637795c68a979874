"""The ONNX package's own tests of single operators, made in seconds, and their models with inputs as constants."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import node
from onnx.backend.test.case.test_case import TestCase as Case
from onnx.reference.ops import op_pool_common


def pool(
    padded: np.ndarray,
    x_shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    out_shape: Sequence[int],
    pooling_type: str,
    pads_required: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    count_include_pad: int = 0,
    p: int = 1,
) -> np.ndarray:
    """The package's reference for pools, over all windows at once: its loop over them takes four fifths of the time."""
    rank = len(kernel)
    values = padded.astype(np.float64)
    for axis in range(rank):  # beyond the padding that was asked for there is nothing to count
        end = x_shape[2 + axis] + (0 if pads is None else pads[axis] + pads[rank + axis])
        values.swapaxes(2 + axis, -1)[..., end:] = np.nan
    dilations = [1] * rank if dilations is None else dilations
    reach = [1 + (size - 1) * step for size, step in zip(kernel, dilations, strict=True)]
    windows = sliding_window_view(values, reach, axis=tuple(range(2, 2 + rank)))
    starts = [slice(None, None, step) for step in strides or [1] * rank]
    windows = windows[(..., *starts, *(slice(None, None, step) for step in dilations))]
    windows = windows[(..., *(slice(size) for size in out_shape), *[slice(None)] * rank)]
    inner = tuple(range(-rank, 0))
    if pooling_type == "LPPOOL":
        made = np.nansum(np.abs(windows) ** p, axis=inner) ** (1 / p)
    else:
        made = (np.nanmax if pooling_type == "MAX" else np.nanmean)(windows, axis=inner)
    return made.astype(padded.dtype)


@cache
def operators() -> list[str]:
    """All modules of tests, one per operator or a few."""
    return sorted(module.name for module in walk_packages(node.__path__, f"{node.__name__}."))


@cache
def _made(operator: str) -> list[Case]:
    """The tests of one module: importing it makes them."""
    before = len(node._NodeTestCases)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore")
        patched.setattr(op_pool_common, "pool", pool)
        import_module(operator)
    made = node._NodeTestCases[before:]
    for case in made:
        _lower(case.model)
    return made


def _lower(model: onnx.ModelProto) -> None:
    """Take a model back to the newest operator set that ONNX Runtime takes, where its operators are known there."""
    newest = newest_operator_set()
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > newest:
            with suppress(onnx.defs.SchemaError):
                for one in model.graph.node:
                    if one.domain in ("", "ai.onnx"):
                        onnx.defs.get_schema(one.op_type, newest, "")
                entry.version = newest


@cache
def newest_operator_set() -> int:
    """The newest that ONNX Runtime takes: the package may be ahead of it, mostly with what an older one has as well."""
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g", [info], [onnx.ValueInfoProto(name="y")]
    )
    for version in range(onnx.defs.onnx_opset_version(), 0, -1):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)
        with suppress(Exception):  # the runtime raises its own unrelated classes
            ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            return version
    raise AssertionError("ONNX Runtime takes no operator set")


def cases(every: int = 1) -> list[Case]:
    """The tests of one module in ``every``, by name."""
    return sorted((case for name in operators()[::every] for case in _made(name)), key=lambda case: str(case.name))


FLAG = "flag"
"""The one input that is left where all others are constants."""


def over_constants(model: onnx.ModelProto, given: Mapping[str, Any]) -> onnx.ModelProto:
    """The same model with these inputs as constants, as far as they are arrays, and each output chosen in the run.

    The choice is between the output and itself: what is a constant is folded, and something is left to compute.
    """
    made = deepcopy(model)
    graph = made.graph
    left = []
    for info in graph.input:
        value, kind = given.get(info.name), info.type.tensor_type.elem_type
        held = isinstance(value, np.ndarray) and numpy_helper.from_array(value).data_type == kind
        if held:
            graph.initializer.append(numpy_helper.from_array(value, info.name))
        else:
            left.append(info)
    ends = list(graph.output)
    for repeated, values in (
        (graph.input, [*left, helper.make_tensor_value_info(FLAG, TensorProto.BOOL, [])]),
        (graph.output, [onnx.ValueInfoProto(name=f"{info.name}/chosen", type=info.type) for info in ends]),
    ):
        del repeated[:]
        repeated.extend(values)
    for info in ends:
        branches = {f"{branch}_branch": _named(info, branch) for branch in ("then", "else")}
        graph.node.append(helper.make_node("If", [FLAG], [f"{info.name}/chosen"], **branches))
    if not any(entry.domain in ("", "ai.onnx") for entry in made.opset_import):
        made.opset_import.append(helper.make_opsetid("", 17))
    made.ir_version = max(made.ir_version, 4)
    return made


def _named(info: onnx.ValueInfoProto, branch: str) -> onnx.GraphProto:
    name = f"{info.name}/{branch}"
    same = helper.make_node("Identity", [info.name], [name])
    return helper.make_graph([same], branch, [], [onnx.ValueInfoProto(name=name, type=info.type)])
