"""A fixed number of a GPU's multiprocessors through a CUDA green context, by the driver's own interface.

Streams of a green context work like any other, in graphs too, and reach only its multiprocessors. The context must
live as long as its streams. torch wraps this as well, but from release to release otherwise.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final

import torch

from agent_sdk.runtimes import ProcessorLost

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
        ProcessorLost: the driver is too old, or refuses.
    """

    def __init__(self, device: torch.device, multiprocessors: int) -> None:
        self.device = device
        torch.cuda.init()
        torch.zeros(1, device=device)  # makes the primary context, which a green one is a part of
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise ProcessorLost(f"{device}: no CUDA driver to make a green context with: {error}") from error
        number = ctypes.c_int()
        self._check("cuDeviceGet", ctypes.byref(number), device.index or 0)
        whole, part = (ctypes.create_string_buffer(RESOURCE_BYTES) for _ in range(2))
        rest = ctypes.create_string_buffer(RESOURCE_BYTES)
        self._check("cuDeviceGetDevResource", number, whole, SM_RESOURCE)
        groups = ctypes.c_uint(1)
        self._check(
            "cuDevSmResourceSplitByCount", part, ctypes.byref(groups), whole, rest, 0, ctypes.c_uint(multiprocessors)
        )
        self.multiprocessors: int = struct.unpack_from("I", part.raw, SM_COUNT_AT)[0]
        described = ctypes.c_void_p()
        self._check("cuDevResourceGenerateDesc", ctypes.byref(described), part, 1)
        self._context: ctypes.c_void_p | None = ctypes.c_void_p()
        self._check("cuGreenCtxCreate", ctypes.byref(self._context), described, number, DEFAULT_STREAM)
        self._streams: list[ctypes.c_void_p] = []

    def stream(self) -> torch.cuda.Stream:
        """A new stream on these multiprocessors; it must not outlive the context."""
        made = ctypes.c_void_p()
        self._check("cuGreenCtxStreamCreate", ctypes.byref(made), self._context, NON_BLOCKING, 0)
        self._streams.append(made)
        return torch.cuda.ExternalStream(made.value, device=self.device)

    def close(self) -> None:
        """Give the multiprocessors back."""
        if self._context is None:
            return
        torch.cuda.synchronize(self.device)
        for stream in self._streams:
            self._check("cuStreamDestroy_v2", stream)
        self._check("cuGreenCtxDestroy", self._context)
        self._context = None

    def _check(self, name: str, *arguments: Any) -> None:
        call = getattr(self._driver, name, None)
        if call is None:
            raise ProcessorLost(f"{self.device}: the CUDA driver has no {name}: update it to 12.5 or later")
        code = call(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            said = (text.value or b"").decode(errors="replace")
            raise ProcessorLost(f"{self.device}: {name} failed: {said} ({code})")
