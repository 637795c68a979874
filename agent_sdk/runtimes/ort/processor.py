"""ONNX Runtime on one core, on several cores together (a gang), or on another execution provider of the wheel."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cache, partial
from typing import Final

import numpy as np
import onnxruntime as ort
from typing_extensions import override

from agent_sdk.errors import (
    CompilationFailed,
    NotWantedError,
    ProcessorError,
    ProcessorLost,
    SilentFallback,
    UnsupportedOp,
    WrongOutput,
)
from agent_sdk.forking import TemporaryFolder
from agent_sdk.machine.soc import Soc
from agent_sdk.machine.timing import LONG_US, Timing
from agent_sdk.model import Model
from agent_sdk.model.oneop import one_op
from agent_sdk.runtimes.alone import time_executable
from agent_sdk.runtimes.base import BoundCall, Compiler, Executable, Segment, whole_network
from agent_sdk.runtimes.faults import first_line, machines_fault
from agent_sdk.runtimes.host import HostPlace, HostProcessor
from agent_sdk.runtimes.ort.capi import AnySession, NativeBinding, PythonBinding, bindings, native_session
from agent_sdk.runtimes.ort.cut import Piece, block_size, cut, from_source, reordering
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.options import CPU, LEVELS, SPINS, cancellable, opened, options
from agent_sdk.runtimes.ort.profile import attribute, kernel_times
from hope_schema import TensorType

NO_ACCELERATORS: Final = frozenset({CPU, "AzureExecutionProvider"})
"""Providers of the wheel that are none."""
HARDWARE: Final[Mapping[str, str | None]] = {
    "CUDAExecutionProvider": "cuda0",
    "TensorrtExecutionProvider": "cuda0",
    "NvTensorRTRTXExecutionProvider": "cuda0",
    "MIGraphXExecutionProvider": "rocm0",
    "ROCMExecutionProvider": "rocm0",
    "ACLExecutionProvider": None,
    "ArmNNExecutionProvider": None,
    "DnnlExecutionProvider": None,
    "OpenVINOExecutionProvider": None,
    "XnnpackExecutionProvider": None,
}
"""What a provider computes on where that is not its own alone; None is the cores.

The GPUs and NPUs that OpenVINO's own runtime drives are Intel's, which none of these computes on.
"""

log = logging.getLogger(__name__)

FEWER: Final = (2, 4, 8, 16)
"""Numbers of threads that users set besides all cores; a single thread is what a single core already is."""
ARENA_BYTES: Final = 128 * 2**20
"""Address space of the arena's first block; memory is taken when it is touched."""
DEAD_BYTES: Final = 64 * 1024
"""What a free piece of memory may be larger than a request before it is split."""


