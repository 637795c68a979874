"""Plain tensors in a device's memory: row-major, in the types that the graph states, with a pinned copy on the host."""

from __future__ import annotations

import numpy as np
import torch

from agent_sdk.runtimes import UnsupportedOp
from hope_schema import TensorType

FOREIGN = frozenset({"bfloat16", "int4", "uint4"})
"""Types that NumPy, through which everything comes and goes, has none of."""


class DeviceTensor:
    """Memory of one tensor. ``tensor`` is what kernels see, ``staging`` pinned host memory of the same size."""

    __slots__ = ("_staging", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._staging: torch.Tensor | None = None

    @property
    def staging(self) -> torch.Tensor:
        """Host memory that the device copies from and to by itself; made when first needed."""
        if self._staging is None:
            pinned = self.tensor.device.type == "cuda"
            self._staging = torch.empty(self.tensor.shape, dtype=self.tensor.dtype, pin_memory=pinned)
        return self._staging

    def viewed(self, kind: TensorType) -> DeviceTensor:
        """Its memory, or the beginning of it, as another type."""
        flat = self.tensor.reshape(-1).view(torch.uint8)[: kind.bytes]
        return DeviceTensor(flat.view(torch_dtype(kind)).reshape(kind.shape))


def torch_dtype(kind: TensorType) -> torch.dtype:
    """The torch type of a tensor's elements. Raises UnsupportedOp where it cannot come from or go to the host."""
    if kind.dtype in FOREIGN:
        raise UnsupportedOp(f"tensors of type {kind.dtype} cannot be handed to or from torch")
    found = getattr(torch, kind.dtype)
    assert isinstance(found, torch.dtype)
    return found


def empty(kind: TensorType, device: torch.device) -> DeviceTensor:
    """Uninitialised memory for a tensor. Raises what torch raises where there is none."""
    return DeviceTensor(torch.empty(kind.shape, dtype=torch_dtype(kind), device=device))


def copied_in(array: np.ndarray, into: DeviceTensor) -> None:
    """Copy a host array to the device; it may still be under way, on the current stream, when this returns."""
    source = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    if into.tensor.device.type == "cpu":
        into.tensor.copy_(source)
        return
    into.staging.copy_(source)
    into.tensor.copy_(into.staging, non_blocking=True)
