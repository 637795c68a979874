"""Every op type of the torch runtime's table, held against the ONNX package's own node tests."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper

from agent_sdk.errors import UnsupportedOp
from agent_sdk.model import read_model
from agent_sdk.runtimes.torch.kernel import build
from agent_sdk.runtimes.torch.node import Node, attributes_of
from agent_sdk.runtimes.torch.precision import Precision
from agent_sdk.runtimes.torch.table import MAKERS, call_for
from agent_sdk.runtimes.torch.table.windows import _by_first_choice
from hope_schema import TensorType, merge
from tests.agent.onnx_cases import Case, cases

STATED = frozenset(
    {"Reshape", "Expand", "Tile", "Slice", "Split", "Squeeze", "Unsqueeze", "Pad", "TopK", "CumSum", "Clip", "Resize"}
    | {"Upsample", "Trilu", "OneHot", "Dropout"}
    | {name for name in MAKERS if name.startswith("Reduce")}
)
"""Types whose later inputs are constants in real networks, because they decide the output's shape."""
WITHOUT_TESTS = frozenset({"Cast", "Upsample", "hope:Affine"})
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


def one_node(
    kind: str, opset: int, x: np.ndarray, *constants: np.ndarray | None, **attributes: Any
) -> tuple[bytes, np.ndarray]:
    """A network of one op that reads x and constants, and x; None leaves a constant out."""
    given = {f"c{place}": value for place, value in enumerate(constants) if value is not None}
    names = [f"c{place}" if value is not None else "" for place, value in enumerate(constants)]
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", *names], ["y"], **attributes)],
        kind,
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(value, name) for name, value in given.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return made.SerializeToString(), x


def reals(*shape: int) -> np.ndarray:
    """Random numbers, always the same."""
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def whole(*values: int) -> np.ndarray:
    """A list of integers as a tensor."""
    return np.array(values, np.int64)


FURTHEST = -np.finfo(np.float32).max
AWKWARD = {
    "slice backwards from before the start": one_node(
        "Slice", 13, reals(2, 4), whole(-9), whole(-(2**63)), whole(1), whole(-1)
    ),
    "pad by nothing": one_node("Pad", 18, reals(2, 3, 4, 5), whole(*[0] * 8), mode="edge"),
    "pad one axis of five": one_node("Pad", 18, reals(1, 2, 3, 4, 5), whole(0, 0, 0, 0, 2, 0, 0, 0, 0, 1), mode="edge"),
    "pad a row": one_node("Pad", 18, reals(4), whole(2, 1), mode="reflect"),
    "resize to where edges meet": one_node(
        "Resize", 13, reals(1, 1, 6), np.zeros(0, np.float32), np.array([1, 1, 1.2], np.float32),
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    ),
    "power of more axes": one_node("Pow", 13, np.abs(reals(4, 5)), np.full((1, 1, 1, 1), 2, np.float32)),
    "root of integers": one_node("Pow", 13, np.arange(9), np.array(0.5, np.float32)),
    "one element per group": one_node("GroupNormalization", 21, reals(1, 4, 1, 1), reals(4), reals(4), num_groups=4),
    "one element per channel": one_node("InstanceNormalization", 17, reals(1, 4, 1, 1), reals(4), reals(4)),
    "long in float16": one_node("ReduceL2", 18, 100 * reals(2, 300), whole(1)),
    "clipped from below by nothing": one_node("Clip", 13, reals(4, 5), np.array(FURTHEST), np.array(0.5, np.float32)),
    "masked by nothing": one_node("Mul", 13, np.zeros((3, 4), np.float32), np.array(FURTHEST)),
}  # fmt: skip
"""What the package's tests leave out."""


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(("source", "x"), AWKWARD.values(), ids=AWKWARD)
def test_an_awkward_op_computes_what_onnx_runtime_computes(source: bytes, x: np.ndarray, precision: str) -> None:
    """At the edges of what an op may be asked for, too, and where float16 holds less than float32."""
    model = read_model(source)
    [wanted] = ort.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    [super_op] = merge(model.graph)
    own = Precision(precision)
    kernel = build(super_op, model, own, torch.device("cpu"))
    given = torch.from_numpy(x)
    [made] = kernel(given.to(own.dtype(given.dtype)))
    np.testing.assert_allclose(made.float().numpy(), wanted, rtol=5e-3, atol=5e-3)


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


def test_the_first_choice_is_asked_for_that_call_alone() -> None:
    """Torch's switches are the process's: they are others inside the call, and as before behind it, whatever it did."""
    switches = torch.backends.cudnn
    before = switches.benchmark, switches.deterministic
    seen = []

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        seen.append((switches.benchmark, switches.deterministic))
        return tensors[0]

    assert _by_first_choice(call)(torch.ones(1)) == 1
    with pytest.raises(IndexError):
        _by_first_choice(call)()
    assert seen == [(False, True)] * 2
    assert (switches.benchmark, switches.deterministic) == before
