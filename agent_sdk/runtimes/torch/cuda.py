"""CUDA's driver without the interpreter: copies, launches of graphs and waits as C calls, which lanes make.

Torch's own way to launch and to copy costs tens of microseconds of Python each time, which is as much as what a tensor
between CPU and GPU takes; a call of the driver costs one or two.
"""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch
from typing_extensions import override

from agent_sdk.errors import OutOfMemory, ProcessorError, ProcessorLost
from agent_sdk.native import address
from agent_sdk.runtimes.base import Bound, NativeCall
from agent_sdk.runtimes.faults import lacks_memory

WAITS: Final[Mapping[str, int]] = {"cuStreamQuery": 600, "cuEventSynchronize": 0}
"""What waits for a stream's work, and what it says as long as that is not finished; 0 where it returns afterwards."""

Call = tuple[str, *tuple[int, ...]]
"""A function of the driver and its arguments."""


class Cuda:
    """The driver, in the primary context of a device, which torch computes in too.

    Args:
        device: the GPU.
        library: the driver, unless it is to be loaded.

    Raises ProcessorLost where the driver refuses.

    Attributes:
        number: the device, as the driver calls it.
    """

    def __init__(self, device: torch.device, library: Any = None) -> None:
        self._device = device
        self._library = library if library is not None else ctypes.CDLL("libcuda.so.1")
        number, context = ctypes.c_int(), ctypes.c_void_p()
        self.do("cuDeviceGet", ctypes.byref(number), device.index or 0)
        self.number = number.value
        self.do("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.number)
        self._context = context.value or 0
        self._before = ctypes.c_void_p()

    def inside(self, calls: Sequence[Call]) -> list[tuple[str, NativeCall]]:
        """The calls as C calls with their names, on a thread that has another context before and afterwards, or none.

        Where one of them fails, what was begun is waited for, and the context is taken away again.
        NOTE: a lane may be served by the application's own thread, whose current device is not ours to change.
        """
        popped = ctypes.addressof(self._before)
        made: list[Call] = [("cuCtxPushCurrent_v2", self._context), *calls, ("cuCtxPopCurrent_v2", popped)]
        last = len(made) - 1
        return [
            (
                name,
                NativeCall(
                    address(self._function(name)),
                    tuple(arguments),
                    again=WAITS.get(name, 0),
                    after=place if place == last or name in WAITS else 0,
                ),
            )
            for place, (name, *arguments) in enumerate(made)
        ]

    def do(self, name: str, *arguments: Any) -> None:
        """Call a function now. Raises ProcessorLost where there is none of this name, or it fails."""
        status = self._function(name)(*arguments)
        if status:
            raise ProcessorLost(f"{self._device}: {name} failed: {self.said(status)}")

    def said(self, status: int) -> str:
        """What a status means."""
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        return f"{(text.value or b'').decode(errors='replace')} ({status})"

    def _function(self, name: str) -> Any:
        found = getattr(self._library, name, None)
        if found is None:
            raise ProcessorLost(f"{self._device}: the CUDA driver has no {name}: update it")
        return found


@cache
def cuda_of(device: torch.device) -> Cuda:
    """The driver for a device; its context is kept as long as the process."""
    return Cuda(device)


class CudaCalls(Bound):
    """Calls of the driver, one after the other.

    Args:
        cuda: the driver.
        calls: what to call.
        where: what an error message begins with.
        keep: what has to live as long as the calls.
        launches: after how many of them the device computes; 0 where that is no more until all are made.
        finished: an event that they record behind that.
    """

    __slots__ = ("_calls", "_cuda", "_keep", "_names", "_where", "finished", "launched", "native")

    def __init__(
        self,
        cuda: Cuda,
        calls: Sequence[Call],
        where: str,
        keep: Any = None,
        *,
        launches: int = 0,
        finished: torch.cuda.Event | None = None,
    ) -> None:
        made = cuda.inside(calls)
        self.finished = finished
        self.launched = 1 + launches if launches else 0  # a context is pushed before
        self._cuda, self._where, self._keep = cuda, where, keep
        self._names = [name for name, _ in made]
        self.native = tuple(call for _, call in made)
        self._calls = [
            (ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * len(call.arguments))(call.function), call)
            for call in self.native
        ]

    @override
    def __call__(self) -> None:
        for failed in range(len(self._calls)):
            if status := self._made(failed):
                for place in range(failed + 1, len(self._calls)):
                    after = self.native[place].after
                    if after and place - after < failed:
                        self._made(place)
                raise self.failure(failed, status)

    def _made(self, place: int) -> int:
        """Make one of the calls; what it says."""
        function, call = self._calls[place]
        status = function(*call.arguments)
        while call.again and status == call.again:
            status = function(*call.arguments)
        return int(status)

    @override
    def failure(self, place: int, status: int) -> ProcessorError:
        text = f"{self._where}: {self._names[place]} failed: {self._cuda.said(status)}"
        if lacks_memory(RuntimeError(text)):
            return OutOfMemory(f"{text}; close other programs on the device, or use a smaller model")
        return ProcessorLost(text)
