"""What one run of a compiled program writes into: every buffer allocated, every call bound.

Large inputs are not copied: the segments that read them are bound to the caller's own array, which costs a few
microseconds where it is not the array of the run before. It is read during runs only, but held until the next one.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from agent_sdk.engine.arbiter import Arbiter
from agent_sdk.engine.code import MEANWHILE, Instruction
from agent_sdk.engine.compiled import Compiled
from agent_sdk.engine.lanes import NativeLoop, SequentialLoop
from agent_sdk.engine.looks import Looks
from agent_sdk.engine.memory import MemoryPlan, plan_memory
from agent_sdk.engine.ports import NEW, Feeds, Outputs
from agent_sdk.engine.program import Copy, Program, ProgramSegment, Work, memory_of
from agent_sdk.runtimes.base import Bound, BoundCall, Buffer, Executable, Place
from agent_sdk.runtimes.copying import bound_copy, host_array
from agent_sdk.tensors import TorchTensor
from hope_schema import HOST

COPY_BELOW_BYTES = 128 * 1024
"""Inputs smaller than this, times the number of segments that read them, are copied: that is cheaper than binding."""


@dataclass
class _Load:
    """How a graph input reaches the processors that read it.

    Attributes:
        place: the memory that holds it.
        own: a buffer there, used when the caller's array cannot be.
        readers: the segments that read it there.
        in_place: whether the caller's array can be used as it is, and is large enough for that.
        bound: the caller's array that the readers are bound to; None when they are bound to ``own``.
    """

    tensor: str
    place: Place
    own: Buffer
    readers: tuple[ProgramSegment, ...]
    in_place: bool
    bound: np.ndarray | None = None


class _Store(NamedTuple):
    """An output that a segment makes, and where it stands."""

    tensor: str
    place: Place
    buffer: Buffer


@dataclass
class _Meanwhile:
    """What a run has to do while a device computes. The code of its lanes knows this, and not the flight: who drops a
    flight frees its memory at once.

    Attributes:
        taken: by memory, an input that the run took from there.
        handed: by name, an output whose copy was asked for while it was computed.
        asked: what the caller asked for; made once.
    """

    taken: dict[str, TorchTensor] = field(default_factory=dict)
    handed: dict[str, TorchTensor] = field(default_factory=dict)
    asked: Callable[[], object] | None = None

    def begin(self, asked: Callable[[], object] | None) -> None:
        self.taken, self.handed, self.asked = {}, {}, asked

    def made(self, call: BoundCall, exports: Sequence[_Store]) -> None:
        """Ask for copies of outputs that stay where a launched segment makes them, then do what was asked for."""
        for one in exports:
            like = self.taken.get(one.place.memory)
            if like is not None:
                call.come_before(like)
                self.handed[one.tensor] = one.place.hand_out(one.tensor, one.buffer, like)
        asked, self.asked = self.asked, None
        if asked is not None:
            asked()


class Flight:
    """Buffers and bound calls of one program. One run at a time; several flights of one program run at once.

    Args:
        compiled: whose executables it calls.
        arbiter: who grants the resources of its segments.
        cores: the CPUs among which its threads may move where others disturb them.

    Attributes:
        loop: what carries out its lanes.
        memory: which buffer holds which tensor.
        ordinary: whether the latest run's floats were, where a processor is trusted with no others.
        failures: what went wrong outside segments in the run that is under way, first things first.
    """

    def __init__(self, compiled: Compiled, arbiter: Arbiter, cores: frozenset[int]) -> None:
        self.program = program = compiled.program
        self.ordinary = True
        self.failures: list[BaseException] = []
        self._ending = threading.RLock()  # a signal's handler may come while its thread has it
        self._executables = compiled.executables
        self._meanwhile = _Meanwhile()
        self.memory = plan_memory(program, [compiled.types(work) for work in program.work])
        self._buffers = allocate(program, self.memory)
        self._calls = [self._call(segment) for segment in program.segments]
        self._far = [one.index for one in program.segments if one.far]
        self._loads = self._plan_loads()
        self._stores = [
            _Store(name, program.places[memory], self._buffers[name, memory])
            for name in program.model.held
            for memory in [program.memory_of(name)]
        ]
        self._looks = self._plan_looks()
        code = [[self._instruction(work, compiled) for work in row] for row in program.by_lane]
        self.loop: NativeLoop | SequentialLoop = (
            SequentialLoop(code, program.work, program.seats, arbiter)
            if arbiter.library is None
            else NativeLoop(code, program.seats, arbiter, cores, program.workers)
        )

    def _instruction(self, work: Work, compiled: Compiled) -> Instruction:
        call: Bound | None = None
        meanwhile = None
        if isinstance(work, ProgramSegment):
            made = self._calls[work.index]
            call = self._looks.around(work, made)
            exports = [one for one in self._stores if one.tensor in work.segment.exports]
            meanwhile = partial(self._meanwhile.made, made, exports)
        elif isinstance(work, Copy):
            call = self._copy(work, compiled.change(work))
        return Instruction(work, call, meanwhile)

    def _call(self, segment: ProgramSegment) -> BoundCall:
        inputs, outputs = (
            {name: self._buffers[name, self.program.place_of(segment, name)] for name in names}
            for names in (segment.segment.inputs, segment.segment.outputs)
        )
        return self._executables[segment.index].bind(inputs, outputs)

    def _copy(self, copy: Copy, change: Executable | None) -> Bound:
        move, places = copy.move, self.program.places
        source, target = (self._buffers[move.tensor, place] for place in (move.source, move.target))
        if copy.ahead_of is not None:
            return self._executables[copy.ahead_of].ahead(move.tensor, source, target)
        if change is not None:
            return change.bind({"x": source}, {"y": target})
        return bound_copy(source, places[memory_of(move.source)], target, places[memory_of(move.target)])

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
            loads.append(_Load(name, place, own, tuple(segments), large and _uses_in_place(place, own)))
        return loads

    def _plan_looks(self) -> Looks:
        exported = {name for segment in self.program.segments for name in segment.segment.exports}
        return Looks(
            self.program,
            {load.tensor: (load.readers[0], load.own) for load in self._loads if load.place.memory == HOST},
            {name: own for name, place, own in self._stores if name in exported and place.memory == HOST},
            self._calls,
        )

    @property
    def occasions(self) -> int:
        """What is done in the run to come beside what is always done."""
        return MEANWHILE if self._meanwhile.taken or self._meanwhile.asked else 0

    def load(self, feeds: Feeds, meanwhile: Callable[[], object] | None = None) -> None:
        """Bring the inputs to where they are read; ``meanwhile`` is as of ``Turn``."""
        self._meanwhile.begin(meanwhile)
        for load in self._loads:
            given = feeds[load.tensor]
            if isinstance(given, TorchTensor):
                if load.place.take(given, load.own):
                    self._meanwhile.taken[load.place.memory] = given
                    continue
                given = given.array
            array = given
            if array is load.bound:
                continue
            if load.in_place and array.flags.carray:
                self._rebind(load, load.place.from_host(array), array)
            else:
                if load.bound is not None:
                    self._rebind(load, load.own, None)
                load.place.from_host(array, load.own)

    def _rebind(self, load: _Load, buffer: Buffer, array: np.ndarray | None) -> None:
        for segment in load.readers:
            self._calls[segment.index].rebind(load.tensor, buffer)
        if load.place.memory == HOST:
            self._looks.moved(load.tensor, buffer)
        load.bound = array

    def store(self, feeds: Feeds, into: Mapping[str, np.ndarray]) -> Outputs:
        """Return copies of the outputs that no later run overwrites, in arrays of ``into`` if any.

        What was made in a memory from which inputs were taken stays there, as a tensor; what was made in parts is put
        together in an array.

        The arrays have been checked. Where something was not ordinary they stay as they are: they may hold inputs, of
        which somebody else is to make what is right.
        """
        outputs: Outputs = {}
        made: Outputs = {}
        taken, handed_out = self._meanwhile.taken, self._meanwhile.handed
        for name, place, buffer in self._stores:
            like = taken.get(place.memory)
            if like is None:
                made[name] = place.to_host(buffer)
            else:
                made[name] = handed_out.get(name) or place.hand_out(name, buffer, like)
        self._looks.at_others(feeds, made)
        for memory, like in taken.items():
            self.program.places[memory].settle(like)
        self.ordinary = not self._looks.odd
        if not self.ordinary:
            into = NEW
        for name, output in self.program.model.outputs.items():
            if name in made and name not in into:
                outputs[name] = made[name].copy() if isinstance(made[name], np.ndarray) else made[name]
            else:
                array = into[name] if name in into else np.empty(output.type.shape, output.type.dtype)
                outputs[name] = output.fill(array, made)
        return outputs

    def computed_elsewhere(self) -> dict[int, tuple[float, float]]:
        """When other hosts computed segments in the run that has ended, as far as they say so; see ``Trace``."""
        return {index: found for index in self._far if (found := self._calls[index].computed)}

    def fail(self, error: BaseException, of: list[BaseException] | None = None) -> None:
        """End the run, every lane at its next segment; where ``of`` is given, only if these are its failures still."""
        with self._ending:
            if of is None or of is self.failures:
                self.failures.append(error)
                self.loop.stop()

    def over(self) -> None:
        """The run has ended: whoever is about to end it comes too late, and its caller's tensors are the caller's."""
        with self._ending:
            self.failures = []
        self._meanwhile.begin(None)

    def close(self) -> None:
        """Let go of the buffers and calls; no run may begin in it any more."""
        del self.loop, self._looks
        self._calls = []
        self._buffers = {}
        self._loads = []
        self._stores = []


def allocate(program: Program, memory: MemoryPlan) -> dict[tuple[str, str], Buffer]:
    """A buffer for every (tensor, place), in its slot."""
    places = {id(slot): program.processors[slot.processor].place for slot in memory.slots}
    # What stands on the host and is copied from or to a memory elsewhere stands where that reaches it best.
    moves = (work.move for work in program.work if isinstance(work, Copy))
    peers = {
        id(memory.spot[move.tensor, here].slot): program.places[memory_of(there)]
        for move in moves
        if not move.changes_layout
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


def _uses_in_place(place: Place, buffer: Buffer) -> bool:
    """Whether ``from_host`` of this place uses an array's memory as it is."""
    array = np.empty_like(place.to_host(buffer))
    return array.flags.carray and bool(np.may_share_memory(place.to_host(place.from_host(array)), array))
