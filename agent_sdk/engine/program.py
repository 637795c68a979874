"""A program: everything about running a plan on this device that is known before the run.

Processors whose resources overlap exclude each other, so those that share a leading resource (``ort@0``,
``ov@0`` and the gang ``ort@0-1``) share one *lane*: one thread that serves them in plan order. A change of
processor inside a lane costs no hand-over between threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from agent_sdk.runtimes.base import Processor, Segment
from hope_schema import HOST, ModelGraph, Plan

if TYPE_CHECKING:
    from agent_sdk.model import Model


@dataclass(frozen=True)
class Wait:
    """A point where a lane waits until another lane has finished its first ``count`` segments."""

    lane: int
    count: int


@dataclass(frozen=True)
class Move:
    """A tensor that a segment, as the first reader on its processor, brings there.

    ``keeper`` is the processor that owns the memory read at the target: the target itself where the tensor is
    copied, another where the memory is shared or the layout native to both.
    """

    tensor: str
    source: str
    target: str
    keeper: str

    @property
    def copies(self) -> bool:
        """Whether the segment copies it. Graph inputs are loaded before the run starts instead."""
        return self.keeper == self.target and self.source != HOST


@dataclass(frozen=True)
class ProgramSegment:
    """One launch.

    Attributes:
        index: place in ``Program.segments``.
        lane: index of its lane.
        position: place among the segments of its lane.
        processor: id of the processor.
        segment: what the processor compiles.
        steps: ids of the plan's steps, in order.
        waits: what must have happened on other lanes.
        moves: the transfers it pays for; those from ``host`` happen before the run starts.
        finished: per lane, how many segments are known to be finished when this one starts.
        start_us: predicted start: the plan's, of the first step.
        finish_us: predicted finish: the plan's, of the last step.
    """

    index: int
    lane: int
    position: int
    processor: str
    segment: Segment
    steps: tuple[int, ...]
    waits: tuple[Wait, ...]
    moves: tuple[Move, ...]
    finished: tuple[int, ...]
    start_us: float
    finish_us: float

    @property
    def ops(self) -> tuple[str, ...]:
        """Source op ids, in order."""
        return self.segment.ops


@dataclass(frozen=True)
class Program:
    """Everything about a run that is known before it.

    Attributes:
        plan: where it comes from.
        model: the model it computes.
        processors: the processors that run at least one segment, by id.
        lanes: leading resource of each lane.
        segments: all segments in a topological order.
        home: tensor to the processor that produces it, for tensors that cross a segment's border; ``host`` for
            graph inputs.
        dead: ops left out because no graph output depends on them.
        floats: CPUs among which the one thread may move where a single core computes everything: all its equals, so
            that the kernel can keep it out of the way of other work, that of other sessions too, which may have
            occupied any of these CPUs but the processor's own. Empty where threads stay where they are bound.
    """

    plan: Plan
    model: Model
    processors: Mapping[str, Processor]
    lanes: tuple[str, ...]
    segments: tuple[ProgramSegment, ...]
    home: Mapping[str, str]
    dead: tuple[str, ...] = ()
    floats: frozenset[int] = frozenset()

    @cached_property
    def by_lane(self) -> tuple[tuple[ProgramSegment, ...], ...]:
        """The segments of each lane, in execution order."""
        rows: list[list[ProgramSegment]] = [[] for _ in self.lanes]
        for segment in self.segments:
            rows[segment.lane].append(segment)
        return tuple(tuple(row) for row in rows)

    @cached_property
    def lane_resources(self) -> tuple[tuple[str, ...], ...]:
        """Every resource that each lane's segments occupy."""
        return tuple(
            tuple(sorted({resource for s in row for resource in self.processors[s.processor].spec.resources}))
            for row in self.by_lane
        )

    @cached_property
    def seats(self) -> tuple[tuple[frozenset[int], frozenset[int]], ...]:
        """Per lane the CPUs that its thread is bound to at its first segment, and at its last."""
        if self.floats:
            return ((self.floats, self.floats),)
        ends = [(self.processors[row[0].processor], self.processors[row[-1].processor]) for row in self.by_lane]
        return tuple((first.caller_cores, last.caller_cores) for first, last in ends)

    @cached_property
    def rebinds(self) -> Mapping[int, frozenset[int]]:
        """Segments before which the lane's thread moves to other CPUs, and which."""
        moves = {}
        for row in self.by_lane:
            at = self.processors[row[0].processor].caller_cores
            for segment in row:
                cores = self.processors[segment.processor].caller_cores
                if cores and cores != at:
                    moves[segment.index] = at = cores
        return moves

    @cached_property
    def prepared(self) -> frozenset[int]:
        """Segments before which something is done on their processor's time: tensors copied, the thread moved.

        A thread that has to wait as well moves before it waits.
        """
        return frozenset(
            s.index
            for s in self.segments
            if any(move.copies for move in s.moves) or (s.index in self.rebinds and not s.waits)
        )

    @property
    def graph(self) -> ModelGraph:
        """The model's graph."""
        return self.model.graph

    @property
    def processors_used(self) -> tuple[str, ...]:
        """Ids of the processors that run something, in the plan's order."""
        return tuple(processor for processor in self.plan.processors if processor in self.processors)


def lane_of(processor: Processor) -> str:
    """Return the leading resource of a processor, after which the thread that serves it is named."""
    return processor.spec.resources[0]
