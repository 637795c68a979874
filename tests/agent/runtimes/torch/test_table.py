"""Every op type of the torch runtime's table, held against the ONNX package's own node tests."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest
import torch

from agent_sdk.model import read_model
from agent_sdk.runtimes.base import UnsupportedOp
from agent_sdk.runtimes.torch.node import Node, attributes_of
from agent_sdk.runtimes.torch.table import MAKERS, call_for
from hope_schema import TensorType
from tests.agent.onnx_cases import Case, cases

STATED = frozenset(
    {"Reshape", "Expand", "Tile", "Slice", "Split", "Squeeze", "Unsqueeze", "Pad", "TopK", "CumSum", "Clip", "Resize"}
    | {"Upsample", "Trilu", "OneHot", "Dropout"}
    | {name for name in MAKERS if name.startswith("Reduce")}
)
"""Types whose later inputs are constants in real networks, because they decide the output's shape."""
WITHOUT_TESTS = frozenset({"Cast", "CastLike", "Upsample", "hope:Affine"})
"""Types that the ONNX package tests only with types NumPy lacks, or no more; the networks below hold the first two."""
LACKING = ("uint16", "uint32", "uint64", "bfloat16")
"""Types of which torch has tensors but hardly a kernel."""
REFUSED = {
    "BatchNormalization": ("training_mode",),
    "ConvTranspose": ("output_shape",),
    "Dropout": ("mask", "test_training_dropout"),
    "GatherND": ("batch_dim1",),
    "MaxPool": ("with_argmax",),
    "Resize": (
        "antialias",
        "crop_and_resize",
        "A_n0p5",
        "cubic_asymmetric",
        "axes_",
        "not_larger",
        "not_smaller",
        "half_pixel_symmetric",
        "downsample_scales_linear",
        "downsample_scales_cubic",
        "linear_pytorch_half_pixel",
    ),
    "ReduceMax": ("empty_set",),
    "ReduceMin": ("empty_set",),
    "ScatterElements": ("reduction", "duplicate"),
    "ScatterND": ("add", "multiply", "max", "min"),
}
"""Parts of the names of tests that ask for what the table refuses; whatever else they test must be right."""
PEOPLE_BRING = frozenset(
    {"Add", "And", "ArgMax", "AveragePool", "BatchNormalization", "Cast", "Clip"}
    | {"Concat", "Conv", "ConvTranspose", "DepthToSpace", "Div", "Dropout", "Einsum"}
    | {"Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor"}
    | {"Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool"}
    | {"Greater", "GroupNormalization", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LRN"}
    | {"LayerNormalization", "LeakyRelu", "Less", "Log", "LogSoftmax", "MatMul", "Max"}
    | {"MaxPool", "Min", "Mod", "Mul", "Neg", "Not", "Or"}
    | {"PRelu", "Pad", "Pow", "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean"}
    | {"ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Reshape", "Resize", "ScatterND"}
    | {"Sigmoid", "Sign", "Sin", "Cos", "Slice", "Softmax", "Softplus"}
    | {"SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh"}
    | {"Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where"}
)
"""What exporters write for classification networks of torchvision and timm, and for transformer encoders."""


@cache
def cases_by_type() -> dict[str, list[Case]]:
    """The ONNX package's tests of single ops."""
    found: dict[str, list[Case]] = {}
    for case in cases():
        if case.model is not None and len(case.model.graph.node) == 1:
            found.setdefault(case.model.graph.node[0].op_type, []).append(case)
    return found


def outcome(case: Case) -> str:
    """Run one test; returns "" where it is right, else what is wrong, or "refused: ..."."""
    proto = case.model.graph.node[0]
    inputs, outputs = case.data_sets[0]
    if not all(isinstance(value, np.ndarray) or np.isscalar(value) for value in (*inputs, *outputs)):
        return "refused: sequences"
    values = dict(zip((info.name for info in case.model.graph.input), map(np.asarray, inputs), strict=True))
    results = dict(zip((info.name for info in case.model.graph.output), map(np.asarray, outputs), strict=True))
    if any(str(value.dtype) in LACKING or value.dtype.kind not in "biuf" for value in values.values()):
        return "refused: types"
    node = Node(
        type=proto.op_type,
        version=case.model.opset_import[0].version,
        attributes=attributes_of(proto),
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        constants={name: values[name] for name in proto.input[1:] if name and proto.op_type in STATED},
        types={name: TensorType(shape=v.shape, dtype=str(v.dtype)) for name, v in {**values, **results}.items()},
    )
    try:
        made = call_for(node)(*[torch.from_numpy(values[name].copy()) if name else None for name in proto.input])
    except (UnsupportedOp, IndexError) as error:
        return f"refused: {error}"
    for tensor, wanted in zip(made if isinstance(made, tuple) else (made,), results.values(), strict=True):
        got = tensor.numpy()
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return f"{got.dtype}{got.shape} instead of {wanted.dtype}{wanted.shape}"
        if not np.allclose(got, wanted, rtol=1e-3, atol=1e-5, equal_nan=True):
            return "other values"
    return ""


@pytest.mark.parametrize("kind", sorted(set(MAKERS) - WITHOUT_TESTS))
def test_an_op_computes_what_onnx_says(kind: str) -> None:
    """Each node test of the type is right, and refused only where the list above says so."""
    right = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases_by_type()[kind]:
            found = outcome(case)
            if found.startswith("refused: ") and found[9:] not in ("sequences", "types"):
                assert any(mark in case.name for mark in REFUSED.get(kind, ())), f"{case.name}: {found}"
            elif not found.startswith("refused"):
                assert found == "", f"{case.name}: {found}"
                right += 1
    assert right, f"no test of {kind} was run"


def test_the_zoo_and_what_people_bring_are_covered() -> None:
    """Every op type of the zoo's networks, and of the networks that people export, has a call."""
    small = ("densenet121", "inception_v1", "lstm", "nasnet_mobile", "shufflenet")  # together all types of the zoo
    zoo = {op.type for name in small for op in read_model(name).graph.ops}
    assert (zoo | PEOPLE_BRING) <= set(MAKERS)


def test_an_unknown_op_is_unsupported() -> None:
    """A type without a call is refused by name."""
    kind = TensorType(shape=(1,), dtype="float32")
    node = Node("com.acme:Frobnicate", 1, {}, ("x",), ("y",), {}, {"x": kind, "y": kind})
    with pytest.raises(UnsupportedOp, match=r"'y' \(com.acme:Frobnicate\)"):
        call_for(node)


def test_a_shape_that_depends_on_data_is_unsupported() -> None:
    """What a graph could be captured for only once is refused, naming the input to blame."""
    types = {name: TensorType(shape=(2,), dtype="int64") for name in ("x", "k", "y")}
    with pytest.raises(UnsupportedOp, match="'k' is no constant"):
        call_for(Node("TopK", 11, {}, ("x", "k"), ("y", "z"), {}, types))
