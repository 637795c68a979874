"""OpenVINO on one core, on several cores together, or on a GPU or NPU that it finds."""

# ruff: noqa: D102  what the overridden methods promise stands in base.py

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from functools import cache, partial
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as opset

from agent_sdk.device.cores import bound_to, name_cores
from agent_sdk.device.soc import Soc
from agent_sdk.errors import ProcessorError
from agent_sdk.measure.alone import time_executable, whole_network
from agent_sdk.measure.attribution import share_out
from agent_sdk.measure.timing import LONG_US, Timing
from agent_sdk.model import Model, extract
from agent_sdk.model.weights import LightModels
from agent_sdk.runtimes.base import (
    BoundCall,
    CompilationFailed,
    Executable,
    Processor,
    ProcessorLost,
    Segment,
    SilentFallback,
    UnsupportedOp,
    WrongOutput,
    machines_fault,
)
from agent_sdk.runtimes.host import HostMemoryProcessor
from hope_schema import ModelGraph, TensorType
from hope_schema import Processor as ProcessorSpec

CPU: Final = "CPU"
ORIGINAL_NAMES: Final = "originalLayersNames"
"""What the runtime keeps with a kernel: the names of the ops that were fused into it, with commas between."""
ACCELERATORS: Final = ("GPU", "NPU")
FAILURES: Final = (RuntimeError, MemoryError, OSError)
"""What calls of OpenVINO raise, and the files that go with them."""


@cache
def runtime() -> ov.Core:
    """The process's one OpenVINO core; starting it loads the plugins."""
    return ov.Core()


def accelerators() -> tuple[str, ...]:
    """Devices OpenVINO can drive here besides the CPU, e.g. ``("GPU.0", "NPU")``."""
    return tuple(name for name in runtime().available_devices if name.partition(".")[0] in ACCELERATORS)


