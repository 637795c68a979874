"""What the engine and the profiler know of a runtime: one small interface, a folder per runtime behind it.

Layouts. A tensor has one *plain* layout (row-major, the source graph's shape) that every runtime can read.
Inside one *place* (e.g. ONNX Runtime on one core and on all cores) a tensor may also travel in the runtime's own
*native* layout (say NCHWc blocks): the pointer is handed over and nobody converts. Which form a tensor takes is a
property of the program, agreed by writer and readers:

* a segment lists it in ``exports`` or ``imports``: it leaves or arrives plain;
* it does not: native.

A tensor that is read in another form than it was made in is changed once, by ``Processor.conversion``, and stands in
both from then on. Graph inputs and outputs are plain.

Memory. A :class:`Place` is a memory in which tensors stand; buffers are opaque to all but their place. The engine
allocates memory there, looks at it as the physical types in ``Executable.output_types``, one tensor after the other,
binds these buffers once (``Executable.bind``) and reuses them for later runs. Places of one memory (``host/ort``,
``host/ov``) use each other's buffers as they are; between memories tensors are copied.

Errors are ``agent_sdk.errors.ProcessorError``; messages name the processor, the cause and the cure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from agent_sdk.errors import ProcessorError, ProcessorLost, UnsupportedOp
from agent_sdk.machine.timing import Timing
from agent_sdk.model import Model
from agent_sdk.runtimes.trust import Trust
from agent_sdk.tensors import TorchTensor
from hope_schema import ModelGraph, Op, SuperOp, TensorType
from hope_schema import Processor as ProcessorSpec

Package: TypeAlias = Literal["onnxruntime", "openvino"]
PACKAGES: Final[Mapping[Package, str]] = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
"""What compiles networks and can run a whole one by itself, and what people call it."""


class Compiler(NamedTuple):
    """What makes code of a network.

    Attributes:
        runtime: the package, as its users call it.
        target: for what it compiles: an execution provider, a device.
    """

    runtime: Package
    version: str
    target: str


Buffer: TypeAlias = Any
"""Memory of one tensor on one processor; only the processor that made it looks inside."""


class Timed(NamedTuple):
    """When a plan starts and finishes a step, microseconds, and what its ops take with nobody beside them, if known.

    ``recipe`` is the kernel by which they are computed; None: the processor's own choice.
    """

    ops: tuple[str, ...]
    start_us: float
    finish_us: float
    alone_us: float | None = None
    recipe: int | None = None


@dataclass(frozen=True)
class Segment:
    """A run of source ops that one processor compiles and launches as one unit.

    ``ops`` are source op ids in a topological order. ``inputs`` are the activation tensors read from outside
    (graph inputs included), ``outputs`` the tensors somebody outside reads (graph outputs included).
    ``imports`` are the inputs that arrive, and ``exports`` the outputs that leave, in the plain layout.
    ``times`` says when the plan has each step; a processor that runs several ops at once overlaps them accordingly.
    Empty: one after the other.
    With ``lingers`` the runtime's workers stay awake from run to run, as they do between the ops of a longer segment:
    for timing what is to be a part of one.

    For a memory that is far away: ``resident`` are the inputs that stand there already, because a segment that ends
    before this one begins made them there or brought them along, or because they were sent ahead; ``stays`` the inputs
    and outputs that this one leaves there for others; ``inside`` the outputs that are read nowhere else; ``halved`` the
    inputs and outputs that stand there in float16, because they cross the way there so.
    """

    model: Model
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    exports: frozenset[str]
    imports: frozenset[str]
    times: tuple[Timed, ...] = ()
    lingers: bool = False
    resident: frozenset[str] = frozenset()
    stays: frozenset[str] = frozenset()
    inside: frozenset[str] = frozenset()
    halved: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.ops or not self.outputs:
            raise ValueError("a segment has at least one op and one output")
        if not self.exports <= set(self.outputs) or not self.imports <= set(self.inputs):
            raise ValueError("a segment exports only its outputs and imports only its inputs")

    @cached_property
    def own(self) -> Segment:
        """The same of the one network that its ops come from, under the names that it has there."""
        _, model, _ = self.model.member(self.ops[0])
        if model is self.model:
            return self

        def bare(names: Iterable[str]) -> tuple[str, ...]:
            return tuple(self.model.member(name)[2] for name in names)

        return Segment(
            model,
            bare(self.ops),
            bare(self.inputs),
            bare(self.outputs),
            frozenset(bare(self.exports)),
            frozenset(bare(self.imports)),
            lingers=self.lingers,
            halved=frozenset(bare(self.halved)),
        )

    @classmethod
    def plain(cls, model: Model, ops: Iterable[Op], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Segment:
        """With every boundary tensor in the plain layout."""
        return cls(model, tuple(op.id for op in ops), inputs, outputs, frozenset(outputs), frozenset(inputs))


def segment_of(super_op: SuperOp, model: Model) -> Segment:
    return Segment.plain(model, super_op.ops, super_op.inputs, super_op.outputs)


def whole_network(model: Model) -> Segment:
    graph = model.graph
    return Segment.plain(model, graph.topological_ops, graph.inputs, graph.outputs)


@dataclass(frozen=True)
class NativeCall:
    """A call of a C function, to be made without the interpreter.

    ``returns_pointer`` says what it returns: a pointer, NULL when all is well, or an ``int``, 0 when all is well.
    ``arguments`` are at most five integers or addresses; whoever offers the call keeps alive what they point to.
    ``again``, where it is not 0, is what an ``int`` says that has to be asked again, because a device is not yet done.
    ``after``, where it is not 0, is how many calls before it stands what it ends: once that went well it is made, also
    where a call between the two fails.
    """

    function: int
    arguments: tuple[int, ...]
    returns_pointer: bool = False
    again: int = 0
    after: int = 0


class Place(ABC):
    """A memory in which tensors stand, in a layout of its own beside the plain one.

    Attributes:
        name: e.g. ``host/ort``, ``cuda:0``; up to its first slash, the memory.
        divisible: whether a part of a tensor there is a tensor where it stands.
        keeps: of another host's memory, whether what was brought there stays for later segments, also sent ahead.
    """

    divisible: bool = True
    keeps: bool = True

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def memory(self) -> str:
        return self.name.partition("/")[0]

    @abstractmethod
    def allocate(self, kind: TensorType) -> Buffer:
        """Make an uninitialised buffer of a physical type. Raises OutOfMemory."""

    @abstractmethod
    def view(self, buffer: Buffer, kind: TensorType, offset: int = 0) -> Buffer:
        """The memory of an allocated buffer, from a byte on, as a physical type that needs no more of it."""

    @abstractmethod
    def from_host(self, array: np.ndarray, into: Buffer | None = None) -> Buffer:
        """Bring a plain host array here. With ``into`` it is copied there, else it may share the array's memory."""

    @abstractmethod
    def to_host(self, buffer: Buffer) -> np.ndarray:
        """The plain tensor in ``buffer`` as a host array; may be a view that the next run overwrites."""

    def take(self, given: TorchTensor, into: Buffer) -> bool:
        """Copy a tensor of the application's into a buffer here, where both stand in one memory; False where not."""
        return False

    def hand_out(self, name: str, buffer: Buffer, like: TorchTensor) -> TorchTensor:
        """A copy of the plain tensor ``name`` where it stands, beside one that was taken from there; see ``settle``."""
        raise NotImplementedError

    def settle(self, like: TorchTensor) -> None:
        """Return when all that was handed out beside a tensor is there: until then its buffers are read."""
        raise NotImplementedError

    def bring(self, buffer: Buffer, source: Place, into: Buffer) -> Buffer:
        """Copy a plain tensor from another place into a buffer here; it is there when this returns."""
        return self.from_host(source.to_host(buffer), into)

    def host_array(self, kind: TensorType) -> np.ndarray | None:
        """Make an uninitialised array on the host that ``copy_in`` and ``copy_out`` can use; None: there are neither.

        Raises OutOfMemory.
        """
        return None

    def copy_in(self, array: np.ndarray, into: Buffer) -> Bound | None:
        """What copies a plain array of ``host_array`` here by this place's own device; None where it cannot."""
        return None

    def copy_out(self, buffer: Buffer, array: np.ndarray) -> Bound | None:
        """The same the other way round."""
        return None