class OrtProcessor(HostProcessor):
    """ONNX Runtime with ``len(cores)`` threads, one per core.

    The engine's thread is the first of them, bound to the first core; the runtime's workers are bound to the
    others. A gang that leaves cores to others lets all of them move among its own where they compute a whole network.
    ``provider`` is an execution provider of the installed wheel; with any but the CPU's, falling back
    to the CPU is refused.
    """

    def __init__(self, soc: Soc, cores: frozenset[int], provider: str = CPU, *, frozen: FrozenGraphs) -> None:
        short = "" if provider == CPU else provider.removesuffix("ExecutionProvider").lower()
        device = HARDWARE.get(provider, f"{short}0") if short else None
        compiler = Compiler("onnxruntime", ort.__version__, provider)
        super().__init__(soc, cores, "ort", compiler, short, (device,) if device else ())
        if self.on_cores:
            self.caller_cores, self.worker_cores = frozenset(self.cores[:1]), frozenset(self.cores[1:])
            self.whole_cores = cores if self.worker_cores and cores < set(soc.cores) else frozenset()
        self.provider = provider
        self._frozen = frozen

    @override
    def compile(self, segment: Segment) -> OrtExecutable:
        lights, own = self._frozen.lights, segment.own
        # From a whole network nothing is cut: the runtime may optimise it as it does for its own users.
        frozen = None if not self.on_cores or _is_whole(own) else self._frozen.get(own.model)
        piece = from_source(None, own, lights) if frozen is None else cut(frozen, own, lights)
        # A whole network is run again and again: its workers poll for a while more.
        lingers, moves = segment.lingers or _is_whole(own), _is_whole(segment)
        if not piece.optimise:
            try:
                return self._compiled(segment, piece.named_as(segment), lingers=lingers, moves=moves)
            except CompilationFailed as error:
                log.warning("a cut of the frozen graph was refused and is compiled from the source: %s", error)
                piece = from_source(frozen, own, lights)
        return self._compiled(segment, piece.named_as(segment), lingers=lingers, moves=moves)

    def _compiled(
        self, segment: Segment, piece: Piece, *, lingers: bool = False, moves: bool = False, profile_prefix: str = ""
    ) -> OrtExecutable:
        """A session on this processor's cores, profiled where the beginning of a file's name is given for that.

        Its workers stop spinning when a run ends, so that they never steal time from whoever runs next on these cores,
        unless it ``lingers``. ``moves`` is as for ``options``.
        """
        model = piece.proto.SerializeToString()
        for level in LEVELS if piece.optimise else LEVELS[-1:]:
            own = self.options(level, moves=moves)
            own.add_session_config_entry("session.force_spinning_stop", "0" if lingers else "1")
            own.add_session_config_entry("session.model_external_initializers_file_folder_path", str(piece.weights))
            if profile_prefix:
                own.enable_profiling = True
                own.profile_file_prefix = profile_prefix
            try:
                return OrtExecutable(self, segment, piece, self._opened(model, own))
            except CompilationFailed as error:
                if level == LEVELS[-1]:
                    raise
                log.info("optimising less: %s", error)
        raise AssertionError("there is a last level")

    def _opened(self, model: bytes, own: ort.SessionOptions) -> AnySession:
        if not self.on_cores:
            own.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        try:
            with cancellable(own):
                native = native_session(model, own) if self.on_cores and not own.enable_profiling else None
            if native is not None:
                return native
            session = opened(model, own, self.provider)
        except NotWantedError:
            raise
        except Exception as error:
            raise translated(error, self.id) from error
        if session.get_providers()[0] != self.provider:
            raise SilentFallback(
                f"{self.id}: ONNX Runtime would run this on {session.get_providers()[0]} instead of {self.provider}"
            )
        return session

    def options(self, level: ort.GraphOptimizationLevel, *, moves: bool = False) -> ort.SessionOptions:
        """Options for one thread on each core, the first of which is the caller's.

        Where workers may move (``moves``), they do so among ``whole_cores``, if there are any.

        NOTE: ``session.intra_op_thread_affinities`` counts CPUs from 1 and leaves out the calling thread.
        Workers may spin while a run lasts, which a gang needs between its many short kernels.
        """
        workers = self.cores[1:]
        entries = {"intra_op.allow_spinning": "1" if workers else "0", **SPINS}
        if _shared_arena():
            entries["use_env_allocators"] = "1"
        if workers:
            places = [self.cores if moves and self.whole_cores else (core,) for core in workers]
            entries["intra_op_thread_affinities"] = ";".join(
                ",".join(str(core + 1) for core in place) for place in places
            )
        made = options(len(self.cores), entries, level=level)
        made.inter_op_num_threads = 1
        made.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        return made

    @override
    def conversion(self, kind: TensorType, *, outwards: bool) -> OrtExecutable | None:
        if not self.on_cores or block_size() == 1:
            return None
        if kind.dtype != "float32" or len(kind.shape) != 4 or kind.shape[1] % 4:
            return None
        return self._compiled(whole_network(one_op("Identity", kind)), reordering(kind, outwards=outwards))

    @override
    def reads_native(self, model: Model, tensor: str, ops: tuple[str, ...]) -> bool:
        _, own, name = model.member(tensor)
        frozen = self._frozen.get(own) if self.on_cores else None
        reading = [model.member(op)[2] for op in ops]
        return frozen is not None and frozen.native_blocked(name) and frozen.reads_blocked(name, reading)

    @override
    def block(self, model: Model, tensor: str) -> int:
        _, own, name = model.member(tensor)
        frozen = self._frozen.get(own) if self.on_cores else None
        return block_size() if frozen is not None and frozen.native_blocked(name) else 1

    @override
    def time_ops(self, model: Model, deadline: float) -> Mapping[str, Timing]:
        frozen = self._frozen.get(model) if self.on_cores else None
        if frozen is None:
            return {}
        segment = whole_network(model)
        piece = cut(frozen, segment, self._frozen.lights)
        if piece.optimise:
            return {}
        try:
            with (
                TemporaryFolder("hope-profile-") as folder,  # the runtime can write traces to disk only
                # What is profiled stands for plans' segments, whose workers stay where they are.
                closing(self._compiled(segment, piece, lingers=True, profile_prefix=f"{folder}/ort")) as profiled,
            ):
                time_executable(profiled, deadline, enough_us=LONG_US)
                kernels = kernel_times(profiled.compiled)
        except OSError as error:
            raise translated(error, f"{self.id}, tracing") from error
        return attribute(model, frozen, kernels)


class PlainOrt(OrtProcessor):
    """ONNX Runtime with its own defaults but for the number of threads, which are bound nowhere.

    One more default differs: its workers spin for a shorter time when there is nothing to do.
    """

    def __init__(self, soc: Soc, threads: int | None = None, *, frozen: FrozenGraphs) -> None:
        super().__init__(soc, frozenset(soc.cores), frozen=frozen)
        self.caller_cores, self.worker_cores = frozenset(self.cores), frozenset()
        self._threads = threads or len(soc.cores)
        name = "onnxruntime"
        own = name if threads is None else f"{name}/{threads}"
        update = {"id": own, "runtime": name, "place": f"host/{name}", "threads": self._threads}
        self.spec = self.spec.model_copy(update=update)
        self.place = HostPlace(self.spec.place)

    @override
    def options(self, level: ort.GraphOptimizationLevel, *, moves: bool = False) -> ort.SessionOptions:
        return options(self._threads, SPINS, level=level)


