"""Plain tensors in a device's memory: row-major, in the types that the graph states, with a pinned copy on the host."""

from __future__ import annotations

from functools import cache
from threading import Lock
from types import SimpleNamespace

import numpy as np
import torch

from agent_sdk.errors import UnsupportedOp
from agent_sdk.model.dtypes import FOREIGN
from agent_sdk.tensors import TorchTensor
from hope_schema import TensorType


class DeviceTensor:
    """Memory of one tensor. ``tensor`` is what kernels see, ``staging`` pinned host memory of the same size.

    Attributes:
        comes: whether whoever makes it brings it to the host as well.
    """

    __slots__ = ("_copied", "_staging", "comes", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._staging: torch.Tensor | None = None
        self._copied: torch.cuda.Event | None = None
        self.comes = False

    def brought(self) -> tuple[int, int, int]:
        """Where it is to be copied to, from where, and how many bytes, by whoever makes it, from now on."""
        self.comes = True
        return self.staging.data_ptr(), self.tensor.data_ptr(), self.tensor.nbytes

    @property
    def copied(self) -> torch.cuda.Event:
        """Recorded behind the last copy that came here."""
        if self._copied is None:
            self._copied = torch.cuda.Event()
            # Makes it: lanes know it by its handle.
            self._copied.record(torch.cuda.current_stream(self.tensor.device))
        return self._copied

    @property
    def staging(self) -> torch.Tensor:
        """Host memory that the device copies from and to by itself; made when first needed."""
        if self._staging is None:
            pinned = self.tensor.device.type == "cuda"
            self._staging = torch.empty(self.tensor.shape, dtype=self.tensor.dtype, pin_memory=pinned)
        return self._staging

    def viewed(self, kind: TensorType, offset: int = 0) -> DeviceTensor:
        """Its memory from a byte on as another type."""
        flat = self.tensor.reshape(-1).view(torch.uint8)[offset : offset + kind.bytes]
        return DeviceTensor(flat.view(torch_dtype(kind)).reshape(kind.shape))


def held(buffer: DeviceTensor | np.ndarray) -> DeviceTensor:
    """A buffer as kernels see it: torch looks at NumPy arrays in host memory without a copy."""
    return DeviceTensor(torch.from_numpy(buffer)) if isinstance(buffer, np.ndarray) else buffer


def on_device(pinned: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Pinned memory of the host as a device's kernels see it: what they write stands there without a copy."""
    if device.type != "cuda":
        return pinned
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=pinned.numpy().__array_interface__), device=device)


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


class CopyQueue:
    """The streams of a device on which tensors come, and go, while its multiprocessors do something else.

    Whoever launches what reads one waits on its own stream until it was ``copied``: nobody waits on the host.
    NOTE: threads ask for copies one after the other: side by side they take the interpreter's lock from each other at
    each call, and networks of one plan take 4 % longer.

    Attributes:
        inwards: the stream of tensors that come; None on the CPU.
        outwards: the stream of those that go.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.inwards = torch.cuda.Stream(device) if on_gpu else None
        self.outwards = torch.cuda.Stream(device) if on_gpu else None
        self._one = Lock()

    def copy_in(self, array: np.ndarray, into: DeviceTensor) -> None:
        """Copy a host array to the device; the array may be changed when this returns."""
        # NOTE: by NumPy, on this thread: torch would wake a thread per core for it, and wait for the slowest.
        if self.inwards is None:
            host = into.tensor if into.tensor.device.type == "cpu" else into.staging
            np.copyto(host.numpy(), array, casting="no")
            if host is not into.tensor:
                into.tensor.copy_(host)
            return
        into.copied.synchronize()
        with self._one, torch.cuda.stream(self.inwards):
            np.copyto(into.staging.numpy(), array, casting="no")
            into.tensor.copy_(into.staging, non_blocking=True)
            into.copied.record(self.inwards)

    def take(self, given: TorchTensor, into: DeviceTensor) -> None:
        """Copy a tensor of this device, behind all that its stream still has to do; it stays as it is until then."""
        with given.behind():
            into.tensor.copy_(given.tensor, non_blocking=True)
        if given.stream is not None:
            into.copied.record(given.stream)

    def copy_out(self, source: DeviceTensor) -> np.ndarray:
        """A finished device tensor on the host, whatever is being computed meanwhile; the next copy overwrites it."""
        if self.outwards is None:
            return source.tensor.numpy() if source.tensor.device.type == "cpu" else source.tensor.cpu().numpy()
        if source.comes:
            return source.staging.numpy()
        with self._one, torch.cuda.stream(self.outwards):
            source.staging.copy_(source.tensor, non_blocking=True)
            there = self.outwards.record_event()
        there.synchronize()  # without the lock: others ask for their copies meanwhile
        return source.staging.numpy()


@cache
def copy_queue(device: torch.device) -> CopyQueue:
    """The copy queue of a device, which all its processors share."""
    return CopyQueue(device)
