"""A program with its memory: every segment compiled, every buffer allocated, every call bound.

Large inputs, and those that are given again and again, are not copied: the segments that read them are bound to the
caller's own array, which costs a few microseconds where it is not the array of the run before. It is read during runs
only, but held until the next one.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from agent_sdk.device.cores import bound_to
from agent_sdk.engine.errors import FeedError
from agent_sdk.engine.loops import Instruction, Loop, loop_for
from agent_sdk.engine.memory import MemoryPlan, plan_memory
from agent_sdk.engine.program import Program, ProgramSegment, Work
from agent_sdk.forking import Forks, keep, watch_forks
from agent_sdk.runtimes.base import Bound, BoundCall, Buffer, Executable, Place, Processor, WrongOutput
from agent_sdk.runtimes.copying import bound_copy, host_array
from hope_schema import HOST

COPY_BELOW_BYTES = 128 * 1024
"""Inputs smaller than this, times the number of segments that read them, are copied, unless the same array comes again:
that is cheaper than binding."""

Feeds = dict[str, np.ndarray]
Outputs = dict[str, np.ndarray]
NEW: Mapping[str, np.ndarray] = MappingProxyType({})
"""No arrays of the caller's: every output goes to a new one."""


@dataclass
class _Load:
    """How a graph input reaches the processors that read it.

    Attributes:
        tensor: its name.
        place: the memory that holds it.
        own: a buffer there, used when the caller's array cannot be.
        readers: the segments that read it there.
        shares: whether the caller's array can be used in place.
        large: whether that is worth it for an array that was not there the run before.
        seen: the caller's array of the run before.
        bound: the caller's array that the readers are bound to; None when they are bound to ``own``.
    """

    tensor: str
    place: Place
    own: Buffer
    readers: tuple[ProgramSegment, ...]
    shares: bool
    large: bool
    seen: np.ndarray | None = None
    bound: np.ndarray | None = None


class BoundProgram(Forks):
    """Executables, buffers and bound calls of one program. One run at a time.

    Args:
        program: what is bound.
        library: with what its lanes run outside the interpreter; None where they run inside it.

    Attributes:
        program: what was bound.
        loop: what carries out its lanes.
        memory: which buffer holds which tensor.
        executables: the compiled segments, by index; empty once closed.

    Raises ProcessorError when a processor refuses a segment; what was compiled before is freed.
    """

    def __init__(self, program: Program, library: ctypes.CDLL | None) -> None:
        self.program = program
        self.executables: list[Executable] = []
        self.loop: Loop | None = None
        # Whatever nobody holds any more is freed as if it had been closed.
        self._close = weakref.finalize(self, _close_all, self.executables, os.getpid())
        watch_forks(self)
        try:
            for segment in program.segments:
                processor = program.processors[segment.processor]
                with bound_to(_near(processor)):
                    executable = processor.compile(segment.segment)
                self.executables.append(executable)
                _check_types(program, segment, executable)
            self.memory = plan_memory(
                program,
                [{**executable.input_types, **executable.output_types} for executable in self.executables],
            )
            self._buffers = allocate(program, self.memory)
            self._calls = [self._call(segment) for segment in program.segments]
            self.loop = loop_for(
                [[self._instruction(work) for work in row] for row in program.by_lane],
                [first for first, _ in program.seats],
                library,
            )
            self._loads = self._plan_loads()
        except BaseException:
            self.close()
            raise
        graph = program.graph
        self._stores = [
            (name, graph.tensor[name].shape, program.places[memory], self._buffers[name, memory])
            for name in graph.outputs
            if name in graph.producer
            for memory in [program.memory_of(name)]
        ]
        self._unchanged = [name for name in graph.outputs if name not in graph.producer]
        self._wanted = {name: (graph.tensor[name].shape, np.dtype(graph.tensor[name].dtype)) for name in graph.inputs}

    def _instruction(self, work: Work) -> Instruction:
        segment = work if isinstance(work, ProgramSegment) else None
        return Instruction(
            work,
            cores=self.program.rebinds.get(work.index, frozenset()) if segment else frozenset(),
            copies=tuple(copies(self.program, self._buffers, work)),
            call=self._calls[segment.index] if segment else None,
            check=partial(_check_outputs, self.program, self._buffers, segment) if segment else None,
        )

    def _call(self, segment: ProgramSegment) -> BoundCall:
        memory = self.program.processors[segment.processor].place.memory
        return self.executables[segment.index].bind(
            {name: self._buffers[name, memory] for name in segment.segment.inputs},
            {name: self._buffers[name, memory] for name in segment.segment.outputs},
        )

    def _plan_loads(self) -> list[_Load]:
        loads = []
        readers: dict[tuple[str, str], list[ProgramSegment]] = {}
        for segment in self.program.segments:
            memory = self.program.processors[segment.processor].place.memory
            for name in segment.segment.inputs:
                if self.program.home[name] == HOST:
                    readers.setdefault((name, memory), []).append(segment)
        for (name, memory), segments in readers.items():
            place, own = self.program.places[memory], self._buffers[name, memory]
            large = self.program.graph.tensor[name].bytes >= COPY_BELOW_BYTES * len(segments)
            loads.append(_Load(name, place, own, tuple(segments), _uses_in_place(place, own), large))
        return loads

    def check(self, inputs: Mapping[str, Any]) -> Feeds:
        """Return the inputs as arrays. Raises FeedError for wrong names, shapes or element types."""
        feeds = {}
        for name, (shape, dtype) in self._wanted.items():
            if name not in inputs:
                others = ", ".join(inputs) or "none"
                raise FeedError(f"input '{name}' ({dtype}{list(shape)}) is missing; given: {others}")
            given = inputs[name]
            array = np.asarray(given)
            if type(given) is list and np.can_cast(array.dtype, dtype, "same_kind"):
                array = array.astype(dtype)  # numbers have no width; ONNX Runtime takes them too
            if array.shape != shape or (array.dtype is not dtype and array.dtype != dtype):
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
            if array is load.bound:
                continue
            if load.shares and (load.large or array is load.seen) and array.flags.carray:
                self._rebind(load, load.place.from_host(array), array)
            else:
                if load.bound is not None:
                    self._rebind(load, load.own, None)
                load.place.from_host(array, load.own)
            load.seen = array

    def _rebind(self, load: _Load, buffer: Buffer, array: np.ndarray | None) -> None:
        """Have the readers of an input read ``buffer`` from now on."""
        for segment in load.readers:
            self._calls[segment.index].rebind(load.tensor, buffer)
        load.bound = array

    def check_outputs(self, into: Mapping[str, np.ndarray]) -> None:
        """Raise FeedError where an output cannot be written into the array that is given for it."""
        graph = self.program.graph
        for name, array in into.items():
            if name not in graph.outputs:
                raise FeedError(f"the model has no output '{name}'; it has {', '.join(graph.outputs)}")
            check_output(name, graph.tensor[name].shape, np.dtype(graph.tensor[name].dtype), array)

    def store(self, feeds: Feeds, into: Mapping[str, np.ndarray]) -> Outputs:
        """Return copies of the outputs that no later run overwrites, in arrays of ``into`` if any. Raises WrongOutput.

        The arrays have been checked.
        """
        outputs = {}
        for name, shape, place, buffer in self._stores:
            array = place.to_host(buffer)
            if array.shape != shape:
                declared = self.program.graph.tensor[name]
                raise WrongOutput(f"output '{name}' came back as {list(array.shape)}, the graph declares {declared}")
            outputs[name] = array.copy() if name not in into else _written(array, into[name])
        for name in self._unchanged:
            outputs[name] = feeds[name].copy() if name not in into else _written(feeds[name], into[name])
        return outputs

    def in_child(self) -> None:
        """What is compiled stays."""
        keep(self.executables)

    def close(self) -> None:
        """Free executables and buffers."""
        self._close()
        self.loop = None
        self._calls = []
        self._buffers = {}
        self._loads = []
        self._stores = []
        self._unchanged = []


