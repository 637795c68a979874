"""Streams, events and graphs of a device behind one small interface: one piece of code records a schedule on any.

``CudaGraphs`` captures into a CUDA graph. ``Eager`` keeps the launches and makes them again at every replay, in the
order of issue: for the CPU, and for devices whose graphs torch does not offer (``xpu`` and ``mps``, untested here).
"""

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import override

from agent_sdk.runtimes.torch.cuda import Call, CudaCalls, cuda_of
from agent_sdk.runtimes.torch.hasten import hastened
from agent_sdk.runtimes.torch.kernel import Kernel
from agent_sdk.runtimes.torch.memory import DeviceTensor
from agent_sdk.runtimes.torch.schedule import Schedule

Memory = dict[str, Tensor]
"""Tensors by name; what has been freed is absent."""
Names = Sequence[str]
WORKSPACES: Final = {
    "CUBLAS_WORKSPACE_CONFIG": ":1024:1",
    "CUBLASLT_WORKSPACE_SIZE": "1024",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1",
}
"""1 MiB for each stream instead of torch's 32 for each of two libraries, most of what a graph of several would hold.

It is the most that torch's allocator takes from segments of 2 MiB: more costs each stream one of 20.

Torch looks at them when it first multiplies matrices; what a process has set, or multiplied before, stays as it is."""
SEGMENTS: Final = "large_segment_size_mb:11"
"""The least that torch's allocator can be told to take at a time for tensors of 1 to 10 MiB, instead of 20 MiB: each
stream of a graph has segments of its own. What a process has told the allocator itself stays as it is."""
ALLOCATOR: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Where a process tells it."""


class Recording(ABC):
    """A sequence of launches that may be made again any number of times, with the tensors it was recorded with."""

    @abstractmethod
    def replay(self) -> None:
        """Launch everything; it may return before the device has finished."""

    def calls(
        self, where: str, reads: Iterable[DeviceTensor], answers: Iterable[DeviceTensor], *, asleep: bool
    ) -> CudaCalls | None:
        """A replay behind the copies that brought what it ``reads``, and a wait for its end, without the interpreter.

        Its ``answers`` stand on the host then, too, in their staging memory. None where that cannot be. ``asleep``
        leaves the core that waits to others, at the price of being woken; ``where`` is what an error message begins
        with.
        """
        return None


class Driver(ABC):
    """How launches reach a device. Streams are numbered; number 0 is there from the beginning to the end."""

    device: torch.device

    @abstractmethod
    def recording(self, streams: int, *, rehearsal: bool = False) -> AbstractContextManager[Recording]:
        """What is launched inside is recorded; a rehearsal is carried out instead, as far as the device can."""

    def release(self) -> None:  # noqa: B027  a device without graphs takes over what torch keeps
        """Give the device back what torch keeps for later, while nothing runs: a graph takes memory of its own."""

    def fork(self, streams: int) -> None:  # noqa: B027  on one queue streams and events say nothing
        """Let the other streams begin where the first one is now."""

    @abstractmethod
    def launch(
        self, stream: int, call: Callable[..., Any], reads: Names, writes: Names, memory: Memory, urgency: int = 0
    ) -> None:
        """Make a call on the tensors that it reads; what it returns stands in ``memory`` from then on.

        Of calls that are ready on several streams a device that can begins the most urgent.
        """

    @abstractmethod
    def free(self, stream: int, names: Names, memory: Memory) -> None:
        """Give the memory of tensors back to the allocator of the streams they were made on."""

    def signal(self, stream: int) -> Any:  # noqa: B027
        """Record an event behind what was launched on a stream."""

    def wait(self, stream: int, event: Any) -> None:  # noqa: B027
        """Let what is launched on a stream from now on wait for an event."""

    def first(self, reads: Iterable[DeviceTensor] = ()) -> AbstractContextManager[Any]:
        """What torch is asked for inside goes to the first stream, behind the copies that brought what it reads."""
        return nullcontext()

    @abstractmethod
    def synchronise(self) -> None:
        """Return when the device has finished what was launched on the first stream."""


def record(schedule: Schedule, kernels: Sequence[Kernel], memory: Memory, driver: Driver) -> None:
    """Launch a schedule; ``kernels`` by task. ``memory`` holds the inputs, and afterwards what was not freed."""
    events: dict[int, Any] = {}
    for index, issue in enumerate(schedule.issues):
        kernel = kernels[issue.task]
        for other in issue.waits:
            driver.wait(issue.stream, events[other])
        if issue.frees:
            driver.free(issue.stream, issue.frees, memory)
        driver.launch(issue.stream, kernel, kernel.inputs, kernel.outputs, memory, issue.urgency)
        if issue.signals:
            events[index] = driver.signal(issue.stream)
    for other in schedule.joins:
        driver.wait(0, events[other])


class CudaGraphs(Driver):
    """Captures into CUDA graphs, on plain streams or on those of a green context."""

    def __init__(self, device: torch.device, make_stream: Callable[[], torch.cuda.Stream] | None = None) -> None:
        for name, size in WORKSPACES.items():
            os.environ.setdefault(name, size)
        if not any(name in os.environ for name in ALLOCATOR):
            with suppress(AttributeError, RuntimeError):  # a release of torch that cannot be told
                torch._C._accelerator_setAllocatorSettings(SEGMENTS)
        self.device = device
        self._make = make_stream or (lambda: torch.cuda.Stream(device))
        self._streams: list[torch.cuda.Stream] = []
        self._idle: list[torch.cuda.Stream] = []

    def stream(self, number: int) -> torch.cuda.Stream:
        """A stream by number; made once, because libraries keep workspaces per stream."""
        while len(self._streams) <= number:
            self._streams.append(self._make())
        return self._streams[number]

    def lend(self, to: object) -> torch.cuda.Stream:
        """A stream to launch on as long as ``to`` lives: what several launch at once runs at once."""
        stream = self._idle.pop() if self._idle else self._make()
        weakref.finalize(to, self._idle.append, stream).atexit = False
        return stream

    @contextmanager
    @override
    def recording(self, streams: int, *, rehearsal: bool = False) -> Iterator[Recording]:
        graph = torch.cuda.CUDAGraph()
        first = self.stream(0)
        with torch.cuda.device(self.device), torch.cuda.stream(first):
            if rehearsal:
                yield _Graph(graph, self)
                return
            torch.cuda.synchronize(self.device)
            # NOTE: a graph holds addresses of cuBLAS's workspaces. Those that a rehearsal made belong to torch, which
            # gives them back when anybody compiles for CUDA graphs; those made in a capture belong to its graph.
            torch._C._cuda_clearCublasWorkspaces()
            pool = torch.cuda.graph_pool_handle()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                yield _Graph(graph, self)
            except BaseException:
                # NOTE: a capture ends well only when all its streams are joined; why it failed is what is raised.
                with suppress(RuntimeError):
                    self._join()
                with suppress(RuntimeError):
                    self._end(graph, pool)
                raise
            else:
                self._end(graph, pool)
            finally:
                torch._C._cuda_clearCublasWorkspaces()

    def _end(self, graph: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
        """End a capture. Raises RuntimeError where it cannot end well; torch is then as it was before."""
        try:
            graph.capture_end()
        except RuntimeError:
            # NOTE: torch takes itself to be capturing still: its allocator gives nothing back any more, and its random
            # numbers fail until a capture ends well.
            index = torch.cuda.current_device()
            with suppress(RuntimeError):  # it had got so far
                torch._C._cuda_endAllocateToPool(index, pool)
                torch._C._cuda_releasePool(index, pool)
            once = torch.zeros(1, device=self.device)
            torch.cuda.synchronize(self.device)
            well = torch.cuda.CUDAGraph()
            well.capture_begin(capture_error_mode="thread_local")
            once.zero_()
            well.capture_end()
            raise

    def _join(self) -> None:
        """Let the first stream wait for all that take part in its capture."""
        for other in self._streams[1:]:
            with torch.cuda.stream(other):
                capturing = torch.cuda.is_current_stream_capturing()
            if capturing:
                self._streams[0].wait_stream(other)

    @override
    def release(self) -> None:
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()

    @override
    def fork(self, streams: int) -> None:
        begin = self.stream(0).record_event()
        for other in range(1, streams):
            self.stream(other).wait_event(begin)

    @override
    def launch(
        self, stream: int, call: Callable[..., Any], reads: Names, writes: Names, memory: Memory, urgency: int = 0
    ) -> None:
        own = self.stream(stream)
        first = hastened(cuda_of(self.device), own.cuda_stream, urgency) if urgency else nullcontext()
        with torch.cuda.stream(own), first:
            made = call(*[memory[name] for name in reads])
            memory.update(zip(writes, made, strict=True))

    @override
    def free(self, stream: int, names: Names, memory: Memory) -> None:
        for name in names:
            del memory[name]

    @override
    def signal(self, stream: int) -> Any:
        return self.stream(stream).record_event()

    @override
    def wait(self, stream: int, event: torch.cuda.Event) -> None:
        self.stream(stream).wait_event(event)

    @contextmanager
    @override
    def first(self, reads: Iterable[DeviceTensor] = ()) -> Iterator[None]:
        for one in reads:
            self.stream(0).wait_event(one.copied)
        with torch.cuda.stream(self.stream(0)):
            yield

    @override
    def synchronise(self) -> None:
        self.stream(0).synchronize()


class _Graph(Recording):
    def __init__(self, graph: torch.cuda.CUDAGraph, driver: CudaGraphs) -> None:
        self._graph, self._driver = graph, driver

    def replay(self) -> None:
        self._graph.replay()

    def calls(
        self, where: str, reads: Iterable[DeviceTensor], answers: Iterable[DeviceTensor], *, asleep: bool
    ) -> CudaCalls:
        own, finished = self._driver.lend(self), torch.cuda.Event(blocking=True)
        finished.record(own)  # makes it
        stream, copied = own.cuda_stream, [one.copied for one in reads]
        calls: list[Call] = [
            *(("cuStreamWaitEvent", stream, event.cuda_event, 0) for event in copied),
            ("cuGraphLaunch", self._graph.raw_cuda_graph_exec(), stream),
            *(("cuMemcpyDtoHAsync_v2", *one.brought(), stream) for one in answers),
            ("cuEventRecord", finished.cuda_event, stream),
        ]
        end: Call = ("cuEventSynchronize", finished.cuda_event) if asleep else ("cuStreamQuery", stream)
        kept = (self, copied, answers)
        return CudaCalls(
            cuda_of(self._driver.device), [*calls, end], where, kept, launches=len(calls), finished=finished
        )


class Eager(Driver):
    """Launches in the order of issue, again at every replay, on one queue."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lines: list[Callable[[], None]] = []

    @contextmanager
    @override
    def recording(self, streams: int, *, rehearsal: bool = False) -> Iterator[Recording]:
        self._lines = []
        yield _Lines(self._lines)

    @override
    def launch(
        self, stream: int, call: Callable[..., Any], reads: Names, writes: Names, memory: Memory, urgency: int = 0
    ) -> None:
        def line() -> None:
            memory.update(zip(writes, call(*[memory[name] for name in reads]), strict=True))

        self._lines.append(line)

    @override
    def free(self, stream: int, names: Names, memory: Memory) -> None:
        def line() -> None:
            for name in names:
                memory.pop(name, None)

        self._lines.append(line)

    @override
    def synchronise(self) -> None:
        if self.device.type in ("xpu", "mps"):
            getattr(torch, self.device.type).synchronize()


class _Lines(Recording):
    def __init__(self, lines: list[Callable[[], None]]) -> None:
        self._lines = lines

    def replay(self) -> None:
        with torch.no_grad():
            for line in self._lines:
                line()
