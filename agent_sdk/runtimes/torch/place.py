"""The memory of a device of its own."""

# ruff: noqa: D102  what the overridden methods promise stands in base.py

from __future__ import annotations

import numpy as np
import torch

from agent_sdk.runtimes import ProcessorLost
from agent_sdk.runtimes.base import Place
from agent_sdk.runtimes.torch.kernel import translated
from agent_sdk.runtimes.torch.memory import DeviceTensor, copy_queue, empty
from hope_schema import TensorType


class DevicePlace(Place):
    """Tensors come and go on the device's copy queue. Raises ProcessorLost and OutOfMemory."""

    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__(name)
        self._device = device

    def allocate(self, kind: TensorType) -> DeviceTensor:
        try:
            return empty(kind, self._device)
        except RuntimeError as error:
            raise translated(error, f"{self.name}, a tensor {kind}", ProcessorLost) from error

    def view(self, buffer: DeviceTensor, kind: TensorType, offset: int = 0) -> DeviceTensor:
        return buffer.viewed(kind, offset)

    def from_host(self, array: np.ndarray, into: DeviceTensor | None = None) -> DeviceTensor:
        try:
            if into is None:
                kind = TensorType(shape=array.shape, dtype=str(array.dtype))  # type: ignore[arg-type]
                into = empty(kind, self._device)
            copy_queue(self._device).copy_in(array, into)
        except RuntimeError as error:
            raise translated(error, f"{self.name}, copying from the host", ProcessorLost) from error
        return into

    def to_host(self, buffer: DeviceTensor) -> np.ndarray:
        try:
            return copy_queue(self._device).copy_out(buffer)
        except RuntimeError as error:
            raise translated(error, f"{self.name}, copying to the host", ProcessorLost) from error