def check_output(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], array: np.ndarray) -> None:
    """Raise FeedError where an output of this shape and type cannot be written into an array."""
    if array.shape != shape or array.dtype != dtype or not array.flags.writeable:
        found = f"{array.dtype}{list(array.shape)}{'' if array.flags.writeable else ', read-only'}"
        raise FeedError(f"output '{name}' is {dtype}{list(shape)}; the array given for it is {found}")


def _written(array: np.ndarray, into: np.ndarray) -> np.ndarray:
    into[...] = array
    return into


@cache
def memory_nodes() -> int:
    """How many parts this machine's memory has that are not equally near to all cores."""
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))


def _near(processor: Processor) -> frozenset[int]:
    """Where to compile for a processor, so that the weights a runtime packs stand in its cores' own memory."""
    return processor.caller_cores & os.sched_getaffinity(0) if memory_nodes() > 1 else frozenset()


def allocate(program: Program, memory: MemoryPlan) -> dict[tuple[str, str], Buffer]:
    """A buffer for every (tensor, memory), in its slot."""
    places = {id(slot): program.processors[slot.processor].place for slot in memory.slots}
    # What stands on the host and is copied from or to a memory elsewhere stands where that reaches it best.
    peers = {
        id(memory.spot[move.tensor, here].slot): program.places[there]
        for work in program.work
        for move in work.moves
        for here, there in ((move.source, move.target), (move.target, move.source))
        if here == HOST
    }
    slots = {
        id(slot): host_array(slot.kind, peers[id(slot)]) if id(slot) in peers else places[id(slot)].allocate(slot.kind)
        for slot in memory.slots
    }
    return {
        key: places[id(spot.slot)].view(slots[id(spot.slot)], spot.kind, spot.offset)
        for key, spot in memory.spot.items()
    }


def copies(program: Program, buffers: Mapping[tuple[str, str], Buffer], work: Work) -> list[Bound]:
    """What brings tensors from one memory to another."""
    return [
        bound_copy(
            buffers[move.tensor, move.source],
            program.places[move.source],
            buffers[move.tensor, move.target],
            program.places[move.target],
        )
        for move in work.moves
    ]


def _check_outputs(program: Program, buffers: Mapping[tuple[str, str], Buffer], segment: ProgramSegment) -> None:
    """Look at the plain tensors a segment made, before anybody reads them. Raises WrongOutput.

    Later runs write into the same buffers and are not looked at: it would cost a copy on some processors.
    """
    place = program.processors[segment.processor].place
    for name in segment.segment.exports:
        made, declared = place.to_host(buffers[name, place.memory]), program.graph.tensor[name].type
        if made.shape != declared.shape or made.dtype != declared.dtype:
            raise WrongOutput(
                f"'{segment.processor}' made {made.dtype}{list(made.shape)} of '{name}', declared {declared}"
            )


def _uses_in_place(place: Place, buffer: Buffer) -> bool:
    """Whether ``from_host`` of this place uses an array's memory as it is."""
    array = np.empty_like(place.to_host(buffer))
    return array.flags.carray and bool(np.may_share_memory(place.to_host(place.from_host(array)), array))


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