class OpenVinoProcessor(HostMemoryProcessor):
    """OpenVINO with ``len(cores)`` threads on the CPU, or on the accelerator ``device``.

    With one thread OpenVINO computes on the calling thread. A gang's workers come from the runtime's own pool and
    inherit the mask of the thread that first needs them, so a gang's caller is bound to all of its cores.
    """

    conversion_differs = False
    hands_over_native = False

    def __init__(
        self, soc: Soc, cores: frozenset[int], device: str = CPU, *, lights: LightModels | None = None
    ) -> None:
        self.cores = tuple(sorted(cores))
        self.device = device
        self._lights = lights if lights is not None else LightModels()
        self._usable = frozenset(soc.cores)
        on_cpu = device == CPU
        short = device.lower().replace(".", "")
        self.spec = ProcessorSpec(
            id=f"ov@{name_cores(self.cores)}" if on_cpu else f"ov-{short}@0",
            runtime="ov" if on_cpu else f"ov-{short}",
            version=ov.__version__.partition("-")[0],
            threads=len(self.cores),
            core_class=soc.class_of(cores) if on_cpu else short,
            resources=tuple(f"cpu{core}" for core in self.cores) if on_cpu else (short,),
        )

    @property
    def caller_cores(self) -> frozenset[int]:
        return frozenset(self.cores)

    @property
    def on_caller_thread(self) -> bool:
        return self.device == CPU and super().on_caller_thread

    def same_layout(self, other: Processor) -> bool:
        return isinstance(other, OpenVinoProcessor) and other.device == self.device

    def compile(self, segment: Segment) -> OpenVinoExecutable:
        return OpenVinoExecutable(self, segment, self.compiled(self.read(segment)))

    def read(self, segment: Segment) -> ov.Model:
        """Convert a segment. Raises UnsupportedOp where the importer does not know an op, and OutOfMemory."""
        light, folder = self._lights.get(segment.model)
        proto = extract(light, segment.ops, segment.inputs, segment.outputs)
        try:
            # A file beside the weights, because only files may refer to others; their pages are mapped, not copied.
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".onnx") as file:
                file.write(proto.SerializeToString())
                file.flush()
                return runtime().read_model(file.name)
        except FAILURES as error:
            raise translated(error, self.id, UnsupportedOp, "cannot import this") from error

    def compiled(self, part: ov.Model, **settings: Any) -> ov.CompiledModel:
        """Compile for this processor's cores or device, and make sure that it is there that it runs."""
        config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1} | settings
        if self.device == CPU:
            config |= {"INFERENCE_NUM_THREADS": len(self.cores), "ENABLE_CPU_PINNING": False}
        try:
            # NOTE: OpenVINO reads the calling thread's mask at its first compilation, once for the whole process.
            with bound_to(self._usable):
                compiled = runtime().compile_model(part, self.device, config)
        except FAILURES as error:
            if any(mark in str(error).lower() for mark in ("unsupported", "not supported", "not implemented")):
                raise translated(error, self.id, UnsupportedOp, "does not implement this") from error
            raise translated(error, self.id, CompilationFailed, "refused the segment") from error
        ran_on = compiled.get_property("EXECUTION_DEVICES")
        if any(name.partition(".")[0] != self.device.partition(".")[0] for name in ran_on):
            raise SilentFallback(f"{self.id}: OpenVINO would run this on {', '.join(ran_on)} instead of {self.device}")
        if self.device == CPU and compiled.get_property("INFERENCE_NUM_THREADS") != len(self.cores):
            got = compiled.get_property("INFERENCE_NUM_THREADS")
            raise SilentFallback(f"{self.id}: OpenVINO would use {got} threads instead of {len(self.cores)}")
        return compiled

    def conversion(self, kind: TensorType, *, outwards: bool) -> Callable[[], object] | None:
        """OpenVINO computes on channels-last or blocked data: a transposition stands for the change."""
        if self.device != CPU or kind.dtype != "float32" or len(kind.shape) != 4 or kind.shape[1] == 1:
            return None
        parameter = opset.parameter(list(kind.shape), np.float32)
        turned = opset.transpose(parameter, opset.constant(np.array([0, 2, 3, 1])))
        request = self.compiled(ov.Model([turned], [parameter], "layout")).create_infer_request()
        request.set_input_tensor(0, ov.Tensor(np.zeros(kind.shape, np.float32)))
        return partial(request.infer, share_outputs=True)

    def time_ops(self, model: Model, deadline: float) -> Mapping[str, Timing]:
        segment = whole_network(model)
        compiled = self.compiled(self.read(segment), PERF_COUNT=True)
        runs: list[dict[str, float]] = []
        with closing(OpenVinoExecutable(self, segment, compiled)) as executable:
            time_executable(executable, deadline, enough_us=LONG_US, after=lambda call: runs.append(kernel_times(call)))
        runs = runs[len(runs) // 4 :]
        always = [name for name in runs[0] if all(name in run for run in runs)]
        kernels = {name: [run[name] for run in runs] for name in always}
        return share_out(model, kernels, covered_ops(compiled, kernels, model.graph))

    def close(self) -> None:
        """Nothing is held beyond the executables."""


class OpenVinoExecutable(Executable):
    """One compiled OpenVINO model for one segment."""

    def __init__(self, processor: OpenVinoProcessor, segment: Segment, compiled: ov.CompiledModel) -> None:
        tensor = segment.model.graph.tensor
        self.segment = segment
        self.input_types: Mapping[str, TensorType] = {name: tensor[name].type for name in segment.inputs}
        self.output_types: Mapping[str, TensorType] = {name: tensor[name].type for name in segment.outputs}
        self._processor = processor
        self._compiled: ov.CompiledModel | None = compiled
        for port, name in zip(compiled.outputs, segment.outputs, strict=True):
            shape = tuple(port.get_partial_shape().to_shape())
            if shape != tensor[name].shape:
                raise WrongOutput(f"{processor.id}: '{name}' would be {shape} instead of {tensor[name].type}")

    @property
    def processor(self) -> OpenVinoProcessor:
        return self._processor

    @property
    def ran_on(self) -> Mapping[str, str]:
        if self._compiled is None:
            return {}
        return {
            "device": ",".join(self._compiled.get_property("EXECUTION_DEVICES")),
            "cores": name_cores(self._processor.cores),
        }

    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> BoundRequest:
        if self._compiled is None:
            raise ProcessorLost(f"{self._processor.id}: the segment was closed")
        try:
            return BoundRequest(self, self._compiled, inputs, outputs)
        except FAILURES as error:
            raise translated(error, self._processor.id, WrongOutput, "refused a buffer") from error

    def close(self) -> None:
        self._compiled = None


def kernel_times(call: Callable[[], None]) -> dict[str, float]:
    """Microseconds by the runtime's node name of the request's last run.

    The runtime counts whole ones and reports a kernel that took less as not run: here that is half of one. What has no
    kernel (a network's inputs and outputs, what is done in place) takes none.
    """
    assert isinstance(call, BoundRequest)
    return {
        info.node_name: max(info.real_time.total_seconds() * 1e6, 0.0 if info.exec_type.startswith("unknown") else 0.5)
        for info in call.request.profiling_info
    }


def covered_ops(compiled: ov.CompiledModel, kernels: Iterable[str], graph: ModelGraph) -> dict[str, list[str]]:
    """Kernel name to the ids of the ops that were fused into it; none for changes of layout."""
    fused = {}
    with suppress(RuntimeError):  # not every accelerator shows what it made of a network; kernels have names anyway
        for kernel in compiled.get_runtime_model().get_ops():
            fused[kernel.get_friendly_name()] = str(kernel.get_rt_info()[ORIGINAL_NAMES].value)
    return {kernel: ops_named(fused.get(kernel, kernel), graph) for kernel in kernels}


def ops_named(names: str, graph: ModelGraph) -> list[str]:
    """The ids of the ops in a list with commas between, which may stand in ids too; each once.

    The runtime appends to a name what it makes of the op (``conv1/WithoutBiases``), and adds names of its own.
    """
    found = []
    parts = names.split(",")
    while parts:
        whole = next((end for end in range(len(parts), 0, -1) if ",".join(parts[:end]) in graph.op), 0)
        name = ",".join(parts[: whole or 1])
        while name not in graph.op and "/" in name:
            name = name.rpartition("/")[0]
        if name in graph.op and name not in found:
            found.append(name)
        parts = parts[whole or 1 :]
    return found


class BoundRequest(BoundCall):
    """An infer request with its tensors; it keeps their arrays alive, which OpenVINO does not."""

    __slots__ = ("_executable", "_infer", "_keep", "_ports", "request")

    def __init__(
        self,
        executable: OpenVinoExecutable,
        compiled: ov.CompiledModel,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        segment = executable.segment
        self._executable = executable
        self.request = request = compiled.create_infer_request()
        # The wrapped C++ call: the Python method above it looks for new inputs and wraps the results first.
        self._infer: Callable[..., object] = getattr(super(ov.InferRequest, request), "infer")  # noqa: B009
        self._keep: dict[str, np.ndarray] = {}
        self._ports = dict(zip(segment.inputs, compiled.inputs, strict=True))
        for name in segment.inputs:
            self.rebind(name, inputs[name])
        for name, port in zip(segment.outputs, compiled.outputs, strict=True):
            self._set(name, port, outputs[name])

    def rebind(self, name: str, buffer: np.ndarray) -> None:
        self._set(name, self._ports[name], buffer)

    def _set(self, name: str, port: Any, array: np.ndarray) -> None:
        self.request.set_tensor(port, ov.Tensor(array, shared_memory=True))
        self._keep[name] = array

    def __call__(self) -> None:
        try:
            self._infer({}, share_outputs=True, decode_strings=False)
        except FAILURES as error:
            where = f"{self._executable.processor.id}, segment ending in '{self._executable.segment.ops[-1]}'"
            raise translated(error, where, ProcessorLost, "failed while running") from error


def translated(error: Exception, where: str, meaning: type[ProcessorError], what: str) -> ProcessorError:
    """The error to raise for one of OpenVINO's, which says ``what`` happened, unless it is the machine's fault."""
    text = _summary(error)
    return machines_fault(error, where, text) or meaning(f"{where}: OpenVINO {what}: {text}")


def _summary(error: Exception) -> str:
    """The last telling line of an OpenVINO message, which begins with places in its source code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Exception from", "Check ", "src/"))]
    return (telling or lines or [type(error).__name__])[-1][:400]
