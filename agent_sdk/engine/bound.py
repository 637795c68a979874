"""A program with its memory: every segment compiled, every buffer allocated, every call bound.

Large inputs are not copied: the segments that read them are bound to the caller's own array, which costs a few
microseconds where it is not the array of the run before. It is read during runs only, but held until the next one.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from agent_sdk.engine.errors import FeedError
from agent_sdk.engine.loops import Instruction, Loop, loop_for
from agent_sdk.engine.memory import MemoryPlan, plan_memory
from agent_sdk.engine.program import Program, ProgramSegment
from agent_sdk.runtimes.base import BoundCall, Buffer, Executable, Processor, WrongOutput
from hope_schema import HOST

COPY_BELOW_BYTES = 128 * 1024
"""Inputs smaller than this, times the number of segments that read them, are copied: that is cheaper than binding."""

Feeds = dict[str, np.ndarray]
Outputs = dict[str, np.ndarray]


@dataclass
class _Load:
    """How a graph input reaches the processors that read it.

    Attributes:
        tensor: its name.
        keeper: the processor whose memory holds it.
        own: that memory, used when the caller's array cannot be.
        readers: the segments that read it there, or through a view.
        shares: whether the caller's array may be used in place.
        bound: the caller's array that the readers are bound to; None when they are bound to ``own``.
    """

    tensor: str
    keeper: Processor
    own: Buffer
    readers: tuple[ProgramSegment, ...]
    shares: bool
    bound: np.ndarray | None = None


class BoundProgram:
    """Executables, buffers and bound calls of one program. One run at a time.

    Attributes:
        program: what was bound.
        loop: what carries out its lanes.
        memory: which buffer holds which tensor.
        executables: the compiled segments, by index; empty once closed.

    Raises ProcessorError when a processor refuses a segment; what was compiled before is freed.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.executables: list[Executable] = []
        self.loop: Loop | None = None
        # Whatever nobody holds any more is freed as if it had been closed.
        self._close = weakref.finalize(self, _close_all, self.executables, os.getpid())
        _OPEN.add(self)
        try:
            for segment in program.segments:
                executable = program.processors[segment.processor].compile(segment.segment)
                self.executables.append(executable)
                _check_types(program, segment, executable)
            self.memory = plan_memory(
                program,
                [
                    {name: executable.output_types[name] for name in segment.segment.outputs}
                    for segment, executable in zip(program.segments, self.executables, strict=True)
                ],
            )
            self._buffers = allocate(program, self.memory)
            self._calls = [self._call(segment) for segment in program.segments]
            self.loop = loop_for([[self._instruction(segment) for segment in row] for row in program.by_lane])
            self._loads = self._plan_loads()
        except BaseException:
            self.close()
            raise
        graph = program.graph
        self._stores = [
            (
                name,
                graph.tensor[name].shape,
                program.processors[program.home[name]],
                self._buffers[name, program.home[name]],
            )
            for name in graph.outputs
            if name in graph.producer
        ]
        self._unchanged = [name for name in graph.outputs if name not in graph.producer]
        self._wanted = {name: (graph.tensor[name].shape, np.dtype(graph.tensor[name].dtype)) for name in graph.inputs}

    def _instruction(self, segment: ProgramSegment) -> Instruction:
        return Instruction(
            segment,
            cores=self.program.rebinds.get(segment.index, frozenset()),
            copies=tuple(copies(self.program, self._buffers, segment)),
            call=self._calls[segment.index],
            check=partial(_check_outputs, self.program, self._buffers, segment),
        )

    def _call(self, segment: ProgramSegment) -> BoundCall:
        return self.executables[segment.index].bind(
            {name: self._buffers[name, segment.processor] for name in segment.segment.inputs},
            {name: self._buffers[name, segment.processor] for name in segment.segment.outputs},
        )

    def _plan_loads(self) -> list[_Load]:
        loads = []
        moves = [move for segment in self.program.segments for move in segment.moves if move.source == HOST]
        for move in moves:
            if move.keeper != move.target:
                continue
            viewers = {other.target for other in moves if (other.tensor, other.keeper) == (move.tensor, move.keeper)}
            readers = tuple(
                segment
                for segment in self.program.segments
                if segment.processor in viewers and move.tensor in segment.segment.inputs
            )
            own = self._buffers[move.tensor, move.target]
            keeper = self.program.processors[move.target]
            kind = self.program.graph.tensor[move.tensor]
            shares = kind.bytes >= COPY_BELOW_BYTES * len(readers) and _uses_in_place(keeper, own)
            loads.append(_Load(move.tensor, keeper, own, readers, shares))
        return loads

    def check(self, inputs: Mapping[str, np.ndarray]) -> Feeds:
        """Return the inputs as arrays. Raises FeedError for wrong names, shapes or element types."""
        feeds = {}
        for name, (shape, dtype) in self._wanted.items():
            if name not in inputs:
                given = ", ".join(inputs) or "none"
                raise FeedError(f"input '{name}' ({dtype}{list(shape)}) is missing; given: {given}")
            array = np.asarray(inputs[name])
            if array.shape != shape or array.dtype != dtype:
                raise FeedError(
                    f"input '{name}' is {array.dtype}{list(array.shape)}, the model wants {dtype}{list(shape)}"
                )
            feeds[name] = array
        if len(inputs) != len(feeds):
            unknown = next(name for name in inputs if name not in feeds)
            raise FeedError(f"the model has no input '{unknown}'; it has {', '.join(feeds) or 'none'}")
        return feeds

    def load(self, feeds: Feeds) -> None:
        """Bring the inputs to where they are read."""
        for load in self._loads:
            array = feeds[load.tensor]
            if load.shares and array.flags.carray:
                if array is not load.bound:
                    self._rebind(load, load.keeper.from_host(array), array)
            else:
                if load.bound is not None:
                    self._rebind(load, load.own, None)
                load.keeper.from_host(array, load.own)

    def _rebind(self, load: _Load, buffer: Buffer, array: np.ndarray | None) -> None:
        """Have the readers of an input read ``buffer`` from now on."""
        for segment in load.readers:
            here = self.program.processors[segment.processor]
            view = buffer if here is load.keeper else here.transfer(buffer, load.keeper)
            self._calls[segment.index].rebind(load.tensor, view)
        load.bound = array

    def store(self, feeds: Feeds) -> Outputs:
        """Return copies of the outputs that no later run overwrites. Raises WrongOutput."""
        outputs = {}
        for name, shape, processor, buffer in self._stores:
            array = processor.to_host(buffer)
            if array.shape != shape:
                declared = self.program.graph.tensor[name]
                raise WrongOutput(f"output '{name}' came back as {list(array.shape)}, the graph declares {declared}")
            outputs[name] = array.copy()
        for name in self._unchanged:
            outputs[name] = feeds[name].copy()
        return outputs

    def close(self) -> None:
        """Free executables and buffers."""
        self._close()
        self.loop = None
        self._calls = []
        self._buffers = {}
        self._loads = []
        self._stores = []
        self._unchanged = []


