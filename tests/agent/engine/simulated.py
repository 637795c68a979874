"""A processor that stands in for another runtime: memory of its own, transfers that really copy, faults on demand."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from agent_sdk.model import extract
from agent_sdk.runtimes.base import BoundCall, Executable, Place, Processor, Segment
from hope_schema import Processor as Spec
from hope_schema import TensorType

Hook = Callable[[Segment], None]


@dataclass(eq=False)
class Box:
    """A buffer that only its own processor can look into."""

    owner: SimulatedProcessor
    array: np.ndarray


@dataclass(frozen=True)
class Interval:
    """When a processor was at work."""

    processor: str
    start: float
    end: float


class SimulatedPlace(Place):
    """A memory that nobody but its processor sees."""

    def __init__(self, owner: SimulatedProcessor) -> None:
        super().__init__(owner.spec.place)
        self.owner = owner

    def allocate(self, kind: TensorType) -> Box:
        """A box full of NaN, whatever it is viewed as: whoever reads what nobody wrote is found out."""
        array = np.empty(kind.shape, kind.dtype)
        array.reshape(-1).view(np.uint8).fill(0xFF)
        return Box(self.owner, array)

    def view(self, buffer: Box, kind: TensorType, offset: int = 0) -> Box:
        """Another box around the same memory."""
        assert buffer.owner is self.owner
        memory = buffer.array.reshape(-1).view(np.uint8)[offset : offset + kind.bytes]
        return Box(self.owner, memory.view(kind.dtype).reshape(kind.shape))

    def from_host(self, array: np.ndarray, into: Box | None = None) -> Box:
        """Copy, always."""
        if into is None:
            return Box(self.owner, array.copy())
        assert into.owner is self.owner
        np.copyto(into.array, array, casting="no")
        return into

    def to_host(self, buffer: Box) -> np.ndarray:
        """The inside of one of its own boxes."""
        assert buffer.owner is self.owner, "another processor's memory was handed over without a transfer"
        return buffer.array

    def bring(self, buffer: Box, source: Place, into: Box) -> Box:
        """Count and copy."""
        self.owner.transfers += 1
        return super().bring(buffer, source, into)


class SimulatedProcessor(Processor):
    """Computes with a private ONNX Runtime session; its buffers are boxes that nobody else may open.

    ``hook`` is called inside every segment and may raise or block. ``log`` collects when it computed.
    """

    caller_cores = frozenset[int]()
    on_caller_thread = True

    def __init__(self, name: str, resources: tuple[str, ...], hook: Hook | None = None) -> None:
        self.spec = Spec(
            id=name,
            runtime="sim",
            version="1",
            threads=1,
            core_class="core",
            resources=resources,
            place=name,
            host="host",
        )
        self.hook = hook
        self.log: list[Interval] = []
        self.closed = False
        self.open_executables = 0
        self.transfers = 0
        self.place = SimulatedPlace(self)

    def compile(self, segment: Segment) -> SimulatedExecutable:
        """A private session."""
        return SimulatedExecutable(self, segment)

    def close(self) -> None:
        """Note it."""
        assert self.open_executables == 0, "closed before its executables"
        self.closed = True


class SimulatedExecutable(Executable):
    """A session, and the processor's hook around it."""

    processor: SimulatedProcessor

    def __init__(self, processor: SimulatedProcessor, segment: Segment) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        piece = extract(segment.model, segment.ops, segment.inputs, segment.outputs)
        session = ort.InferenceSession(piece.SerializeToString(), options, providers=["CPUExecutionProvider"])
        super().__init__(processor, segment, session)
        processor.open_executables += 1

    def bind(self, inputs: Mapping[str, Box], outputs: Mapping[str, Box]) -> SimulatedCall:
        """Read the boxes, compute, write the boxes."""
        assert set(inputs) == set(self.segment.inputs)
        assert set(outputs) == set(self.segment.outputs)
        return SimulatedCall(self, self.compiled, dict(inputs), outputs)

    def close(self) -> None:
        """Note it once."""
        if self._compiled is not None:
            self.processor.open_executables -= 1
        super().close()


@dataclass
class SimulatedCall(BoundCall):
    """Boxes, and the session that reads and writes what is in them."""

    executable: SimulatedExecutable
    session: ort.InferenceSession
    inputs: dict[str, Box]
    outputs: Mapping[str, Box]

    def rebind(self, name: str, buffer: Box) -> None:
        """Another box."""
        self.inputs[name] = buffer

    def __call__(self) -> None:
        """Compute, and note when."""
        here, segment = self.executable.processor, self.executable.segment
        start = time.perf_counter()
        try:
            if here.hook is not None:
                here.hook(segment)
            results = self.session.run(
                list(segment.outputs), {name: here.place.to_host(box) for name, box in self.inputs.items()}
            )
            for name, result in zip(segment.outputs, results, strict=True):
                assert self.outputs[name].owner is here
                np.copyto(self.outputs[name].array, result, casting="no")
        finally:
            here.log.append(Interval(here.id, start, time.perf_counter()))


def four_processors() -> list[SimulatedProcessor]:
    """Two cores, their gang, and an accelerator."""
    return [
        SimulatedProcessor("a", ("x",)),
        SimulatedProcessor("b", ("y",)),
        SimulatedProcessor("ab", ("x", "y")),
        SimulatedProcessor("c", ("z",)),
    ]
