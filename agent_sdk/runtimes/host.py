"""Host memory: plain NumPy arrays, and the processors that compute from and to it without a copy."""

import numpy as np
from typing_extensions import override

from agent_sdk.errors import OutOfMemory, UnsupportedOp
from agent_sdk.machine.cores import name_cores
from agent_sdk.machine.soc import Soc
from agent_sdk.model.dtypes import FOREIGN
from agent_sdk.native import address, library
from agent_sdk.runtimes.base import Compiler, NativeCall, Place, Processor
from hope_schema import Processor as ProcessorSpec
from hope_schema import TensorType

ALIGNMENT = 64
"""Bytes; a cache line, and what vector kernels of every CPU runtime like best."""


def numpy_dtype(kind: TensorType) -> np.dtype:
    """The NumPy type of a tensor's elements. Raises UnsupportedOp where NumPy has none of its own."""
    if kind.dtype in FOREIGN:
        raise UnsupportedOp(f"tensors of type {kind.dtype} cannot be handed between segments on a CPU")
    return np.dtype(kind.dtype)


def aligned_empty(kind: TensorType) -> np.ndarray:
    """An uninitialised, C-contiguous array whose data start on a cache line. Raises OutOfMemory."""
    dtype = numpy_dtype(kind)
    size = kind.elements * dtype.itemsize
    try:
        raw = np.empty(size + ALIGNMENT, np.uint8)
    except MemoryError:
        raise OutOfMemory(f"no memory for a tensor {kind} of {size} bytes") from None
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(kind.shape)


MARK = bytes.fromhex("a5c35ef1a73de9ff")
"""What no kernel writes at the end of an output: its last bytes are no number in any floating-point type."""


class OutputMark:
    """A mark at the end of an output, to see whether a runtime that says that all went well has written anything."""

    def __init__(self, array: np.ndarray) -> None:
        size = min(len(MARK), array.nbytes)
        self._mark = MARK[len(MARK) - size :]
        self._end = array.reshape(-1).view(np.uint8)[array.nbytes - size :]
        self.telling = size == len(MARK) or (size > 0 and array.dtype.kind in "fb")
        """Whether it cannot be a result: small integers can be anything."""

    def place(self) -> None:
        self._end[:] = np.frombuffer(self._mark, np.uint8)

    def is_there(self) -> bool:
        return bytes(self._end) == self._mark

    def native(self, function: str) -> NativeCall:
        """The same for native lanes: ``hope_mark`` or ``hope_marked``."""
        lanes = library()
        assert lanes is not None
        return NativeCall(address(getattr(lanes, function)), (self._end.ctypes.data, len(self._mark)))


class HostPlace(Place):
    """Plain NumPy arrays in host memory."""

    @override
    def allocate(self, kind: TensorType) -> np.ndarray:
        return aligned_empty(kind)

    @override
    def view(self, buffer: np.ndarray, kind: TensorType, offset: int = 0) -> np.ndarray:
        memory = buffer.reshape(-1).view(np.uint8)[offset : offset + kind.bytes]
        return memory.view(numpy_dtype(kind)).reshape(kind.shape)

    @override
    def from_host(self, array: np.ndarray, into: np.ndarray | None = None) -> np.ndarray:
        if into is None:
            return np.ascontiguousarray(array).reshape(array.shape)
        np.copyto(into, array, casting="no")
        return into

    @override
    def to_host(self, buffer: np.ndarray) -> np.ndarray:
        return buffer


class HostProcessor(Processor):
    """A runtime on some cores, one thread on each, or on an accelerator that it copies to and from by itself.

    Args:
        runtime: as the ids of its processors on cores begin.
        accelerator: what it computes on instead, in a word; empty for the cores.
        resources: what it keeps busy where that is not the cores.
    """

    def __init__(
        self,
        soc: Soc,
        cores: frozenset[int],
        runtime: str,
        compiler: Compiler,
        accelerator: str = "",
        resources: tuple[str, ...] = (),
    ) -> None:
        self.cores = tuple(sorted(cores))
        self.caller_cores = frozenset(cores)
        self.on_cores = not accelerator
        self.on_caller_thread = self.on_cores and len(cores) == 1
        name = runtime if self.on_cores else f"{runtime}-{accelerator}"
        self.spec = ProcessorSpec(
            id=f"{name}@{name_cores(self.cores) if self.on_cores else 0}",
            runtime=name,
            version=compiler.version,
            threads=len(self.cores),
            core_class=accelerator or soc.class_of(cores),
            place=f"host/{name}",
            resources=resources or tuple(f"cpu{core}" for core in self.cores),
        )
        self.place = HostPlace(self.spec.place)
        self.compiler = compiler

    def close(self) -> None:
        """Nothing is held beyond the executables."""
