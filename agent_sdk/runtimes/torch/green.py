"""A fixed number of a GPU's multiprocessors through a CUDA green context, by the driver's own interface.

Streams of a green context work like any other, in graphs too, and reach only its multiprocessors. The context must
live as long as its streams. torch wraps this as well, but from release to release otherwise.
"""

import ctypes
import struct
from typing import Final

import torch

from agent_sdk.runtimes.torch.cuda import cuda_of

RESOURCE_BYTES: Final = 1024
"""More than ``CUdevResource`` takes in any release (144 in 12.x and 13.0)."""
SM_COUNT_AT: Final = 96
"""Where its number of multiprocessors stands."""
SM_RESOURCE: Final = 1
DEFAULT_STREAM: Final = 1
"""Flag that ``cuGreenCtxCreate`` asks for."""
NON_BLOCKING: Final = 1
"""Flag that ``cuGreenCtxStreamCreate`` asks for."""


class GreenContext:
    """A partition of a GPU's multiprocessors.

    Args:
        device: the GPU.
        multiprocessors: how many; the driver rounds up to what it can give (multiples of 8 on Hopper).

    Raises:
        ProcessorLost: the driver is older than 12.5, or refuses.
    """

    def __init__(self, device: torch.device, multiprocessors: int) -> None:
        self.device = device
        torch.zeros(1, device=device)  # starts the driver
        self._cuda = cuda_of(device)
        whole, part, rest = (ctypes.create_string_buffer(RESOURCE_BYTES) for _ in range(3))
        self._cuda.do("cuDeviceGetDevResource", self._cuda.number, whole, SM_RESOURCE)
        groups, least = ctypes.c_uint(1), ctypes.c_uint(multiprocessors)
        self._cuda.do("cuDevSmResourceSplitByCount", part, ctypes.byref(groups), whole, rest, 0, least)
        self.multiprocessors: int = struct.unpack_from("I", part.raw, SM_COUNT_AT)[0]
        described = ctypes.c_void_p()
        self._cuda.do("cuDevResourceGenerateDesc", ctypes.byref(described), part, 1)
        self._context: ctypes.c_void_p | None = ctypes.c_void_p()
        self._cuda.do("cuGreenCtxCreate", ctypes.byref(self._context), described, self._cuda.number, DEFAULT_STREAM)
        self._streams: list[ctypes.c_void_p] = []

    def stream(self) -> torch.cuda.Stream:
        """A new stream on these multiprocessors; it must not outlive the context."""
        made = ctypes.c_void_p()
        self._cuda.do("cuGreenCtxStreamCreate", ctypes.byref(made), self._context, NON_BLOCKING, 0)
        self._streams.append(made)
        return torch.cuda.ExternalStream(made.value, device=self.device)

    def close(self) -> None:
        """Give the multiprocessors back."""
        if self._context is None:
            return
        torch.cuda.synchronize(self.device)
        for stream in self._streams:
            self._cuda.do("cuStreamDestroy_v2", stream)
        self._cuda.do("cuGreenCtxDestroy", self._context)
        self._context = None
