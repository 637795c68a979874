"""Host memory: plain NumPy arrays, used by all processors that compute there without a copy."""

# ruff: noqa: D102  what the overridden methods promise stands in base.py

from __future__ import annotations

import numpy as np

from agent_sdk.native import address, library
from agent_sdk.runtimes.base import NativeCall, OutOfMemory, Place, UnsupportedOp
from hope_schema import TensorType

ALIGNMENT = 64
"""Bytes; a cache line, and what vector kernels of every CPU runtime like best."""
FOREIGN = frozenset({"bfloat16", "int4", "uint4"})
"""NumPy types only where another package registers them: ONNX Runtime refuses these, and 4 bits take a byte in them."""


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
        """Write it."""
        self._end[:] = np.frombuffer(self._mark, np.uint8)

    def is_there(self) -> bool:
        """Whether nothing was written over it."""
        return bytes(self._end) == self._mark

    def native(self, function: str) -> NativeCall:
        """The same for native lanes: ``hope_mark`` or ``hope_marked``."""
        lanes = library()
        assert lanes is not None
        return NativeCall(address(getattr(lanes, function)), (self._end.ctypes.data, len(self._mark)))


class HostPlace(Place):
    """Plain NumPy arrays in host memory."""

    def allocate(self, kind: TensorType) -> np.ndarray:
        return aligned_empty(kind)

    def view(self, buffer: np.ndarray, kind: TensorType, offset: int = 0) -> np.ndarray:
        memory = buffer.reshape(-1).view(np.uint8)[offset : offset + kind.bytes]
        return memory.view(numpy_dtype(kind)).reshape(kind.shape)

    def from_host(self, array: np.ndarray, into: np.ndarray | None = None) -> np.ndarray:
        if into is None:
            return np.ascontiguousarray(array).reshape(array.shape)
        np.copyto(into, array, casting="no")
        return into

    def to_host(self, buffer: np.ndarray) -> np.ndarray:
        return buffer