class Bound(ABC):
    """Something to be done with certain buffers, which it holds on to; it may be called any number of times.

    It returns when what it makes is there for anybody to read. An asynchronous runtime waits for its own queue at the
    end: where a segment ends another processor reads, or the clock is read.

    Attributes:
        native: the same as C calls, one after the other; empty where only Python can make it.
        launched: after how many of these a device of its own computes, so that the thread may do something else; 0
            where that is no more until all of them are made.
    """

    native: Sequence[NativeCall] = ()
    launched: int = 0

    @abstractmethod
    def __call__(self) -> None:
        """Do it. Raises ProcessorLost, WrongOutput or OutOfMemory."""

    def failure(self, place: int, status: int) -> ProcessorError:
        """What it means that the native call in this place returned ``status``; frees what that points to."""
        raise NotImplementedError


class BoundCall(Bound):
    """A launch of a compiled segment. Its native calls stay right when inputs are bound anew.

    Attributes:
        looked: of the floats that the network takes and gives, the tensors that it looks at where they stand.
        odd: whether they were not ordinary when it was last made.
        computed: when another host computed it last, by this machine's clock, seconds; None where none did or said so.
    """

    looked: frozenset[str] = frozenset()
    computed: tuple[float, float] | None = None

    @property
    def odd(self) -> bool:
        return False

    def come_before(self, like: TorchTensor) -> None:
        """Have what is asked of a tensor's stream from now on come behind what was launched."""
        raise NotImplementedError

    @abstractmethod
    def rebind(self, name: str, buffer: Buffer) -> None:
        """Read the input ``name`` from another buffer of the same type from now on."""


