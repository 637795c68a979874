"""Which buffer holds which tensor: lifetimes planned once, so that a run allocates nothing.

Memory is taken over by a later tensor as soon as everyone who touches it is *known* to be finished (by the program's
order and waits, not by luck): the tensor cache frees a tensor after its last reader on that processor (HOPE section
4.3). The same memory serves every later run. What was in use a moment ago is still in the CPU's caches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent_sdk.engine.program import Copy, Program, ProgramSegment, Work
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
    """Where a tensor is: in which slot, from which byte on, and its physical shape and element type."""

    slot: Slot
    kind: TensorType
    offset: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """Slots, and the spot of every (tensor, place) that somebody reads or writes."""

    slots: tuple[Slot, ...]
    spot: Mapping[tuple[str, str], Spot]


def plan_memory(program: Program, types: Sequence[Mapping[str, TensorType]]) -> MemoryPlan:
    """Assign slots in one pass over the work.

    Args:
        types: for each piece of work the physical types of what it reads and writes; of a copy, of what it makes.
    """
    graph = program.graph
    slots: list[Slot] = []
    spot: dict[tuple[str, str], Spot] = {}
    held: dict[tuple[str, str], Slot] = {}
    last = {program.storage(name) for name in program.model.held}
    writers, readers = _users(program)
    whole = _whole(program, types)

    def claim(tensor: str, place: str, kind: TensorType, work: Work) -> Slot:
        storage = program.storage(tensor)
        if (storage, place) not in held:
            held[storage, place] = slot_for(storage, place, whole.get(storage, kind), work)
        slot = held[storage, place]
        spot[tensor, place] = Spot(slot, kind, _offset(program, tensor, kind))
        return slot

    def slot_for(storage: str, place: str, kind: TensorType, work: Work) -> Slot:
        makers = writers[storage, place]
        processor = program.owner(work)
        free = [slot for slot in slots if slot.processor == processor and all(slot.free_for(maker) for maker in makers)]
        if free:
            # The one that fits best, the latest made of equals; where all are too small, the largest grows.
            slot = min(reversed(free), key=lambda one: (one.kind.bytes < kind.bytes, abs(one.kind.bytes - kind.bytes)))
            if slot.kind.bytes < kind.bytes:
                slot.kind = kind
        else:
            slot = Slot(processor, kind)
            slots.append(slot)
        slot.tensors.append(storage)
        slot.reach = {}
        for user in (*makers, *readers.get((storage, place), ())):
            slot.reach[user.lane] = max(slot.reach.get(user.lane, 0), user.position + 1)
        return slot

    for work, kinds in zip(program.work, types, strict=True):
        if isinstance(work, Copy):
            claim(work.move.tensor, work.move.target, kinds[work.move.tensor], work)
        if not isinstance(work, ProgramSegment):
            continue
        for name in work.segment.inputs:
            place = program.place_of(work, name)
            if (name, place) in spot:
                continue
            if name in program.views:
                claim(name, place, kinds[name], work)
            else:
                # A graph input. Not taken over by others: the caller fills it before anything runs.
                slots.append(Slot(work.processor, graph.tensor[name].type, [name], kept=True))
                spot[name, place] = Spot(slots[-1], graph.tensor[name].type)
        for name in work.segment.outputs:
            claim(name, program.place_of(work, name), kinds[name], work).kept |= program.storage(name) in last
    for name in program.views.keys() & set(program.model.held):
        memory = program.memory_of(name)
        kind = graph.tensor[name].type
        spot[name, memory] = Spot(held[program.storage(name), memory], kind, _offset(program, name, kind))
    return MemoryPlan(tuple(slots), spot)


def _offset(program: Program, tensor: str, kind: TensorType) -> int:
    start = program.views[tensor].start if tensor in program.views else 0
    return TensorType(shape=(start,), dtype=kind.dtype).bytes


def _whole(program: Program, types: Sequence[Mapping[str, TensorType]]) -> dict[str, TensorType]:
    """What the memory of tensors has to hold that share it."""
    found: dict[str, TensorType] = {}
    for names in types:
        for name in names.keys() & program.views.keys():
            view, kind = program.views[name], names[name]
            before = found[view.storage].elements if view.storage in found else 0
            end = max(before, view.start + kind.elements)
            found[view.storage] = TensorType(shape=(end,), dtype=kind.dtype)
    return found


_Users = dict[tuple[str, str], list[Work]]
"""By what memory holds, and where it is."""


def _users(program: Program) -> tuple[_Users, _Users]:
    """Who makes or brings, and who reads or copies, what stands in each place."""
    writers: _Users = {}
    readers: _Users = {}
    for work in program.work:
        if isinstance(work, Copy):
            storage = program.storage(work.move.tensor)
            writers.setdefault((storage, work.move.target), []).append(work)
            readers.setdefault((storage, work.move.source), []).append(work)
        elif isinstance(work, ProgramSegment):
            for users, names in ((readers, work.segment.inputs), (writers, work.segment.outputs)):
                for name in names:
                    users.setdefault((program.storage(name), program.place_of(work, name)), []).append(work)
    return writers, readers
