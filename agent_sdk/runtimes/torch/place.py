"""The memory of a device of its own, from and to which its copy engines carry tensors."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from typing_extensions import override

from agent_sdk.errors import ProcessorLost
from agent_sdk.runtimes.base import Bound, Place
from agent_sdk.runtimes.torch.cuda import CudaCalls, cuda_of
from agent_sdk.runtimes.torch.kernel import translated
from agent_sdk.runtimes.torch.memory import DeviceTensor, copy_queue, empty, torch_dtype
from agent_sdk.tensors import TorchTensor
from hope_schema import TensorType


class DevicePlace(Place):
    """Tensors come and go on the device's copy queue. Raises ProcessorLost and OutOfMemory."""

    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__(name)
        self._device = device

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Raise what torch's errors mean."""
        try:
            yield
        except RuntimeError as error:
            raise translated(error, f"{self.name}, {what}", ProcessorLost) from error

    @override
    def allocate(self, kind: TensorType) -> DeviceTensor:
        with self._doing(f"a tensor {kind}"):
            return empty(kind, self._device)

    @override
    def view(self, buffer: DeviceTensor, kind: TensorType, offset: int = 0) -> DeviceTensor:
        return buffer.viewed(kind, offset)

    @override
    def from_host(self, array: np.ndarray, into: DeviceTensor | None = None) -> DeviceTensor:
        with self._doing("copying from the host"):
            if into is None:
                kind = TensorType.model_validate({"shape": array.shape, "dtype": str(array.dtype)})
                into = empty(kind, self._device)
            copy_queue(self._device).copy_in(array, into)
            return into

    @override
    def to_host(self, buffer: DeviceTensor) -> np.ndarray:
        with self._doing("copying to the host"):
            return copy_queue(self._device).copy_out(buffer)

    @override
    def take(self, given: TorchTensor, into: DeviceTensor) -> bool:
        if given.tensor.device != self._device:
            return False
        with self._doing(f"copying '{given.name}'"):
            copy_queue(self._device).take(given, into)
            return True

    @override
    def hand_out(self, name: str, buffer: DeviceTensor, like: TorchTensor) -> TorchTensor:
        with self._doing(f"copying '{name}'"), like.behind():
            return like.like(name, buffer.tensor.clone())

    @override
    def settle(self, like: TorchTensor) -> None:
        with self._doing("copying outputs"):
            if like.stream is not None:
                like.stream.synchronize()

    @override
    def host_array(self, kind: TensorType) -> np.ndarray | None:
        if self._device.type != "cuda":
            return None
        with self._doing(f"pinned memory for a tensor {kind}"):
            made: np.ndarray = torch.empty(kind.shape, dtype=torch_dtype(kind), pin_memory=True).numpy()
            return made

    @override
    def copy_in(self, array: np.ndarray, into: DeviceTensor) -> Bound | None:
        stream = copy_queue(self._device).inwards
        if stream is None or not torch.from_numpy(array).is_pinned():
            return None
        copy = ("cuMemcpyHtoDAsync_v2", into.tensor.data_ptr(), array.ctypes.data, array.nbytes, stream.cuda_stream)
        return self._copied(copy, "copying from the host", (array, into))

    @override
    def copy_out(self, buffer: DeviceTensor, array: np.ndarray) -> Bound | None:
        stream = copy_queue(self._device).outwards
        if stream is None or not torch.from_numpy(array).is_pinned():
            return None
        copy = ("cuMemcpyDtoHAsync_v2", array.ctypes.data, buffer.tensor.data_ptr(), array.nbytes, stream.cuda_stream)
        return self._copied(copy, "copying to the host", (array, buffer))

    def _copied(self, copy: tuple[str, int, int, int, int], what: str, keep: object) -> CudaCalls:
        done = ("cuStreamQuery", copy[-1])
        return CudaCalls(cuda_of(self._device), [copy, done], f"{self.name}, {what}", keep)
