"""Buffers of processors that compute in host memory: plain NumPy arrays, shared by all of them without a copy."""

# ruff: noqa: D102  what the overridden methods promise stands in base.py

from __future__ import annotations

import numpy as np

from agent_sdk.runtimes.base import OutOfMemory, Processor, UnsupportedOp
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


class HostMemoryProcessor(Processor):
    """A processor whose buffers are NumPy arrays in host memory."""

    def allocate(self, kind: TensorType) -> np.ndarray:
        return aligned_empty(kind)

    def view(self, buffer: np.ndarray, kind: TensorType) -> np.ndarray:
        return buffer.reshape(-1).view(np.uint8)[: kind.bytes].view(numpy_dtype(kind)).reshape(kind.shape)

    def from_host(self, array: np.ndarray, into: np.ndarray | None = None) -> np.ndarray:
        if into is None:
            return np.ascontiguousarray(array).reshape(array.shape)
        np.copyto(into, array, casting="no")
        return into

    def to_host(self, buffer: np.ndarray) -> np.ndarray:
        return buffer

    def shares_memory(self, other: Processor) -> bool:
        return isinstance(other, HostMemoryProcessor)
