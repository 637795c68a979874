"""A program: everything about running a plan on this device that is known before the run, as plain data.

Work is queued. Processors whose resources overlap exclude each other, so those that share a leading resource
(``ort@0``, ``ov@0`` and the gang ``ort@0-1``) share one queue, a *lane*: one thread that serves them in plan order. A
change of processor inside a lane costs no hand-over between threads. Whatever else carries tensors (a copy engine, a
link) is a queue too. An event says that a queue has finished so much; work waits for events of other queues.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from agent_sdk.engine.views import View
from agent_sdk.model import Model
from agent_sdk.runtimes.base import Place, Processor, Segment
from hope_schema import HOST, ModelGraph, Plan
from hope_schema.profile import Precision


@dataclass(frozen=True)
class Event:
    """That a queue has finished its first ``count`` pieces of work."""

    lane: int
    count: int


@dataclass(frozen=True)
class Move:
    """A tensor's way from one place to another: a memory, or a layout within one.

    ``over`` names what carries it; None is the reader.
    """

    tensor: str
    source: str
    target: str
    over: str | None = None

    @property
    def changes_layout(self) -> bool:
        """Whether it stays in one memory."""
        return memory_of(self.source) == memory_of(self.target)


def memory_of(place: str) -> str:
    return place.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class Work:
    """A piece of work in a queue.

    Attributes:
        lane: index of its queue.
        position: place in its queue.
        processor: id of the processor it is for.
        resources: what it holds meanwhile.
        either: whether one of these will do, or a part of one, whichever is free.
        cores: the CPUs that its thread is bound to; empty: any.
        moves: whether its thread is on others before.
        waits: what must have happened in other queues.
        lent: the end of what another queue last did on the resource that leads this one, since this one's work before;
            None where nobody used it. Until then this queue's thread has no core to wait on.
        finished: per queue, how much is known to be finished when this starts.
        index: place in ``Program.segments``; -1 for what only copies.
        far: whether it is for another host, and goes over a link.
    """

    lane: int
    position: int
    processor: str
    resources: tuple[str, ...] = ()
    either: bool = False
    cores: frozenset[int] = frozenset()
    moves: bool = False
    waits: tuple[Event, ...] = ()
    lent: Event | None = None
    finished: tuple[int, ...] = ()
    index: int = -1
    far: bool = False

    @property
    def ops(self) -> tuple[str, ...]:
        """What it does, as told to people: source op ids, in order."""
        return ()

    @property
    def comes_late(self) -> bool:
        """Whether it may begin later than the work before it ends, so that its beginning is noted."""
        return bool(self.waits) or self.moves


@dataclass(frozen=True, kw_only=True)
class Copy(Work):
    """One move, on its reader's time or in a queue of what carries it.

    ``changer`` changes the layout, where that is what the move does. ``ahead_of`` is the segment that reads first what
    the link to another host carries by itself, before that one's turn; None where its reader's request takes it along.
    """

    move: Move
    changer: Processor | None = None
    ahead_of: int | None = None

    @property
    def ops(self) -> tuple[str, ...]:
        return (f"copying {self.move.tensor} to {self.move.target}",)


@dataclass(frozen=True, kw_only=True)
class ProgramSegment(Work):
    """One launch.

    Attributes:
        segment: what the processor compiles.
        steps: ids of the plan's steps, in order.
        start_us: predicted start: the plan's, of the first step.
        finish_us: predicted finish: the plan's, of the last step.
    """

    segment: Segment
    steps: tuple[int, ...]
    start_us: float
    finish_us: float

    @property
    def ops(self) -> tuple[str, ...]:
        return self.segment.ops


@dataclass(frozen=True)
class Program:
    """Everything about a run that is known before it.

    Attributes:
        plan: where it comes from.
        processors: the processors that run at least one segment, by id.
        lanes: leading resource of each lane, or what carries the copies of a queue.
        work: everything there is to do, in a topological order.
        home: tensor to the processor that produces it, for tensors that cross a segment's border; ``host`` for
            graph inputs.
        dead: ops left out because no graph output depends on them.
        floats: CPUs among which the one thread may move where a single core computes everything: all its equals, one of
            which the run holds, whichever is free. Empty where threads stay where they are bound.
        views: the tensors that share memory with parts of themselves, or with what they are a part of.
    """

    plan: Plan
    model: Model
    processors: Mapping[str, Processor]
    lanes: tuple[str, ...]
    work: tuple[Work, ...]
    home: Mapping[str, str]
    dead: tuple[str, ...] = ()
    floats: frozenset[int] = frozenset()
    views: Mapping[str, View] = field(default_factory=dict)

    @cached_property
    def segments(self) -> tuple[ProgramSegment, ...]:
        return tuple(work for work in self.work if isinstance(work, ProgramSegment))

    @cached_property
    def on_host(self) -> bool:
        """Whether all of it computes in this host's memory."""
        return all(own.spec.memory == HOST for own in self.processors.values())

    @cached_property
    def trusting(self) -> bool:
        """Whether a part of it is trusted with some values only: another runtime than the reference computes it, or it
        is one of parts.
        """
        return self.model.uneven or any(own.trusted is not None for own in self.processors.values())

    @property
    def precisions(self) -> set[Precision]:
        """What float32 is rounded to on the way."""
        crosses: set[Precision] = {"float16"} if self.halved_to else set()
        return crosses | {own.spec.precision for own in self.processors.values()}

    @property
    def halved_to(self) -> tuple[str, ...]:
        return tuple(sorted({self.processors[own.processor].spec.host for own in self.segments if own.segment.halved}))

    @cached_property
    def divided(self) -> frozenset[str]:
        """The resources of which its work holds parts: others may compute there at the same time."""
        shared = (own for own in self.processors.values() if own.at_once > 1)
        return frozenset(resource for own in shared for resource in own.spec.resources)

    @cached_property
    def by_lane(self) -> tuple[tuple[Work, ...], ...]:
        rows: list[list[Work]] = [[] for _ in self.lanes]
        for work in self.work:
            rows[work.lane].append(work)
        return tuple(tuple(row) for row in rows)

    @cached_property
    def starts_ns(self) -> tuple[np.ndarray, ...]:
        """Per lane and piece of work when the plan starts it, nanoseconds: offsets of keys at the arbiter."""
        found = []
        for row in self.by_lane:
            at, starts = max(own.finish_us for own in self.segments), []
            for work in reversed(row):  # what only copies is as urgent as what follows it in its queue
                at = work.start_us if isinstance(work, ProgramSegment) else at
                starts.append(round(at * 1e3))
            found.append(np.array(starts[::-1], np.int64))
        return tuple(found)

    @cached_property
    def places(self) -> Mapping[str, Place]:
        """By memory, a place there."""
        return {processor.place.memory: processor.place for processor in self.processors.values()}

    def memory_of(self, tensor: str) -> str:
        """The memory in which a tensor that crosses a segment's border comes to exist."""
        home = self.home[tensor]
        return HOST if home == HOST else self.processors[home].place.memory

    def place_of(self, segment: ProgramSegment, tensor: str) -> str:
        """Where a segment reads a tensor, or leaves it."""
        place, own = self.processors[segment.processor].place, segment.segment
        return place.memory if tensor in own.imports | own.exports else place.name

    def owner(self, work: Work) -> str:
        """The processor that allocates what a piece of work writes: its own, or the tensor's maker on its way there."""
        own = self.processors[work.processor].place.memory
        if isinstance(work, Copy) and memory_of(work.move.target) != own:
            return self.home[work.move.tensor]
        return work.processor

    def parts(self, tensor: str) -> tuple[str, ...]:
        """The tensors that segments write so that this one is there: itself, if it shares no memory with others."""
        return self.views[tensor].parts if tensor in self.views else (tensor,)

    def storage(self, tensor: str) -> str:
        """The name of the memory in which a tensor stands: its own, if it shares none with others."""
        return self.views[tensor].storage if tensor in self.views else tensor

    @cached_property
    def seats(self) -> tuple[frozenset[int], ...]:
        """Per lane the CPUs that its thread is bound to at its first segment."""
        return (self.floats,) if self.floats else tuple(row[0].cores for row in self.by_lane)

    @cached_property
    def workers(self) -> tuple[frozenset[int], ...]:
        """Per lane the CPUs that other threads of its gangs are bound to."""
        return tuple(
            frozenset[int]().union(*(self.processors[work.processor].worker_cores for work in row))
            for row in self.by_lane
        )

    @property
    def graph(self) -> ModelGraph:
        return self.model.graph

    @property
    def processors_used(self) -> tuple[str, ...]:
        return tuple(processor for processor in self.plan.processors if processor in self.processors)


def lane_of(processor: Processor) -> str:
    """Return the leading resource of a processor, after which the thread that serves it is named."""
    return processor.spec.resources[0]
