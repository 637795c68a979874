"""What an expert makes of a network before it is compared with ours: folded, frozen; and what no schedule can beat."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from agent_sdk.model import Model
from hope_schema import merge


def folded(path: str | Path) -> bytes:
    """A network with constants computed and batch norms, scales and shifts in the weights before them, as a file.

    ONNX Runtime does it, by its basic rules, which leave standard ops only.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(made)
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return made.read_bytes()


def batched(network: bytes, count: int) -> bytes:
    """A network for so many pictures at once; its ops must take their sizes from what they read."""
    if count == 1:
        return network
    proto = onnx.load_from_string(network)
    del proto.graph.value_info[:]
    for port in (*proto.graph.input, *proto.graph.output):
        port.type.tensor_type.shape.dim[0].dim_value = count
    return proto.SerializeToString()


def frozen(mode: str) -> dict[str, Any]:
    """The options of a mode of torch's compiler, with weights as constants that it may lay out and fold."""
    import torch._inductor

    return {**torch._inductor.list_mode_options(mode), "freezing": True}


def longest_path_us(model: Model, us: Mapping[str, float]) -> float:
    """How long the network takes where everything else runs beside its longest path; ``us`` by super-op's id, alone."""
    done: dict[str, float] = {}
    for super_op in merge(model.graph):  # in topological order
        ready = max((done.get(name, 0.0) for name in super_op.inputs), default=0.0)
        done |= dict.fromkeys(super_op.outputs, ready + us[super_op.id])
    return max(done.values(), default=0.0)
