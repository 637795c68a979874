"""ONNX Runtime on the GPU as an expert sets it: its CUDA provider in CUDA graphs, and TensorRT, where there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import onnxruntime as ort
import torch

from agent_sdk.model import Content
from agent_sdk.model.nodes import show
from benchmarks.results import left_out

PROVIDERS: Final = {"ort cuda": "CUDAExecutionProvider", "ort tensorrt": "TensorrtExecutionProvider"}

Call = tuple[Callable[[], object], Callable[[], dict[str, np.ndarray]]]
"""What starts a run on the stream, and what gives its answer."""


def baselines(
    network: bytes, feeds: Mapping[str, np.ndarray], watched: tuple[str, ...], precision: str, stream: torch.cuda.Stream
) -> dict[str, Call]:
    """The providers that this machine has, each with the network loaded; who is not there, or fails, is told of."""
    found: dict[str, Call] = {}
    for label, provider in PROVIDERS.items():
        if provider not in ort.get_available_providers():
            print(f"{label}: left out, for ONNX Runtime {ort.__version__} has no {provider} here")
            continue
        with left_out(precision=precision, config=label):
            found[label] = _loaded(network, feeds, watched, precision, provider, stream)
    return found


def _loaded(
    network: bytes,
    feeds: Mapping[str, np.ndarray],
    watched: tuple[str, ...],
    precision: str,
    provider: str,
    stream: torch.cuda.Stream,
) -> Call:
    """Inputs and outputs stay on the GPU, at the same addresses: a graph is captured at the first run."""
    proto = Content(network).proto()
    show(proto, watched)
    options: dict[str, Any] = {"user_compute_stream": str(stream.cuda_stream)}
    if provider == "CUDAExecutionProvider":
        options |= {"enable_cuda_graph": "1", "use_tf32": str(int(precision == "tf32")), "prefer_nhwc": "1"}
        if precision == "fp16":
            from onnxruntime.transformers.float16 import convert_float_to_float16

            proto = convert_float_to_float16(proto, keep_io_types=True)
    else:
        options |= {"trt_cuda_graph_enable": "1", "trt_fp16_enable": str(int(precision == "fp16"))}
    session = ort.InferenceSession(proto.SerializeToString(), providers=[(provider, options)])
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
    for name in watched:
        binding.bind_output(name, "cuda")
    for _ in range(3):
        session.run_with_iobinding(binding)

    def outputs() -> dict[str, np.ndarray]:
        session.run_with_iobinding(binding)
        return dict(zip(watched, binding.copy_outputs_to_cpu(), strict=True))

    return lambda: session.run_with_iobinding(binding), outputs
