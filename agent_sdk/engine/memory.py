"""Which buffer holds which tensor: lifetimes planned once, so that a run allocates nothing.

Memory is taken over by a later tensor as soon as everyone who touches it is *known* to be finished (by the program's
order and waits, not by luck): the tensor cache frees a tensor after its last reader on that processor (HOPE section
4.3). The same memory serves every later run. What was in use a moment ago is still in the CPU's caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent_sdk.engine.program import Program, ProgramSegment, Work
from hope_schema import TensorType


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

    def free_for(self, work: Work) -> bool:
        """Whether everyone who touches it is finished when ``work`` starts."""
        return not self.kept and all(work.finished[lane] >= count for lane, count in self.reach.items())


@dataclass(frozen=True)
class Spot:
    """Where a tensor is: in which slot, and its physical shape and element type."""

    slot: Slot
    kind: TensorType


@dataclass(frozen=True)
class MemoryPlan:
    """Slots, and the spot of every (tensor, memory) that a segment reads or writes."""

    slots: tuple[Slot, ...]
    spot: Mapping[tuple[str, str], Spot]

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
    spot: dict[tuple[str, str], Spot] = {}
    last = set(graph.outputs)
    readers = _readers(program)

    def claim(tensor: str, memory: str, kind: TensorType, work: Work) -> Slot:
        free = [slot for slot in slots if slot.processor == work.processor and slot.free_for(work)]
        if free:
            # The one that fits best, the latest made of equals; where all are too small, the largest grows.
            slot = min(reversed(free), key=lambda one: (one.kind.bytes < kind.bytes, abs(one.kind.bytes - kind.bytes)))
            if slot.kind.bytes < kind.bytes:
                slot.kind = kind
        else:
            slot = Slot(work.processor, kind)
            slots.append(slot)
        slot.tensors.append(tensor)
        slot.reach = {work.lane: work.position + 1}
        for reader in readers.get((tensor, memory), ()):
            slot.reach[reader.lane] = max(slot.reach.get(reader.lane, 0), reader.position + 1)
        spot[tensor, memory] = Spot(slot, kind)
        return slot

    for work in program.work:
        memory = program.processors[work.processor].place.memory
        for move in work.moves:
            claim(move.tensor, move.target, graph.tensor[move.tensor].type, work)
        if not isinstance(work, ProgramSegment):
            continue
        for name in work.segment.inputs:
            if (name, memory) not in spot:
                # A graph input. Not taken over by others: the caller fills it before anything runs.
                slots.append(Slot(work.processor, graph.tensor[name].type, [name], kept=True))
                spot[name, memory] = Spot(slots[-1], graph.tensor[name].type)
        for name, kind in output_types[work.index].items():
            claim(name, memory, kind, work).kept |= name in last
    return MemoryPlan(tuple(slots), spot)


def _readers(program: Program) -> dict[tuple[str, str], list[Work]]:
    """Who reads the tensors in each memory: segments that compute there, and those who copy from it."""
    readers: dict[tuple[str, str], list[Work]] = {}
    for work in program.work:
        for move in work.moves:
            readers.setdefault((move.tensor, move.source), []).append(work)
        if isinstance(work, ProgramSegment):
            memory = program.processors[work.processor].place.memory
            for name in work.segment.inputs:
                readers.setdefault((name, memory), []).append(work)
    return readers