def plain_configurations(soc: Soc, frozen: FrozenGraphs) -> Iterator[partial[PlainOrt]]:
    """What makes each of them on this machine, that with all cores first."""
    yield partial(PlainOrt, soc, frozen=frozen)
    for threads in FEWER:
        if threads < len(soc.cores):
            yield partial(PlainOrt, soc, threads, frozen=frozen)


class OrtExecutable(Executable):
    """One ONNX Runtime session for one segment."""

    processor: OrtProcessor

    def __init__(self, processor: OrtProcessor, segment: Segment, piece: Piece, session: AnySession) -> None:
        super().__init__(processor, segment, session, piece.input_types, piece.output_types)
        self.piece = piece

    @override
    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> OrtCall:
        session, where = self.compiled, self.processor.id
        for buffers, types in ((inputs, self.input_types), (outputs, self.output_types)):
            for name, kind in types.items():
                array = buffers[name]
                if array.shape != kind.shape or str(array.dtype) != kind.dtype or not array.flags.c_contiguous:
                    found = f"numpy {array.dtype}{list(array.shape)}"
                    raise WrongOutput(f"{where}: the buffer for '{name}' is {found}, not {kind} in rows")
        try:
            return OrtCall(self, bindings(session), inputs, outputs)
        except Exception as error:
            raise translated(error, where) from error


def _is_whole(segment: Segment) -> bool:
    """Whether a segment is the whole network, with a border that is plain everywhere."""
    graph = segment.model.graph
    inputs, outputs = set(segment.inputs), set(segment.outputs)
    plain = segment.imports == inputs and segment.exports == outputs
    return plain and outputs == set(graph.outputs) and inputs <= set(graph.inputs)


class OrtCall(BoundCall):
    """A launch with its buffers; errors are translated only when they happen."""

    def __init__(
        self,
        executable: OrtExecutable,
        binding: NativeBinding | PythonBinding,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        self._executable = executable
        self._binding = binding
        for name in executable.piece.inputs:
            self.rebind(name, inputs[name])
        for name, carrier in executable.piece.outputs.items():
            binding.bind("BindOutput", carrier, outputs[name])
        self._run = binding.run
        self.native = binding.native

    @override
    def rebind(self, name: str, buffer: np.ndarray) -> None:
        carrier = self._executable.piece.inputs.get(name)
        if carrier is not None:  # an input that is not needed, or equals another, has none
            self._binding.bind("BindInput", carrier, buffer)

    @override
    def __call__(self) -> None:
        try:
            self._run()
        except Exception as error:
            raise lost(error, self._executable) from error

    @override
    def failure(self, place: int, status: int) -> ProcessorError:
        assert isinstance(self._binding, NativeBinding)
        return lost(self._binding.error(status), self._executable)


def lost(error: Exception, executable: OrtExecutable) -> ProcessorError:
    """What a failed run means: out of memory, a wrong shape, or a processor that is gone."""
    where, text = executable.where, first_line(error)
    if fault := machines_fault(error, where, text):
        return fault
    if "computed output shape" in str(error) or ("shape" in text.lower() and "mismatch" in text.lower()):
        return WrongOutput(f"{where}: the runtime returned another shape than the graph declares: {text}")
    return ProcessorLost(f"{where}: ONNX Runtime failed while running: {text}")


def translated(error: Exception, where: str) -> ProcessorError:
    """What a refused session means."""
    text = first_line(error)
    if fault := machines_fault(error, where, text):
        return fault
    if "disable_cpu_ep_fallback" in text or "fallback" in text.lower():
        return SilentFallback(f"{where}: {text}")
    unsupported = ("NOT_IMPLEMENTED", "not a registered function/op", "Could not find an implementation")
    if any(mark in text for mark in unsupported):
        return UnsupportedOp(f"{where}: ONNX Runtime {ort.__version__} does not implement this: {text}")
    return CompilationFailed(f"{where}: ONNX Runtime refused the segment: {text}")


@cache
def _shared_arena() -> bool:
    """Have all sessions of the process take their scratch memory from one arena; False where the wheel cannot.

    A segment then works on memory that the one before has just warmed up, and scratch memory is held once, not
    once per segment: in few large blocks, each twice the one before, not in a block of its own for each request that
    did not fit.
    NOTE: the runtime keeps this per process, so it is registered once.
    """
    place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    sizes = {"initial_chunk_size_bytes": ARENA_BYTES, "max_dead_bytes_per_chunk": DEAD_BYTES}
    try:
        ort.create_and_register_allocator(place, ort.OrtArenaCfg({"arena_extend_strategy": 0, **sizes}))
    except Exception as error:  # noqa: BLE001  the runtime raises its own unrelated classes; each session copes alone
        log.info("every session keeps an arena of its own: %s", error)
        return False
    return True


def installed_providers() -> tuple[str, ...]:
    """Execution providers of the installed wheel besides the CPU's."""
    return tuple(name for name in ort.get_available_providers() if name not in NO_ACCELERATORS)
