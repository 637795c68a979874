"""OpenVINO on one core, on several cores together, or on a GPU or NPU that it finds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from functools import cache, partial
from typing import Any, Final, TypeAlias

import numpy as np
from typing_extensions import override

from agent_sdk.errors import (
    CompilationFailed,
    ProcessorError,
    ProcessorLost,
    SilentFallback,
    UnsupportedOp,
    WrongOutput,
)
from agent_sdk.machine.cores import bound_to
from agent_sdk.machine.soc import Soc
from agent_sdk.machine.timing import LONG_US, Timing, measure
from agent_sdk.model import Model, extract
from agent_sdk.model.oneop import one_op
from agent_sdk.model.weights import LightModels
from agent_sdk.native import library
from agent_sdk.runtimes.alone import bound
from agent_sdk.runtimes.attribution import share_out
from agent_sdk.runtimes.base import BoundCall, Compiler, Executable, NativeCall, Segment, whole_network
from agent_sdk.runtimes.faults import machines_fault
from agent_sdk.runtimes.host import HostPlace, HostProcessor, OutputMark
from agent_sdk.runtimes.openvino.capi import Api, NativeModel, NativeRequest, api
from agent_sdk.runtimes.openvino.package import ov
from agent_sdk.runtimes.openvino.trusted import OPENVINO
from hope_schema import ModelGraph, TensorType

CPU: Final = "CPU"
ORIGINAL_NAMES: Final = "originalLayersNames"
"""What the runtime keeps with a kernel: the names of the ops that were fused into it, with commas between."""
CHANGING_NOTHING: Final = frozenset({"Dropout", "Max", "Mean", "Min", "Sum"})
"""Ops that with one input give it as it came, and that OpenVINO drops."""
ACCELERATORS: Final = ("GPU", "NPU")
FAILURES: Final = (RuntimeError, MemoryError, OSError)
"""What calls of OpenVINO raise, and the files that go with them."""
NOTHING_WRITTEN: Final = "it reported success and wrote no output, so one of its kernels failed"

AnyCore: TypeAlias = ov.Core | Api
AnyModel: TypeAlias = ov.CompiledModel | NativeModel


@cache
def runtime() -> ov.Core:
    """The process's one OpenVINO core; starting it loads the plugins."""
    return ov.Core()


def accelerators() -> tuple[str, ...]:
    """Devices OpenVINO can drive here besides the CPU, e.g. ``("GPU.0", "NPU")``."""
    return tuple(name for name in runtime().available_devices if name.partition(".")[0] in ACCELERATORS)


