"""A segment on a torch device: its kernels, scheduled on streams, recorded per set of buffers in the fastest way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

import torch
from typing_extensions import override

from agent_sdk.errors import CompilationFailed, ProcessorError, ProcessorLost, WrongOutput
from agent_sdk.model.bounds import ordinary
from agent_sdk.runtimes.base import BoundCall, Buffer, Executable, Segment
from agent_sdk.runtimes.torch.driver import CudaGraphs, Memory, Recording, record
from agent_sdk.runtimes.torch.kernel import Kernel, in_row, translated
from agent_sdk.runtimes.torch.listing import listed
from agent_sdk.runtimes.torch.memory import DeviceTensor, held, on_device
from agent_sdk.runtimes.torch.precision import Precision
from agent_sdk.runtimes.torch.schedule import Schedule, Task, assign_streams, order
from agent_sdk.runtimes.torch.shares import device_us
from agent_sdk.tensors import TorchTensor
from hope_schema import HOST

if TYPE_CHECKING:
    from agent_sdk.runtimes.torch.processor import TorchProcessor


PLAIN: Final = "plain:"
"""Before the names of inputs and outputs as they stand in their buffers."""
STREAMS: Final = (1, 3, 4, 6)
"""Over how many streams the steps of a network are listed beside the plan's own intervals: more bring nothing
measurable."""
ALIKE: Final = 1.01
"""Ways that take no longer than this times the fastest are as fast: what timing tells apart is no finer."""
WORTH: Final = 0.97
"""What the best way by the fastest recipes takes, times this, is what one by the plan's may take to be preferred: less
is within what two recordings of one way differ by."""
BROUGHT_BYTES: Final = 64 * 1024
"""Answers of no more than this are brought to the host behind every run, also where nobody asks for them there: that
takes less than to ask for them afterwards."""


@dataclass(frozen=True)
class Way:
    """A way to carry out a segment: its kernels in the order of issue, and how they are launched.

    ``own`` says that every kernel is the choice of its processor.
    """

    kernels: tuple[Kernel, ...]
    schedule: Schedule
    own: bool = True

    def readers(self, name: str) -> list[int]:
        """The streams on which a tensor that comes from outside, or what looks at its memory, is read."""
        known, found = {name}, dict[int, None]()
        for kernel, issue in zip(self.kernels, self.schedule.issues, strict=True):
            if not known.isdisjoint(kernel.inputs):
                known.update(view for view, source in kernel.views.items() if source in known)
                found[issue.stream] = None
        return list(found)

    def maker(self, name: str) -> int:
        """The stream on which a tensor's memory is written; the first one for what comes from outside."""
        views = {view: source for kernel in self.kernels for view, source in kernel.views.items()}
        while name in views:
            name = views[name]
        issues = zip(self.kernels, self.schedule.issues, strict=True)
        return next((issue.stream for kernel, issue in issues if name in kernel.outputs), 0)


