"""How much memory of boundary tensors the engine allocates, and how much a run needs at least."""

from __future__ import annotations

import math

from agent_sdk.engine import Executor
from agent_sdk.engine.program import ProgramSegment
from agent_sdk.engine.trace import Trace


def allocated_bytes(executor: Executor) -> dict[str, int]:
    """Bytes of boundary tensors held per processor, between runs too: live at the peak plus kept for reuse."""
    total: dict[str, int] = {}
    for slot in executor.memory.slots:
        total[slot.processor] = total.get(slot.processor, 0) + slot.kind.bytes
    return total


def peak_bytes(trace: Trace) -> dict[str, int]:
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
    born: dict[tuple[str, str], float] = {}
    dies: dict[tuple[str, str], float] = {}
    owner: dict[tuple[str, str], str] = {}
    for work in program.work:
        here, memory = work.processor, program.processors[work.processor].place.memory
        queue = program.lanes[work.lane]
        start, over = begin[queue, work.position], end[queue, work.position]
        for move in work.moves:
            source = (move.tensor, owner[move.tensor, move.source])
            owner[move.tensor, move.target] = here
            born[move.tensor, here] = start
            dies[source] = max(dies.get(source, 0.0), start)
        if not isinstance(work, ProgramSegment):
            continue
        for name in (part for read in work.segment.inputs for part in program.parts(read)):
            if (name, memory) not in owner:
                owner[name, memory] = here
                born[name, here] = 0.0
            key = (name, owner[name, memory])
            dies[key] = max(dies.get(key, 0.0), over)
        for name in work.segment.outputs:
            owner[name, memory] = here
            born[name, here] = start
            dies[name, here] = over
    for name in (part for kept in program.graph.outputs for part in program.parts(kept)):
        dies[name, program.home[name]] = trace.total_us
    return _peaks(trace, born, dies)


def _peaks(trace: Trace, born: dict[tuple[str, str], float], dies: dict[tuple[str, str], float]) -> dict[str, int]:
    events: list[tuple[float, int, str]] = []
    for (name, processor), start in born.items():
        size = trace.program.graph.tensor[name].bytes
        # A segment starts at the very clock reading at which the one before it ended and freed its inputs: at equal
        # times deaths come first. Whatever is born lives for an instant at least.
        end = max(dies.get((name, processor), start), math.nextafter(start, math.inf))
        events += [(start, size, processor), (end, -size, processor)]
    live = dict.fromkeys(trace.program.processors, 0)
    peak = dict(live)
    for _, size, processor in sorted(events, key=lambda event: event[:2]):
        live[processor] += size
        peak[processor] = max(peak[processor], live[processor])
    return peak
