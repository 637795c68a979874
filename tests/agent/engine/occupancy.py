"""The memory of boundary tensors: what an executor holds, and what a run of it has live at one time."""

from __future__ import annotations

import math

from agent_sdk.engine import Executor
from agent_sdk.engine.program import Copy, ProgramSegment
from agent_sdk.engine.trace import Trace


def allocated_bytes(executor: Executor) -> dict[str, int]:
    """Bytes of boundary tensors held per processor, between runs too: live at the peak plus kept for reuse."""
    total: dict[str, int] = {}
    for slot in executor.memory.slots:
        total[slot.processor] = total.get(slot.processor, 0) + slot.kind.bytes
    return total


def peak_bytes(executor: Executor, trace: Trace) -> dict[str, int]:
    """Per processor the most bytes of boundary tensors that were live at one time in this run.

    A tensor lives on a processor from the start of the segment that makes or fetches it until the end of the
    last segment that reads that memory, there or from another processor; graph inputs from the start, outputs
    to the end. Memory that two processors look at counts once, where it was allocated.
    """
    program = trace.program
    begin: dict[tuple[str, int], float] = {}
    end: dict[tuple[str, int], float] = {}
    for span in trace.spans:
        if span.kind != "wait":
            begin.setdefault((span.lane, span.position), span.start_us)
            end[span.lane, span.position] = span.end_us
    born: dict[tuple[str, str], float] = {}  # by tensor and place
    dies: dict[tuple[str, str], float] = {}
    owner: dict[tuple[str, str], str] = {}
    for work in program.work:
        queue = program.lanes[work.lane]
        start, over = begin[queue, work.position], end[queue, work.position]
        if isinstance(work, Copy):
            key = (work.move.tensor, work.move.target)
            owner[key], born[key] = program.owner(work), start
            source = (work.move.tensor, work.move.source)
            dies[source] = max(dies.get(source, 0.0), over)
        if not isinstance(work, ProgramSegment):
            continue
        for name in work.segment.inputs:
            for part in program.parts(name):
                key = (part, program.place_of(work, name))
                if key not in owner:
                    owner[key], born[key] = work.processor, 0.0
                dies[key] = max(dies.get(key, 0.0), over)
        for name in work.segment.outputs:
            key = (name, program.place_of(work, name))
            owner[key], born[key], dies[key] = work.processor, start, over
    for name in (part for kept in program.model.held for part in program.parts(kept)):
        dies[name, program.memory_of(name)] = trace.total_us
    events: list[tuple[float, int, str]] = []
    owner |= {key: spot.slot.processor for key, spot in executor.memory.spot.items() if key in owner}
    for key, start in born.items():
        size = program.graph.tensor[key[0]].bytes
        # A segment starts at the very clock reading at which the one before it ended and freed its inputs: at equal
        # times deaths come first. Whatever is born lives for an instant at least.
        finish = max(dies.get(key, start), math.nextafter(start, math.inf))
        events += [(start, size, owner[key]), (finish, -size, owner[key])]
    live = dict.fromkeys(program.processors, 0)
    peak = dict(live)
    for _, size, processor in sorted(events, key=lambda event: event[:2]):
        live[processor] += size
        peak[processor] = max(peak[processor], live[processor])
    return peak
