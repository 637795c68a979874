"""A run in Chrome's Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

Every processor is a process with two tracks, one beneath the other: what was measured, and the plan; steps that a GPU
has side by side lie on further ones. Within a segment
stands a slice per op: its part of the segment's time, in proportion to what was predicted, because runtimes time
segments. Times in microseconds; an arrow for every tensor that crosses between processors.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from agent_sdk.engine.program import Copy, Program, ProgramSegment
from agent_sdk.engine.trace import Trace
from agent_sdk.explain.shares import Share, shares
from hope_schema import HOST

MEASURED: Final = 1
PLANNED: Final = 2
Event = dict[str, Any]


def to_perfetto(trace: Trace, plan: Program | None = None) -> dict[str, Any]:
    """Return a run as events; beside it ``plan``, where something else was run: by default what the run was of."""
    ran, planned = trace.program, plan or trace.program
    carriers = {
        work.move.over or work.processor
        for program in (ran, planned)
        for work in program.work
        if isinstance(work, Copy)
    }
    names = dict.fromkeys([*planned.processors, *ran.processors, *sorted(carriers)])
    pids = {name: index for index, name in enumerate(names, 1)}
    run = "measured" if planned is ran else "measured: not the plan, but what is faster here"
    events = [
        event
        for name, pid in pids.items()
        for event in (
            name_event(pid, 0, "process_name", name),
            name_event(pid, MEASURED, "thread_name", run),
            name_event(pid, PLANNED, "thread_name", "plan"),
        )
    ]
    events += [*_measured(trace, pids), *_planned(planned, pids), *_arrows(trace, pids)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"model": ran.graph.name}}


def _measured(trace: Trace, pids: dict[str, int]) -> Iterator[Event]:
    program = trace.program
    for span in trace.spans:
        work = program.by_lane[program.lanes.index(span.lane)][span.position]
        pid = pids[(work.move.over if isinstance(work, Copy) else None) or span.processor]
        args: dict[str, Any] = {"segment": span.segment, "thread": span.lane}
        if isinstance(work, Copy):
            args["tensors"] = [work.move.tensor]
        if span.kind == "segment" and isinstance(work, ProgramSegment):
            args |= {"ops": len(work.ops), "predicted_us": round(work.finish_us - work.start_us, 3)}
            yield slice_event(pid, MEASURED, _title(work), "segment", span.start_us, span.end_us, args)
            ops = shares(program, work)
            for kind, start, end in span.parts:
                if kind == "segment":
                    yield from _ops(pid, MEASURED, "op", ops, [op.of_segment for op in ops], start, end - start)
                else:
                    yield slice_event(pid, MEASURED, "to or from its host", kind, start, end, args)
        else:
            yield slice_event(pid, MEASURED, span.kind, span.kind, span.start_us, span.end_us, args)


def _planned(program: Program, pids: dict[str, int]) -> Iterator[Event]:
    for segment in program.segments:
        pid = pids[segment.processor]
        args = {"segment": segment.index, "ops": len(segment.ops)}
        yield slice_event(pid, PLANNED, _title(segment), "predicted", segment.start_us, segment.finish_us, args)
        steps: dict[int, list[Share]] = {}
        for part in shares(program, segment):
            steps.setdefault(part.step.id, []).append(part)
        rows = sorted(steps.values(), key=lambda parts: parts[0].step.start_us)
        lines = lines_of([(round(row[0].step.start_us, 3), round(row[0].step.finish_us, 3)) for row in rows])
        yield from (name_event(pid, PLANNED + line, "thread_name", f"plan, beside {line}") for line in {*lines} - {0})
        for parts, line in zip(rows, lines, strict=True):
            step, tid = parts[0].step, PLANNED + line
            lengths = [part.of_step for part in parts]
            yield from _ops(pid, tid, "predicted op", parts, lengths, step.start_us, step.finish_us - step.start_us)


def lines_of(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """A line for each of these intervals, which stand in the order of their starts: the first that is free."""
    ends: list[float] = []
    found = []
    for start, end in intervals:
        line = next((index for index, before in enumerate(ends) if before <= start), len(ends))
        ends[line : line + 1] = [end]
        found.append(line)
    return found


def _title(segment: ProgramSegment) -> str:
    return f"segment {segment.index}: {segment.ops[-1]}"


def _ops(
    pid: int, tid: int, category: str, parts: Iterable[Share], lengths: Iterable[float], start_us: float, us: float
) -> Iterator[Event]:
    """One slice per op, one after the other, over ``us`` microseconds."""
    at = start_us
    for part, length in zip(parts, lengths, strict=True):
        end = at + us * length
        step = part.step
        args: dict[str, Any] = {"type": part.op.type, "super_op": step.ops[-1], "cause": step.cause.value}
        args |= {} if tid < PLANNED or step.recipe is None else {"recipe": step.recipe}
        args |= {} if tid < PLANNED or step.share is None else {"share": round(step.share, 3)}
        yield slice_event(pid, tid, f"{part.op.type} {part.op.id}", category, at, end, args)
        at = end


def name_event(pid: int, tid: int, what: str, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def slice_event(
    pid: int, tid: int, name: str, category: str, start_us: float, end_us: float, args: dict[str, Any]
) -> Event:
    """Something that lasted; times in microseconds."""
    # NOTE: what is inside ends no later than what is around it, also after rounding: viewers drop slices that overlap.
    start, end = round(start_us, 3), round(max(start_us, end_us), 3)
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "cat": category,
        "ts": start,
        "dur": round(end - start, 3),
        "args": args,
    }


def _arrows(trace: Trace, pids: dict[str, int]) -> Iterator[Event]:
    """Flow events from the segment that makes a tensor to the first one that reads it on another processor."""
    program = trace.program
    maker = {name: segment for segment in program.segments for name in segment.segment.outputs}
    spans = {span.segment: span for span in trace.segments}
    seen: set[tuple[str, str]] = set()
    for segment in program.segments:
        for name in (part for read in segment.segment.inputs for part in program.parts(read)):
            if program.home[name] in (HOST, segment.processor) or (name, segment.processor) in seen:
                continue
            seen.add((name, segment.processor))
            ends = (("s", maker[name], spans[maker[name].index].end_us),
                    ("f", segment, spans[segment.index].start_us))  # fmt: skip
            for phase, at, ts in ends:
                event = {
                    "ph": phase,
                    "pid": pids[at.processor],
                    "tid": MEASURED,
                    "name": name,
                    "cat": "tensor",
                    "id": f"{name}>{segment.processor}",
                    "ts": round(ts, 3),
                }
                yield event | {"bp": "e"} if phase == "f" else event