class Executable(ABC):
    """A compiled segment. It runs on its processor's thread, one call at a time.

    Args:
        compiled: what the runtime made of it, which is let go of when this is closed.
        input_types: the *physical* shapes and element types of its buffers; for a native tensor they may differ from
            the graph's (blocked and padded channels), which they are by default.
        output_types: the same of what it writes.
    """

    def __init__(
        self,
        processor: Processor,
        segment: Segment,
        compiled: Any,
        input_types: Mapping[str, TensorType] | None = None,
        output_types: Mapping[str, TensorType] | None = None,
    ) -> None:
        tensor = segment.model.graph.tensor
        self.processor, self.segment, self._compiled = processor, segment, compiled
        self.input_types = input_types or {name: tensor[name].type for name in segment.inputs}
        self.output_types = output_types or {name: tensor[name].type for name in segment.outputs}

    @property
    def compiled(self) -> Any:
        """What the runtime made of the segment. Raises ProcessorLost once it was closed."""
        if self._compiled is None:
            raise ProcessorLost(f"{self.processor.id}: the segment was closed")
        return self._compiled

    @property
    def where(self) -> str:
        """What an error message of a run begins with."""
        return f"{self.processor.id}, segment ending in '{self.segment.ops[-1]}'"

    @abstractmethod
    def bind(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> BoundCall:
        """Prepare a call that reads ``inputs`` and writes ``outputs``.

        Both mappings cover the segment's inputs and outputs, in the layouts that the segment declares. Raises
        ProcessorError where the runtime refuses a buffer.
        """

    def ahead(self, name: str, source: Buffer, target: Buffer) -> Bound:
        """What sends the input ``name`` to another host before the segment's turn, so that it is resident there.

        ``source`` and ``target`` are where it stands on this machine, before and afterwards.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Free the compiled segment. Calls bound before must not be made any more. Idempotent."""
        self._compiled = None


class Processor(ABC):
    """A runtime on a set of hardware resources.

    ``spec`` says which; its ``kind`` is what latencies are keyed by. The engine runs a processor's segments on
    one thread bound to ``caller_cores``; ``compile`` may be called from any thread. ``place`` is where it computes from
    and to.
    """

    spec: ProcessorSpec
    place: Place
    caller_cores: frozenset[int]
    """The CPUs that the thread which runs its segments is bound to."""
    worker_cores: frozenset[int] = frozenset()
    """Those that other threads of its own are bound to."""
    whole_cores: frozenset[int] = frozenset()
    """Those among which all of these may move while they compute a whole network in one segment; none: they stay."""
    at_once: int = 1
    """How many segments its resources compute at once, each of which holds a part of them."""
    joins: bool = False
    """Whether it computes several networks as one segment, side by side as their plan has them."""
    on_caller_thread: bool = False
    """Whether segments compute on the calling thread alone."""
    reentrant: bool = True
    """Whether one compiled segment computes several runs at once, where these have buffers of their own."""
    compiler: Compiler | None = None
    """What compiles for it; None where kernels are called that stand ready."""
    trusted: Trust | None = None
    """Which ops it is trusted with; None for the reference itself."""

    @property
    def id(self) -> str:
        """The processor's name on this device, e.g. ``ort@0-1``."""
        return self.spec.id

    @abstractmethod
    def compile(self, segment: Segment) -> Executable:
        """Compile a segment.

        Raises UnsupportedOp, SilentFallback, OutOfMemory, ProcessorLost or CompilationFailed.
        """

    def refuse_untrusted(self, ops: Iterable[Op], graph: ModelGraph) -> None:
        """Raise UnsupportedOp where one of these ops is none that it is trusted with."""
        refused = self.trusted.refusals(ops, graph) if self.trusted else {}
        for op, why in refused.items():
            raise UnsupportedOp(f"{self.id} is not trusted with op '{op}' ({graph.op[op].type}): {why}")

    hands_over_native: bool = True
    """Whether segments inside the layout family hand native tensors to each other; False where borders are plain."""

    def block(self, model: Model, tensor: str) -> int:
        """How many of a tensor's channels stand together where its segments hand it to each other; 1 is plain."""
        return 1

    def reads_native(self, model: Model, tensor: str, ops: tuple[str, ...]) -> bool:
        """Whether some of these ops read a tensor that was made elsewhere in the native layout."""
        return False

    conversion_differs: bool = True
    """Whether the two directions of ``conversion`` cost differently, so that both are worth timing."""

    def conversion(self, kind: TensorType, *, outwards: bool) -> Executable | None:
        """What changes one tensor of this type, ``x``, from native to plain (``outwards``) or back, into ``y``.

        Where segments change layouts inside themselves it stands for what that takes. None where they read and write
        the plain layout at no extra cost.
        """
        return None

    def time_ops(self, model: Model, deadline: float) -> Mapping[str, Timing]:
        """Latencies by super-op id within whole-network runs under the runtime's own profiler, which slows them down.

        Ends soon after ``deadline`` (``time.monotonic``). Super-ops it cannot tell apart from others are absent;
        empty where the runtime has no profiler. Raises like ``compile``.
        """
        return {}

    times_one_by_one: bool = False
    """Whether ``time_ops`` takes one super-op after the other, and never the whole network."""
    copy_engines: tuple[str, str] | None = None
    """What carries tensors to its memory, and from there, while ops run; None: they are the readers' business."""
    details: str = ""
    """What an accelerator says of itself, for people: its name, memory, multiprocessors; empty for cores."""
    slowdown: float = 1.0
    """By how much an op takes longer, at least 1, where others fill what it leaves of its resources."""

    def share(self, signature: str) -> float:
        """The part of each of its resources that an op of this signature takes while it runs; all, unless measured."""
        return 1.0

    def recipes(self, signature: str) -> Mapping[int, float]:
        """Further kernels for an op of this signature that leave more room beside them, and how many times as long as
        the one of its own choice each takes; their shares are told under ``by_recipe``.
        """
        return {}

    @abstractmethod
    def close(self) -> None:
        """Free everything that belongs to the processor. Its executables must be closed before."""
