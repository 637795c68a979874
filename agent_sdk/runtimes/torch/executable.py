"""A segment on a torch device: its kernels, scheduled on streams, recorded once per set of buffers."""

# ruff: noqa: D102  what the overridden methods promise stands in base.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from agent_sdk.runtimes import CompilationFailed, ProcessorError, ProcessorLost, Segment, WrongOutput
from agent_sdk.runtimes.base import BoundCall, Buffer, Executable
from agent_sdk.runtimes.torch.driver import Memory, Recording, record
from agent_sdk.runtimes.torch.kernel import Kernel, translated
from agent_sdk.runtimes.torch.memory import DeviceTensor, held
from agent_sdk.runtimes.torch.precision import Precision
from agent_sdk.runtimes.torch.schedule import Schedule, Task, assign_streams, order

if TYPE_CHECKING:
    from agent_sdk.runtimes.torch.processor import TorchProcessor


PLAIN = "plain:"
"""Before the names of inputs as they stand in their buffers."""


class TorchExecutable(Executable):
    """The kernels of a segment and the schedule they are launched by.

    Attributes:
        schedule: streams, events and frees; issue i launches kernel i.
        beside: whether the rest of the network runs elsewhere, on the core that would wait for this.
    """

    processor: TorchProcessor

    def __init__(self, processor: TorchProcessor, segment: Segment, kernels: Sequence[Kernel]) -> None:
        kernels, self.schedule = scheduled(kernels, segment)
        super().__init__(processor, segment, kernels)
        self.beside = len(segment.ops) < len(segment.model.graph.ops) and not processor.has_core

    def bind(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> TorchCall:
        kernels = self.compiled
        inputs = {name: held(buffer) for name, buffer in inputs.items()}
        outputs = {name: held(buffer) for name, buffer in outputs.items()}
        for name, kind in self.output_types.items():
            if tuple(outputs[name].tensor.shape) != kind.shape:
                shape = list(outputs[name].tensor.shape)
                raise WrongOutput(f"{self.processor.id}: the buffer for '{name}' is {shape}, not {kind}")
        return TorchCall(self, kernels, inputs, outputs)


def scheduled(kernels: Sequence[Kernel], segment: Segment) -> tuple[tuple[Kernel, ...], Schedule]:
    """Kernels in the order of their planned starts, on as few streams as the plan overlaps them; else on one."""
    times = {op: (start, finish) for ops, start, finish in segment.times for op in ops}
    if not all(kernel.name in times for kernel in kernels):
        times = {kernel.name: (float(place), place + 1.0) for place, kernel in enumerate(kernels)}
    # NOTE: a stable sort: what starts at once stays in the segment's order, which is topological.
    ordered = tuple(sorted(kernels, key=lambda kernel: times[kernel.name][0]))
    tasks = [Task(kernel.inputs, kernel.outputs, *times[kernel.name], kernel.views) for kernel in ordered]
    return ordered, order(tasks, assign_streams(tasks), segment.outputs)


class TorchCall(BoundCall):
    """A recording with its buffers."""

    __slots__ = ("_calls", "_executable", "_inputs", "_kernels", "_outputs", "_recording", "_sources", "native")

    def __init__(
        self,
        executable: TorchExecutable,
        kernels: Sequence[Kernel],
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
    ) -> None:
        self._executable, self._kernels = executable, kernels
        self._inputs, self._outputs = dict(inputs), dict(outputs)
        self._sources: dict[str, DeviceTensor] = {}
        where = f"{executable.processor.id}, segment ending in '{executable.segment.ops[-1]}'"
        try:
            self._recording = self._recorded()
        except Exception as error:
            raise translated(error, where, partial(_uncaptured)) from error
        self._calls = self._recording.calls(where, asleep=executable.beside)
        self.native = self._calls.native if self._calls is not None else ()

    def _recorded(self) -> Recording:
        """Launch everything once, which makes constants and workspaces, and then record it."""
        executable = self._executable
        driver, precision = executable.processor.driver, executable.processor.precision
        with precision.switched():
            for rehearsal in (True, False):
                memory: Memory = {}
                with driver.recording(executable.schedule.streams, rehearsal=rehearsal) as recording:
                    self._launch(memory)
                driver.synchronise()
        return recording

    def _launch(self, memory: Memory) -> None:
        executable = self._executable
        driver, precision = executable.processor.driver, executable.processor.precision
        for name, buffer in self._inputs.items():
            memory[PLAIN + name] = buffer.tensor
            driver.launch(0, partial(_held, precision), (PLAIN + name,), (name,), memory)
        driver.fork(executable.schedule.streams)
        record(executable.schedule, self._kernels, memory, driver)
        for name, buffer in self._outputs.items():
            driver.launch(0, partial(_copied, buffer.tensor), (name,), (), memory)

    def rebind(self, name: str, buffer: Buffer) -> None:
        buffer = held(buffer)
        if buffer.tensor.data_ptr() == self._inputs[name].tensor.data_ptr():
            self._sources.pop(name, None)
        else:  # a recording knows addresses: what comes from elsewhere is copied to where it reads
            assert self._calls is None, "nothing but a copy comes to a GPU's memory"
            self._sources[name] = buffer

    def launch(self) -> None:
        """Start a run and return before it has ended. Raises what torch raises."""
        with self._executable.processor.driver.first():
            for name, buffer in self._sources.items():
                self._inputs[name].tensor.copy_(buffer.tensor, non_blocking=True)
            self._recording.replay()

    def __call__(self) -> None:
        if self._calls is not None:
            self._calls()
            return
        try:
            self.launch()
            self._executable.processor.driver.synchronise(asleep=self._executable.beside)
        except Exception as error:
            where = f"{self._executable.processor.id}, segment ending in '{self._executable.segment.ops[-1]}'"
            raise translated(error, where, ProcessorLost) from error

    def failure(self, place: int, status: int) -> ProcessorError:
        assert self._calls is not None
        return self._calls.failure(place, status)


def _uncaptured(text: str) -> CompilationFailed:
    return CompilationFailed(f"{text} (while its launches were recorded)")


def _held(precision: Precision, tensor: torch.Tensor) -> tuple[torch.Tensor]:
    """A plain tensor as kernels of a precision hold it."""
    return (precision.laid_out(tensor.to(precision.dtype(tensor.dtype))),)


def _copied(target: torch.Tensor, tensor: torch.Tensor) -> tuple[()]:
    target.copy_(tensor)
    return ()
