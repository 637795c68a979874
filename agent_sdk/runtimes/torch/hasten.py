"""Priorities of kernels in a CUDA graph: of two that are ready the more urgent one has its blocks placed first.

Torch says a stream's priority, and a schedule's streams hold urgent and idle kernels by turns. So the nodes that a call
adds to a graph are found while it is captured, and each is given its own.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Final

from agent_sdk.errors import ProcessorLost
from agent_sdk.runtimes.torch.cuda import Cuda

CAPTURES: Final = 1
"""The driver's word for a stream that is being captured."""
KERNEL: Final = 0
"""Likewise for a node that launches a kernel."""
PRIORITY: Final = 8
"""Likewise for the attribute of a launch."""
MOST: Final = 64
"""Bytes of any such attribute."""


@contextmanager
def hastened(cuda: Cuda, stream: int, urgency: int) -> Iterator[None]:
    """Kernels that are captured on a stream meanwhile go before less urgent ones, as far as the device tells so many
    apart; under a driver that cannot be asked for that, all are equal.
    """
    before = None
    with suppress(ProcessorLost):
        before = _ends(cuda, stream)
    yield
    if before is not None:
        with suppress(ProcessorLost):
            _hasten(cuda, stream, before, urgency)


def _hasten(cuda: Cuda, stream: int, before: list[int], urgency: int) -> None:
    """Give a priority to the nodes that stand behind these on a stream. Raises ProcessorLost."""
    value = ctypes.create_string_buffer(MOST)
    ctypes.c_int.from_buffer(value).value = max(-urgency, _highest(cuda))
    ahead, seen = [*(_ends(cuda, stream) or ())], set(before)
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        kind = ctypes.c_int()
        cuda.do("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        if kind.value == KERNEL:
            cuda.do("cuGraphKernelNodeSetAttribute", ctypes.c_void_p(node), PRIORITY, value)
        ahead += _before(cuda, node)


def _ends(cuda: Cuda, stream: int) -> list[int] | None:
    """The nodes behind which the next one on a stream will stand; None where it is not captured."""
    status, number, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
    graph, nodes = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)()
    found = (ctypes.byref(one) for one in (status, number, graph, nodes, ctypes.c_void_p(), count))
    cuda.do("cuStreamGetCaptureInfo_v3", ctypes.c_void_p(stream), *found)
    return [nodes[place] or 0 for place in range(count.value)] if status.value == CAPTURES else None


def _before(cuda: Cuda, node: int) -> list[int]:
    """The nodes that one waits for."""
    count = ctypes.c_size_t()
    ask = partial(cuda.do, "cuGraphNodeGetDependencies_v2", ctypes.c_void_p(node))
    ask(None, None, ctypes.byref(count))
    nodes, edges = (ctypes.c_void_p * count.value)(), (ctypes.c_uint64 * count.value)()
    ask(nodes, edges, ctypes.byref(count))
    return [one or 0 for one in nodes]


@cache
def _highest(cuda: Cuda) -> int:
    """The priority before all others, a negative number."""
    least, greatest = ctypes.c_int(), ctypes.c_int()
    cuda.do("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    return greatest.value