class OpenVinoProcessor(HostProcessor):
    """OpenVINO with ``len(cores)`` threads on the CPU, or on the accelerator ``device``.

    With one thread OpenVINO computes on the calling thread. A gang's workers come from the runtime's own pool and
    inherit the mask of the thread that first needs them, so a gang's caller is bound to all of its cores.
    """

    conversion_differs = False
    hands_over_native = False
    reentrant = False  # its requests of one stream wait for one another
    trusted = OPENVINO

    def __init__(self, soc: Soc, cores: frozenset[int], device: str = CPU, *, lights: LightModels) -> None:
        short = "" if device == CPU else device.lower().replace(".", "")
        compiler = Compiler("openvino", ov.__version__.partition("-")[0], device)
        super().__init__(soc, cores, "ov", compiler, short, (short,) if short else ())
        self.device = device
        self.settings: dict[str, Any] = {"NUM_STREAMS": 1}
        if self.on_cores:
            self.settings |= {"INFERENCE_NUM_THREADS": len(self.cores), "ENABLE_CPU_PINNING": False}
        self._lights = lights
        self._usable = frozenset(soc.cores)

    @override
    def compile(self, segment: Segment) -> OpenVinoExecutable:
        core = (library() and api()) or runtime()
        return OpenVinoExecutable(self, segment, self.compiled(self.read(segment.own, core), core))

    def read(self, segment: Segment, core: AnyCore | None = None) -> Any:
        """Convert a segment. Raises UnsupportedOp for an op that is not trusted or imported, and OutOfMemory."""
        graph = segment.model.graph
        self.refuse_untrusted((graph.op[op] for op in segment.ops), graph)
        if passed := passed_through(segment):
            raise UnsupportedOp(f"{self.id}: '{passed}' is an input as it came, which takes the input's buffer there")
        light, folder = self._lights.get(segment.model)
        proto = extract(light, segment.ops, segment.inputs, segment.outputs)
        try:
            # A file beside the weights, because only files may refer to others; their pages are mapped, not copied.
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".onnx") as file:
                file.write(proto.SerializeToString())
                file.flush()
                return (core or runtime()).read_model(file.name)
        except FAILURES as error:
            raise translated(error, self.id, UnsupportedOp, "cannot import this") from error

    def compiled(self, part: Any, core: AnyCore | None = None, **settings: Any) -> Any:
        """Compile for this processor's cores or device, and make sure that it is there that it runs."""
        config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", **self.settings, **settings}
        try:
            # NOTE: OpenVINO reads the calling thread's mask at its first compilation, once for the whole process.
            with bound_to(self._usable):
                compiled = (core or runtime()).compile_model(part, self.device, config)
        except FAILURES as error:
            if any(mark in str(error).lower() for mark in ("unsupported", "not supported", "not implemented")):
                raise translated(error, self.id, UnsupportedOp, "does not implement this") from error
            raise translated(error, self.id, CompilationFailed, "refused the segment") from error
        ran_on = compiled.get_property("EXECUTION_DEVICES")
        if any(name.partition(".")[0] != self.device.partition(".")[0] for name in ran_on):
            raise SilentFallback(f"{self.id}: OpenVINO would run this on {', '.join(ran_on)} instead of {self.device}")
        wanted = config.get("INFERENCE_NUM_THREADS")
        if wanted is not None and (got := compiled.get_property("INFERENCE_NUM_THREADS")) != wanted:
            raise SilentFallback(f"{self.id}: OpenVINO would use {got} threads instead of {wanted}")
        return compiled

    @override
    def conversion(self, kind: TensorType, *, outwards: bool) -> OpenVinoExecutable | None:
        """OpenVINO computes on channels-last or blocked data: a transposition stands for the change."""
        if not self.on_cores or kind.dtype != "float32" or len(kind.shape) != 4 or kind.shape[1] == 1:
            return None
        return self.compile(whole_network(one_op("Transpose", kind, perm=[0, 2, 3, 1])))

    @override
    def time_ops(self, model: Model, deadline: float) -> Mapping[str, Timing]:
        segment = whole_network(model)
        compiled = self.compiled(self.read(segment), PERF_COUNT=True)
        runs: list[dict[str, float]] = []
        with closing(OpenVinoExecutable(self, segment, compiled)) as executable:
            call = bound(executable)
            with bound_to(self.caller_cores):
                measure(call, deadline=deadline, enough_us=LONG_US, after=lambda: runs.append(kernel_times(call)))
        runs = runs[len(runs) // 4 :]
        always = [name for name in runs[0] if all(name in run for run in runs)]
        kernels = {name: [run[name] for run in runs] for name in always}
        return share_out(model, kernels, covered_ops(compiled, kernels, model.graph))


class PlainOpenVino(OpenVinoProcessor):
    """OpenVINO on all cores with its own defaults."""

    def __init__(self, soc: Soc, *, lights: LightModels) -> None:
        super().__init__(soc, frozenset(soc.cores), lights=lights)
        self.spec = self.spec.model_copy(update={"id": "openvino", "runtime": "openvino", "place": "host/openvino"})
        self.place = HostPlace(self.spec.place)
        self.settings = {"PERFORMANCE_HINT": "LATENCY"}


def passed_through(segment: Segment) -> str:
    """An output that is an input as it came; empty where there is none.

    OpenVINO drops ops that change nothing. What is left, a parameter that is a result, has one buffer for both, so that
    an output that is bound takes the place of the input, and every kernel reads it instead.
    """
    graph = segment.model.graph
    ops = [graph.op[name] for name in segment.ops]
    came = set(segment.inputs)
    for op in ops:  # in order
        read = [name for name in op.inputs if name]
        alone = len(read) == 1 and (op.type == "Dropout" or not op.parameters)
        if op.type in CHANGING_NOTHING and alone and read[0] in came:
            came.add(op.outputs[0])
    return next((name for name in segment.outputs if name in came), "")


class OpenVinoExecutable(Executable):
    """One compiled OpenVINO model for one segment."""

    processor: OpenVinoProcessor

    def __init__(self, processor: OpenVinoProcessor, segment: Segment, compiled: AnyModel) -> None:
        super().__init__(processor, segment, compiled)
        for index, (name, kind) in enumerate(self.output_types.items()):
            try:
                shape = output_shape(compiled, index)
            except FAILURES as error:
                raise translated(error, processor.id, UnsupportedOp, f"gives '{name}' no fixed shape") from error
            if shape != kind.shape:
                raise UnsupportedOp(f"{processor.id}: '{name}' would be {shape} instead of {kind}")

    @override
    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> BoundRequest:
        compiled = self.compiled
        try:
            return BoundRequest(self, compiled, inputs, outputs)
        except FAILURES as error:
            raise translated(error, self.processor.id, WrongOutput, "refused a buffer") from error


def output_shape(compiled: AnyModel, index: int) -> tuple[int, ...]:
    if isinstance(compiled, NativeModel):
        return compiled.output_shape(index)
    return tuple(compiled.outputs[index].get_partial_shape().to_shape())


def kernel_times(call: Callable[[], None]) -> dict[str, float]:
    """Microseconds by the runtime's node name of the request's last run.

    The runtime counts whole ones and reports a kernel that took less as not run: here that is half of one. What has no
    kernel (a network's inputs and outputs, what is done in place) takes none.
    """
    assert isinstance(call, BoundRequest)
    assert isinstance(call.request, PythonRequest)
    return {
        info.node_name: max(info.real_time.total_seconds() * 1e6, 0.0 if info.exec_type.startswith("unknown") else 0.5)
        for info in call.request.request.profiling_info
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


class PythonRequest:
    """An infer request of the Python module, over memory of ours."""

    native: tuple[NativeCall, ...] = ()

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self.request = compiled.create_infer_request()
        self._ports = {"input": compiled.inputs, "output": compiled.outputs}
        self.infer: Callable[[], object] = partial(self.request.infer, share_outputs=True, decode_strings=False)

    def set(self, kind: str, index: int, array: np.ndarray) -> None:
        self.request.set_tensor(self._ports[kind][index], ov.Tensor(array, shared_memory=True))


class BoundRequest(BoundCall):
    """An infer request with its tensors; it keeps their arrays alive, which OpenVINO does not.

    With one thread a synchronous inference whose kernel fails returns success and leaves the outputs as they were. So
    the end of each output is marked before it, and a mark that is still there afterwards is a failure.
    """

    def __init__(
        self,
        executable: OpenVinoExecutable,
        compiled: AnyModel,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        segment = executable.segment
        self._executable = executable
        self.request = NativeRequest(compiled) if isinstance(compiled, NativeModel) else PythonRequest(compiled)
        self._infer = self.request.infer
        self._keep: dict[str, np.ndarray] = {}
        for name in segment.inputs:
            self.rebind(name, inputs[name])
        for index, name in enumerate(segment.outputs):
            self._keep[name] = outputs[name]
            self.request.set("output", index, outputs[name])
        marks = [OutputMark(outputs[name]) for name in segment.outputs]
        self._marks = [mark for mark in marks if mark.telling] if executable.processor.on_caller_thread else []
        self.native = self.request.native and (
            *(mark.native("hope_mark") for mark in self._marks),
            *self.request.native,
            *(mark.native("hope_marked") for mark in self._marks),
        )

    @override
    def rebind(self, name: str, buffer: np.ndarray) -> None:
        self.request.set("input", self._executable.segment.inputs.index(name), buffer)
        self._keep[name] = buffer

    @override
    def __call__(self) -> None:
        for mark in self._marks:
            mark.place()
        try:
            self._infer()
        except FAILURES as error:
            raise self._lost(error) from error
        if any(mark.is_there() for mark in self._marks):
            raise self._lost(RuntimeError(NOTHING_WRITTEN))

    @override
    def failure(self, place: int, status: int) -> ProcessorError:
        assert isinstance(self.request, NativeRequest)
        inferring = place == len(self._marks)
        return self._lost(RuntimeError(self.request.said() if inferring else NOTHING_WRITTEN))

    def _lost(self, error: Exception) -> ProcessorError:
        return translated(error, self._executable.where, ProcessorLost, "failed while running")


def translated(error: Exception, where: str, meaning: type[ProcessorError], what: str) -> ProcessorError:
    """The error to raise for one of OpenVINO's, which says ``what`` happened, unless it is the machine's fault."""
    text = _summary(error)
    return machines_fault(error, where, text) or meaning(f"{where}: OpenVINO {what}: {text}")


def _summary(error: Exception) -> str:
    """The last telling line of an OpenVINO message, which begins with places in its source code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Exception from", "Check ", "src/"))]
    return (telling or lines or [type(error).__name__])[-1][:400]
