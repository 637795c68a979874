"""A whole network in OpenVINO, as its own users run it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import openvino as ov
from typing_extensions import override

from agent_sdk.errors import InputError
from agent_sdk.model import Port
from agent_sdk.runtimes.base import CompilationFailed, Package, ProcessorLost
from agent_sdk.runtimes.openvino.processor import CPU, FAILURES, runtime, translated
from agent_sdk.runtimes.whole import WholeNetwork

TYPES: Final[Mapping[str, str]] = {"f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16"} | {
    f"{short}{bits}": f"{long}{bits}" for short, long in (("i", "int"), ("u", "uint")) for bits in (4, 8, 16, 32, 64)
}
"""ONNX Runtime's names of OpenVINO's element types, where they differ."""


class WholeOpenVino(WholeNetwork):
    """One compiled network, tuned for latency. Raises CompilationFailed or OutOfMemory."""

    runtime: Package = "openvino"

    def __init__(self, source: str | os.PathLike[str] | bytes) -> None:
        super().__init__()
        try:
            part = runtime().read_model(source if isinstance(source, bytes) else os.fspath(source))
            if not computes_bfloat16() and any(_in_bfloat16(op) for op in part.get_ops()):
                raise CompilationFailed(
                    f"{self.runtime} computes bfloat16 wrongly on a CPU without instructions for it"
                )
            config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
            self._compiled: ov.CompiledModel | None = runtime().compile_model(part, CPU, config)
        except FAILURES as error:
            raise translated(error, self.runtime, CompilationFailed, "refuses the network") from error
        self.inputs = tuple(map(_port, part.inputs, self._compiled.inputs))
        self.outputs = tuple(map(_port, part.outputs, self._compiled.outputs))
        self._requests = threading.local()

    @override
    def run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        if self._compiled is None:
            raise ProcessorLost(f"{self.runtime}: the network was closed")
        if feed.keys() != {port.name for port in self.inputs}:
            raise InputError(f"inputs must be {', '.join(port.name for port in self.inputs)}; got {', '.join(feed)}")
        request = getattr(self._requests, "request", None)
        if request is None:
            request = self._requests.request = self._compiled.create_infer_request()
        try:
            made = request.infer([np.ascontiguousarray(feed[port.name]) for port in self.inputs])
        except FAILURES as error:
            raise translated(error, self.runtime, ProcessorLost, "failed while running") from error
        return {port.name: np.array(made[index]) for index, port in enumerate(self.outputs)}

    @override
    def close(self) -> None:
        self._compiled = None
        self._requests = threading.local()


@cache
def computes_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16; without them OpenVINO 2026.4 answers nonsense."""
    return "BF16" in runtime().get_property(CPU, "OPTIMIZATION_CAPABILITIES")


def _in_bfloat16(op: Any) -> bool:
    return any(port.get_element_type().get_type_name() == "bf16" for port in op.outputs())


def _port(source: Any, port: Any) -> Port:
    """A port under its name in the source: compiling lets tensors that became one share their names."""
    kind = port.get_element_type().get_type_name()
    shape = port.get_partial_shape()
    sizes = () if shape.rank.is_dynamic else tuple(dim.get_length() if dim.is_static else None for dim in shape)
    named = source.get_node().get_friendly_name().removesuffix("/sink_port_0")
    name = named if named in source.names else source.get_any_name()
    return Port(name, f"tensor({TYPES.get(kind, 'bool' if kind == 'boolean' else kind)})", sizes)
