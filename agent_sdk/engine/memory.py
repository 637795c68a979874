"""Which buffer holds which tensor: lifetimes planned once, so that a run allocates nothing.

Memory is taken over by a later tensor as soon as everyone who touches it is *known* to be finished (by the program's
order and waits, not by luck): the tensor cache frees a tensor after its last reader on that processor (HOPE section
4.3). The same memory serves every later run. What was in use a moment ago is still in the CPU's caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent_sdk.engine.program import Program, ProgramSegment
from hope_schema import HOST, TensorType


@dataclass
class Slot:
    """Memory of one or, one after another, several tensors on one processor.

    Attributes:
        processor: id of the processor that allocates it.
        kind: physical shape and element type of the largest of them.
        tensors: the tensors it holds, in the order they take it over.
        reach: per lane, how many segments must be finished before another tensor may take it over.
        kept: True when it holds a graph input or output: never taken over.
    """

    processor: str
    kind: TensorType
    tensors: list[str] = field(default_factory=list)
    reach: dict[int, int] = field(default_factory=dict)
    kept: bool = False

    def free_for(self, segment: ProgramSegment) -> bool:
        """Whether everyone who touches it is finished when ``segment`` starts."""
        return not self.kept and all(segment.finished[lane] >= count for lane, count in self.reach.items())


@dataclass(frozen=True)
class Place:
    """Where a tensor is: in which slot, and its physical shape and element type."""

    slot: Slot
    kind: TensorType


@dataclass(frozen=True)
class MemoryPlan:
    """Slots, and the place of every (tensor, processor) that a segment reads or writes.

    A tensor that is viewed or handed over without a copy has the place where it is on the processor that produced it.
    """

    slots: tuple[Slot, ...]
    place: Mapping[tuple[str, str], Place]

    def allocated_bytes(self) -> dict[str, int]:
        """Bytes of all slots per processor: the sum of the tensors live at the peak and of buffers kept for reuse."""
        total: dict[str, int] = {}
        for slot in self.slots:
            total[slot.processor] = total.get(slot.processor, 0) + slot.kind.bytes
        return total


def plan_memory(program: Program, output_types: Sequence[Mapping[str, TensorType]]) -> MemoryPlan:
    """Assign slots in one pass over the segments.

    Args:
        program: what runs, in which order.
        output_types: for each segment the physical types of its outputs.
    """
    graph = program.graph
    slots: list[Slot] = []
    place: dict[tuple[str, str], Place] = {}
    last = set(graph.outputs)
    readers = _readers(program)

    def claim(tensor: str, kind: TensorType, segment: ProgramSegment) -> Slot:
        free = [slot for slot in slots if slot.processor == segment.processor and slot.free_for(segment)]
        if free:
            # The one that fits best, the latest made of equals; where all are too small, the largest grows.
            slot = min(reversed(free), key=lambda one: (one.kind.bytes < kind.bytes, abs(one.kind.bytes - kind.bytes)))
            if slot.kind.bytes < kind.bytes:
                slot.kind = kind
        else:
            slot = Slot(segment.processor, kind)
            slots.append(slot)
        slot.tensors.append(tensor)
        slot.reach = {segment.lane: segment.position + 1}
        for reader in readers.get((tensor, segment.processor), ()):
            slot.reach[reader.lane] = max(slot.reach.get(reader.lane, 0), reader.position + 1)
        place[tensor, segment.processor] = Place(slot, kind)
        return slot

    for segment in program.segments:
        for move in segment.moves:
            if move.copies:
                claim(move.tensor, graph.tensor[move.tensor].type, segment)
            elif move.source == HOST and move.keeper == move.target:
                # Not taken over by others: the caller fills it before anything runs.
                kind = graph.tensor[move.tensor].type
                slots.append(Slot(move.target, kind, [move.tensor], kept=True))
                place[move.tensor, move.target] = Place(slots[-1], kind)
            else:
                place[move.tensor, move.target] = place[move.tensor, move.keeper]
        for name, kind in output_types[segment.index].items():
            claim(name, kind, segment).kept |= name in last
    return MemoryPlan(tuple(slots), place)


def _readers(program: Program) -> dict[tuple[str, str], list[ProgramSegment]]:
    """Who reads the memory of (tensor, owning processor): its own segments, viewers, and those who copy from it."""
    owner: dict[tuple[str, str], str] = {}
    readers: dict[tuple[str, str], list[ProgramSegment]] = {}
    for segment in program.segments:
        for move in segment.moves:
            if move.source == HOST:
                continue
            owner[move.tensor, move.target] = move.keeper
            if move.copies:
                readers.setdefault((move.tensor, move.source), []).append(segment)
        for name in segment.segment.inputs:
            processor = owner.get((name, segment.processor), segment.processor)
            readers.setdefault((name, processor), []).append(segment)
    return readers