class TorchExecutable(Executable):
    """The ways to carry out a segment: the plan's, and where a device can tell which is fastest, others.

    Args:
        kernels: by the plan's recipes,
        others: and each by the fastest recipe, where that is another choice.

    Attributes:
        beside: whether the rest of the network runs elsewhere, on the core that would wait for this.
    """

    processor: TorchProcessor

    def __init__(
        self, processor: TorchProcessor, segment: Segment, kernels: Sequence[Kernel], others: Sequence[Kernel] = ()
    ) -> None:
        streams = STREAMS if processor.overlaps else ()
        rows = [in_row(row, processor.precision, processor.device) for row in (kernels, others) if row]
        planned, *own = [ways_of(row, segment, streams) for row in rows]
        ways = [replace(way, own=not own) for way in planned] + [way for row in own for way in row]
        super().__init__(processor, segment, ways)
        self.beside = len(segment.ops) < len(segment.model.graph.ops) and not processor.has_core

    @property
    def way(self) -> Way:
        """The fastest, once it was bound; until then the plan's. Raises ProcessorLost once it was closed."""
        found = self.compiled[0]
        assert isinstance(found, Way)
        return found

    @override
    def bind(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> TorchCall:
        ways = self.compiled
        inputs = {name: held(buffer) for name, buffer in inputs.items()}
        outputs = {name: held(buffer) for name, buffer in outputs.items()}
        for name, kind in self.output_types.items():
            if tuple(outputs[name].tensor.shape) != kind.shape:
                shape = list(outputs[name].tensor.shape)
                raise WrongOutput(f"{self.processor.id}: the buffer for '{name}' is {shape}, not {kind}")
        return TorchCall(self, ways, inputs, outputs)


def ways_of(kernels: Sequence[Kernel], segment: Segment, streams: Sequence[int] = ()) -> list[Way]:
    """Kernels as the plan times them, on as few streams as it overlaps them; one by one where it times not all.

    Where the plan overlaps any, then as list schedules over these numbers of ``streams``, too.
    """
    times = {op: timed for timed in segment.times for op in timed.ops}
    if not all(kernel.name in times for kernel in kernels):
        row = [Task(one.inputs, one.outputs, at, at + 1.0, views=one.views) for at, one in enumerate(kernels)]
        return [Way(tuple(kernels), order(row, [0] * len(row), segment.outputs))]
    # NOTE: a stable sort: what starts at once stays in the segment's order, which is topological.
    ordered = sorted(kernels, key=lambda kernel: times[kernel.name].start_us)
    planned = [Task(kernel.inputs, kernel.outputs, *times[kernel.name][1:4], kernel.views) for kernel in ordered]
    ways = [_way(ordered, planned, segment)]
    before: list[tuple[float, float]] = []
    for count in streams if ways[0].schedule.streams > 1 else ():
        ends = listed(planned, count)
        if ends == before:
            break
        tasks = [replace(task, start_us=a, finish_us=b) for task, (a, b) in zip(planned, ends, strict=True)]
        ways.append(_way(ordered, tasks, segment))
        before = ends
    return ways


def narrowest(ways: Sequence[Way], us: Sequence[float]) -> Way:
    """Of the ways that are as fast as any, by what each takes, the one on fewest streams.

    A stream reuses no memory but its own, and holds a workspace of its own. By recipes that are not the processor's own
    choice a way has to be faster by ``WORTH``.
    """
    rank = [took if way.own else took / WORTH for way, took in zip(ways, us, strict=True)]
    fast = [way for way, took in zip(ways, rank, strict=True) if took <= ALIKE * min(rank)]
    return min(fast, key=lambda way: way.schedule.streams)


def _way(kernels: Sequence[Kernel], tasks: Sequence[Task], segment: Segment) -> Way:
    row = sorted(range(len(tasks)), key=lambda index: tasks[index].start_us)
    ordered = [tasks[index] for index in row]
    schedule = order(ordered, assign_streams(ordered), segment.outputs)
    return Way(tuple(kernels[index] for index in row), schedule)


class TorchCall(BoundCall):
    """A recording with its buffers. It looks at the floats that the network takes and gives where they stand."""

    __slots__ = (
        *("_calls", "_executable", "_inputs", "_outputs", "_seen", "_sources"),
        *("launched", "looked", "native", "recording"),
    )

    def __init__(
        self,
        executable: TorchExecutable,
        ways: list[Way],
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
    ) -> None:
        self._executable = executable
        self._inputs, self._outputs = dict(inputs), dict(outputs)
        self._sources: dict[str, DeviceTensor] = {}
        model, on_gpu = executable.segment.model, executable.processor.device.type == "cuda"
        floats = {
            name: buffer.tensor.dtype
            for name, buffer in {**self._inputs, **self._outputs}.items()
            if buffer.tensor.is_floating_point() and buffer.tensor.numel()
        }
        far = executable.processor.place.memory != HOST  # there no lane sees them
        self.looked = frozenset(floats.keys() & {*model.guard.floats, *model.held} if far else ())
        widest = reduce(torch.promote_types, (floats[name] for name in self.looked), torch.float16)
        self._seen = torch.zeros(2 * len(self.looked), dtype=widest, pin_memory=on_gpu)
        try:
            with executable.processor.precision.switched():
                self.recording = self._fastest(ways)
        except Exception as error:
            where = f"{executable.where}, recording its launches"
            raise translated(error, where, CompilationFailed) from error
        answers = [
            buffer
            for name, buffer in self._outputs.items()
            if name in model.held and 0 < buffer.tensor.nbytes <= BROUGHT_BYTES
        ]
        self._calls = self.recording.calls(executable.where, self._inputs.values(), answers, asleep=executable.beside)
        self.native = self._calls.native if self._calls is not None else ()
        self.launched = self._calls.launched if self._calls is not None else 0

    def _fastest(self, ways: list[Way]) -> Recording:
        """Record the ways one after the other, because each holds its memory; only the fastest stays."""
        if len(ways) > 1:
            driver = self._executable.processor.driver
            assert isinstance(driver, CudaGraphs)
            ways[:] = [narrowest(ways, [device_us(self._recorded(way).replay, driver) for way in ways])]
        return self._recorded(ways[0])

    def _recorded(self, way: Way) -> Recording:
        """Launch everything once, which makes constants and workspaces, and then record it."""
        driver = self._executable.processor.driver
        for rehearsal in (True, False):
            memory: Memory = {}
            driver.release()
            with driver.recording(way.schedule.streams + 1, rehearsal=rehearsal) as recording:
                self._launch(way, memory)
            driver.synchronise()
        return recording

    def _launch(self, way: Way, memory: Memory) -> None:
        driver, precision = self._executable.processor.driver, self._executable.processor.precision
        come, gone = ([name for name in names if name in self.looked] for names in (self._inputs, self._outputs))
        beside, ends = way.schedule.streams, {name: (f"least:{name}", f"most:{name}") for name in self.looked}
        driver.fork(beside + 1)
        for name, buffer in self._inputs.items():
            memory[PLAIN + name] = buffer.tensor
            first, *others = way.readers(name) or [0]
            driver.launch(first, partial(_held, precision), (PLAIN + name,), (name,), memory)
            held_now = driver.signal(first) if others else None
            for stream in others:
                driver.wait(stream, held_now)
        for name in come:
            driver.launch(beside, torch.aminmax, (PLAIN + name,), ends[name], memory)
        record(way.schedule, way.kernels, memory, driver)
        used = {beside} if come else set[int]()
        for name, buffer in self._outputs.items():
            memory[PLAIN + name], stream = buffer.tensor, way.maker(name)
            driver.launch(stream, partial(_copied, buffer.tensor), (name,), (), memory)
            if name in gone:
                driver.launch(stream, torch.aminmax, (PLAIN + name,), ends[name], memory)
            used.add(stream)
        for stream in sorted(used - {0}):
            driver.wait(0, driver.signal(stream))
        if ends:
            seen = on_device(self._seen, driver.device)
            driver.launch(0, partial(_stacked, seen), [end for both in ends.values() for end in both], (), memory)

    @property
    @override
    def odd(self) -> bool:
        return not ordinary(self._seen.numpy())

    @override
    def come_before(self, like: TorchTensor) -> None:
        if self._calls is not None:
            like.stream.wait_event(self._calls.finished)

    @override
    def rebind(self, name: str, buffer: Buffer) -> None:
        buffer = held(buffer)
        if buffer.tensor.data_ptr() == self._inputs[name].tensor.data_ptr():
            self._sources.pop(name, None)
        else:  # a recording knows addresses: what comes from elsewhere is copied to where it reads
            assert self._calls is None, "nothing but a copy comes to a GPU's memory"
            self._sources[name] = buffer

    def launch(self) -> None:
        """Start a run and return before it has ended. Raises what torch raises."""
        with self._executable.processor.driver.first(self._inputs.values()):
            for name, buffer in self._sources.items():
                self._inputs[name].tensor.copy_(buffer.tensor, non_blocking=True)
            self.recording.replay()

    @override
    def __call__(self) -> None:
        if self._calls is not None:
            self._calls()
            return
        try:
            self.launch()
            self._executable.processor.driver.synchronise()
        except Exception as error:
            raise translated(error, self._executable.where, ProcessorLost) from error

    @override
    def failure(self, place: int, status: int) -> ProcessorError:
        assert self._calls is not None
        return self._calls.failure(place, status)


def _held(precision: Precision, tensor: torch.Tensor) -> tuple[torch.Tensor]:
    """A plain tensor as kernels of a precision hold it."""
    return (precision.taken(tensor),)


def _copied(target: torch.Tensor, tensor: torch.Tensor) -> tuple[()]:
    target.copy_(tensor)
    return ()


def _stacked(target: torch.Tensor, *ends: torch.Tensor) -> tuple[()]:
    torch.stack(ends, out=target)
    return ()
