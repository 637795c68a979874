"""What happened in one run, segment by segment.

Times are microseconds from the start of the run. Recording costs one clock reading per event; everything else is
worked out when somebody asks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from agent_sdk.engine.program import Copy, Program
from hope_schema import HOST, TensorType

SpanKind = Literal["segment", "wait", "transfer"]


@dataclass(frozen=True)
class Span:
    """Something a processor was busy with, or waited for.

    Attributes:
        kind: computing a segment, moving a tensor, or waiting: for another thread, or to be on other CPUs.
        processor: id of the processor on whose time it went, or for which another resource moved a tensor.
        lane: leading resource of the thread, or what carried the tensor.
        segment: index of the segment it belongs to; -1 for a move.
        position: place of that work in its queue.
        elsewhere: when another host computed, where one did and said so: what is before and after went to the way there
            and back.
    """

    kind: SpanKind
    processor: str
    lane: str
    segment: int
    start_us: float
    end_us: float
    position: int = 0
    elsewhere: tuple[float, float] | None = None

    @property
    def us(self) -> float:
        return self.end_us - self.start_us

    @property
    def parts(self) -> tuple[tuple[SpanKind, float, float], ...]:
        """The same, the ways to another host and back apart: kind, start and end of each."""
        if self.elsewhere is None:
            return ((self.kind, self.start_us, self.end_us),)
        began, ended = self.elsewhere
        return ("transfer", self.start_us, began), (self.kind, began, ended), ("transfer", ended, self.end_us)


@dataclass(eq=False, repr=False)
class Trace:
    """The record of one run.

    Attributes:
        stamps: per lane, as the loop kept it, nanoseconds: how long it stood at the device's arbiter behind others than
            lanes of this run, and then readings of the clock.
        origin_ns: when it was asked for, or its turn came.
        load_us: bringing the inputs to their processors, at the start.
        store_us: bringing the outputs to the host, at the end.
        total_us: from the call to the outputs, the engine's own work included, the time behind other runs left out.
        ordinary: whether the floats that came and went were, where a processor is trusted with no others.
        beside: whether others held parts of its resources when it began or ended.
        elsewhere: by segment, when another host computed it, seconds of the clock that ``stamps`` are readings of.
    """

    program: Program
    stamps: Sequence[Sequence[int]]
    origin_ns: int
    load_us: float
    store_us: float
    total_us: float
    ordinary: bool = True
    beside: bool = False
    elsewhere: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def waited_us(self) -> float:
        """How long its lanes stood at the device's arbiter behind others, all together."""
        return sum([row[0] for row in self.stamps]) / 1e3

    @property
    def alone(self) -> bool:
        """Whether nobody else was seen on its resources: what it took is its own."""
        return not (self.waited_us or self.beside)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Everything that happened, by start."""
        spans: list[Span] = []
        for row, stamps in zip(self.program.by_lane, self.stamps, strict=True):
            times = [(stamp - self.origin_ns) / 1e3 for stamp in stamps]
            at = 1
            for work in row:
                lane = self.program.lanes[work.lane]
                kinds: list[SpanKind] = ["wait"] if work.comes_late else []
                kinds.append("transfer" if isinstance(work, Copy) else "segment")
                for kind in kinds:
                    found = self.elsewhere.get(work.index) if kind == "segment" else None
                    there = found and (found[0] * 1e6 - self.origin_ns / 1e3, found[1] * 1e6 - self.origin_ns / 1e3)
                    begin, end = times[at : at + 2]
                    spans.append(Span(kind, work.processor, lane, work.index, begin, end, work.position, there))
                    at += 1
        return tuple(sorted(spans, key=lambda span: (span.start_us, span.end_us)))

    def deliveries(self) -> Iterator[tuple[TensorType, str, float]]:
        """Of every output that some processor makes: its type, the place it stands in, and microseconds to the caller.

        Each is there once the engine's own work is done and its copy made: by its bytes, of what all of them took. One
        that is held in parts comes from every place in which one stands.
        NOTE: a network's work leaves the caches full of its own tensors, so both take several times as long as over and
        over by themselves. The planner charges them as the way of outputs to the host.
        """
        program = self.program
        work = [span for span in self.spans if span.kind != "wait"]
        lanes_us = max(span.end_us for span in work) - min(span.start_us for span in work)
        own_us = max(0.0, self.total_us - self.load_us - self.store_us - lanes_us)
        outputs = program.model.outputs.values()
        total = sum(output.type.bytes for output in outputs)
        for output in outputs:
            homes = dict.fromkeys(program.home[name] for name in output.held)
            for place in dict.fromkeys(program.processors[home].spec.place for home in homes if home != HOST):
                if place != HOST:
                    yield output.type, place, own_us + self.store_us * output.type.bytes / max(1, total)

    @cached_property
    def segments(self) -> tuple[Span, ...]:
        """The computing spans, by segment index."""
        return tuple(sorted((s for s in self.spans if s.kind == "segment"), key=lambda span: span.segment))
