"""Is the answer right? Ours against the whole model on ONNX Runtime with one thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnxruntime as ort

from agent_sdk.errors import InputError
from agent_sdk.model import Model, extract
from hope_schema import ModelGraph


def random_inputs(graph: ModelGraph, seed: int) -> dict[str, np.ndarray]:
    """Return seeded inputs of the model's shapes: normal for floats, 0 or 1 for all others.

    Integers are often indices, and tables of two rows are common (``token_type_ids``).
    """
    generator = np.random.default_rng(seed)
    inputs = {}
    for name in graph.inputs:
        tensor = graph.tensor[name]
        if tensor.dtype == "bfloat16" or tensor.dtype.endswith("int4"):
            raise InputError(f"input '{name}' is {tensor.dtype}, which NumPy cannot hold")
        dtype = np.dtype(tensor.dtype)
        if dtype.kind == "f":
            inputs[name] = generator.standard_normal(tensor.shape).astype(dtype)
        else:
            inputs[name] = generator.integers(0, 2, tensor.shape).astype(dtype)
    return inputs


def reference(model: Model, inputs: Mapping[str, np.ndarray], tensors: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the named tensors as ONNX Runtime computes them from the uncut model on one thread."""
    return _computed(model, (op.id for op in model.graph.ops), inputs, tensors)


def continued(model: Model, values: Mapping[str, np.ndarray], tensors: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the named tensors as ONNX Runtime computes them from tensors inside the model and nothing else."""
    graph = model.graph
    ops: set[str] = set()
    left = [name for name in tensors if name not in values]
    wanted = list(left)
    for name in wanted:
        if name not in values and graph.producer[name] not in ops:
            op = graph.op[graph.producer[name]]
            ops.add(op.id)
            wanted += op.inputs
    return {name: values[name] for name in tensors if name in values} | (
        _computed(model, ops, values, left) if left else {}
    )


def _computed(
    model: Model, ops: Iterable[str], inputs: Mapping[str, np.ndarray], tensors: Sequence[str]
) -> dict[str, np.ndarray]:
    wanted = tuple(dict.fromkeys(tensors))
    piece = extract(model, ops, tuple(inputs), wanted)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(piece.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(wanted, session.run(list(wanted), dict(inputs)), strict=True))


def relative_error(ours: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """Return max |Δ| ÷ max |reference| over all expected tensors; the worst tensor counts.

    A missing tensor, another shape, or NaN where the reference has none gives infinity. Where the reference is all
    zero, the largest absolute difference counts.
    """
    worst = 0.0
    for name, right in expected.items():
        got = ours.get(name)
        if got is None or got.shape != right.shape:
            return float("inf")
        if right.size == 0:
            continue
        a, b = np.asarray(got, np.float64), np.asarray(right, np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if same.all():
            continue
        if not (np.isfinite(a[~same]).all() and np.isfinite(b[~same]).all()):
            return float("inf")
        scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        worst = max(worst, float(np.abs(a - b)[~same].max()) / float(scale or 1.0))
    return worst