def allocate(program: Program, memory: MemoryPlan) -> dict[tuple[str, str], Buffer]:
    """A buffer for every (tensor, processor): in its slot's memory, or another processor's view of that."""
    processors = program.processors
    slots = {id(slot): processors[slot.processor].allocate(slot.kind) for slot in memory.slots}
    buffers: dict[tuple[str, str], Buffer] = {}
    for (tensor, processor), place in memory.place.items():
        owner = processors[place.slot.processor]
        buffer = owner.view(slots[id(place.slot)], place.kind)
        if processor != owner.id:
            buffer = processors[processor].transfer(buffer, owner)
        buffers[tensor, processor] = buffer
    return buffers


def copies(
    program: Program, buffers: Mapping[tuple[str, str], Buffer], segment: ProgramSegment
) -> list[Callable[[], Any]]:
    """What brings the tensors to a segment that it does not read where they were made."""
    here = program.processors[segment.processor]
    return [
        partial(
            here.transfer,
            buffers[move.tensor, move.source],
            program.processors[move.source],
            buffers[move.tensor, here.id],
        )
        for move in segment.moves
        if move.copies
    ]


def _check_outputs(program: Program, buffers: Mapping[tuple[str, str], Buffer], segment: ProgramSegment) -> None:
    """Look at the plain tensors a segment made, before anybody reads them. Raises WrongOutput.

    Later runs write into the same buffers and are not looked at: it would cost a copy on some processors.
    """
    here = program.processors[segment.processor]
    for name in segment.segment.exports:
        made, declared = here.to_host(buffers[name, here.id]), program.graph.tensor[name].type
        if made.shape != declared.shape or made.dtype != declared.dtype:
            raise WrongOutput(f"'{here.id}' made {made.dtype}{list(made.shape)} of '{name}', declared {declared}")


def _uses_in_place(processor: Processor, buffer: Buffer) -> bool:
    """Whether ``from_host`` of this processor uses an array's memory as it is."""
    array = np.empty_like(processor.to_host(buffer))
    return array.flags.carray and bool(np.may_share_memory(processor.to_host(processor.from_host(array)), array))


def _check_types(program: Program, segment: ProgramSegment, executable: Executable) -> None:
    """Refuse an executable that does not make what the graph declares."""
    for name in segment.segment.outputs:
        made, declared = executable.output_types.get(name), program.graph.tensor[name].type
        if made is None or (name in segment.segment.exports and made != declared):
            raise WrongOutput(f"'{segment.processor}' makes {made or 'nothing'} of '{name}', the graph says {declared}")


def _close_all(executables: list[Executable], process: int) -> None:
    if process == os.getpid():
        for executable in executables:
            executable.close()
        executables.clear()


_OPEN: weakref.WeakSet[BoundProgram] = weakref.WeakSet()


def _keep_in_child() -> None:
    """A forked child must not free what it got from its parent: runtimes would wait for threads that stayed behind."""
    for bound in _OPEN:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(bound.executables))


os.register_at_fork(after_in_child=_keep_in_child)
