"""Is the plan true on this device? Its segments measured alone, and the plan simulated again with what was found.

A plan rests on latencies of single super-ops that other runs, or other devices, measured. Segments are what really
runs: fused across super-ops, with launches and changes of layout. So the chosen segments are timed alone, in program
order on the data they really see, and the program's own timeline is worked out again with these times.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from agent_sdk.device.huge_pages import collapse
from agent_sdk.engine import Executor, Program
from agent_sdk.engine.bound import allocate, copies
from agent_sdk.engine.trace import Trace
from agent_sdk.measure.steady import Witness
from agent_sdk.measure.timing import FIRST_RUN_S, Timing, clock_overhead_us, summarise
from agent_sdk.runtimes.base import BoundCall
from hope_schema import HOST, LatencyColumns, Observations, merge

DRIFT_THRESHOLD: Final = 0.25
"""A plan whose re-measured latency differs from its makespan by more than this fraction is asked for again."""
MIN_ROUNDS: Final = 4
MAX_ROUNDS: Final = 25
BORDER_RUNS: Final = 4
"""Runs that tell what a run costs around its segments."""
HANDOVER_US: Final = 2.0
"""A hand-over to another lane."""
SEGMENT_US: Final = 0.5
"""What the engine adds to every segment: a clock reading and the walk over its program."""


@dataclass(frozen=True)
class SegmentTruth:
    """One segment as planned and as measured alone; microseconds."""

    index: int
    processor: str
    planned_us: float
    alone: Timing


@dataclass(frozen=True)
class Truth:
    """What re-measuring found.

    ``predicted_us`` is the end-to-end latency simulated with the segments' own times, ``planned_us`` the plan's
    makespan; ``start_us`` and ``finish_us`` are the simulated times by segment index.
    """

    segments: tuple[SegmentTruth, ...]
    planned_us: float
    predicted_us: float
    start_us: tuple[float, ...]
    finish_us: tuple[float, ...]

    @property
    def drift(self) -> float:
        """How far the plan was off, as a fraction of what was found; 0 for a plan without times of its own."""
        return abs(self.planned_us - self.predicted_us) / self.predicted_us if self.planned_us else 0.0

    @property
    def outdated(self) -> bool:
        """Whether the planner should be asked again, with what was measured."""
        return self.drift > DRIFT_THRESHOLD


def remeasure(executor: Executor, inputs: Mapping[str, np.ndarray], *, budget_s: float = 3.0) -> Truth:
    """Time every segment of an executor alone and simulate the program with these times.

    Rounds during which the cores were not steady are repeated within ``budget_s`` seconds. Needs as much memory for
    boundary tensors as the executor does. Raises what a run raises, RunTimeoutError where the first one takes a minute.
    """
    rehearsal = Rehearsal(executor, inputs)
    rehearsal.round()
    collapse()  # as it will be when the network serves
    rounds: list[Sequence[float]] = []
    deadline = time.monotonic() + budget_s
    with Witness() as witness:
        while len(rounds) < MIN_ROUNDS or (len(rounds) < MAX_ROUNDS and time.monotonic() < deadline):
            rounds.append(witness.steadily(rehearsal.round, deadline)[0])
    return rehearsal.truth([summarise(times) for times in zip(*rounds, strict=True)])


class Rehearsal:
    """A program's segments with memory of their own, laid out as the executor's, to be run one at a time.

    Runs the network through the engine first, which also tells what a run costs before its first segment and after
    its last: loading inputs, granting lanes, storing outputs.
    """

    def __init__(self, executor: Executor, inputs: Mapping[str, np.ndarray]) -> None:
        self._executor = executor
        executor.run(inputs, timeout_s=FIRST_RUN_S)
        self._border_us = summarise([_border_us(executor.run(inputs)[1]) for _ in range(BORDER_RUNS)]).us
        self._calls = _bound(executor, inputs)
        self._overhead_us = {own: clock_overhead_us(own_thread=own) for own in (True, False)}

    def round(self) -> Sequence[float]:
        """Run the segments in program order, each alone on its processor, which is held; microseconds of each.

        In program order, not each in a loop of its own: so a segment finds the caches as it does in a real run.
        """
        program, device = self._executor.program, self._executor.device
        found = []
        for segment, (copied, call) in zip(program.segments, self._calls, strict=True):
            processor = program.processors[segment.processor]
            for copy in copied:
                copy()
            timed = partial(self._timed, call, processor.on_caller_thread)
            if segment.lane == program.segments[0].lane:
                found.append(device.call_here(processor.id, timed))
            else:
                found.append(device.call(processor.id, timed))
        return found

    def _timed(self, call: Callable[[], None], own: bool) -> float:
        clock = time.thread_time_ns if own else time.perf_counter_ns
        started = clock()
        call()
        return max(0.0, (clock() - started) / 1e3 - self._overhead_us[own])

    def truth(self, timings: Sequence[Timing]) -> Truth:
        """Simulate the program with these times of its segments."""
        program = self._executor.program
        start, finish = simulate(program, [timing.us for timing in timings])
        return Truth(
            segments=tuple(
                SegmentTruth(s.index, s.processor, max(0.0, s.finish_us - s.start_us), timing)
                for s, timing in zip(program.segments, timings, strict=True)
            ),
            planned_us=program.plan.makespan_us,
            predicted_us=self._border_us + max(finish),
            start_us=start,
            finish_us=finish,
        )


def simulate(program: Program, busy_us: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Start and finish of every segment when each is busy for so long: lanes in order, waits as the program has them.

    Waiting costs a hand-over only if what is waited for is not finished yet.
    """
    start = [0.0] * len(program.segments)
    finish = [0.0] * len(program.segments)
    free = [0.0] * len(program.lanes)
    for segment in program.segments:
        begin = free[segment.lane]
        for wait in segment.waits:
            done = finish[program.by_lane[wait.lane][wait.count - 1].index]
            if done > begin:
                begin = done + HANDOVER_US
        start[segment.index] = begin
        finish[segment.index] = begin + busy_us[segment.index] + SEGMENT_US
        free[segment.lane] = finish[segment.index]
    return tuple(start), tuple(finish)


def observations(truth: Truth, executor: Executor, *, soc: str, frequency: str, device_id: str) -> Observations | None:
    """What re-measuring says about single super-ops, for the planner; None for a plan without times of its own.

    A segment's time is shared among its super-ops in proportion to their planned times.
    """
    program = executor.program
    super_ops = {super_op.ops[0].id: super_op for super_op in merge(program.graph)}
    samples: dict[tuple[str, str], list[float]] = {}
    for segment, found in zip(program.segments, truth.segments, strict=True):
        kind = program.processors[segment.processor].spec.kind
        steps = [program.plan.step[step] for step in segment.steps]
        planned = sum(step.finish_us - step.start_us for step in steps)
        if planned <= 0:
            continue
        for step in steps:
            super_op = super_ops.get(step.ops[0])
            if super_op is not None and tuple(op.id for op in super_op.ops) == step.ops:
                share = (step.finish_us - step.start_us) / planned
                samples.setdefault((super_op.signature, kind), []).append(found.alone.us * share)
    if not samples:
        return None
    rows = [(key, statistics.median(times), len(times)) for key, times in samples.items()]
    return Observations(
        soc=soc,
        frequency=frequency,
        processors=tuple(processor.spec for processor in program.processors.values()),
        latencies=LatencyColumns(
            signature=tuple(signature for (signature, _), _, _ in rows),
            kind=tuple(kind for (_, kind), _, _ in rows),
            us=tuple(us for _, us, _ in rows),
            spread_us=tuple(statistics.median(abs(sample - us) for sample in samples[key]) for key, us, _ in rows),
            count=tuple(count for _, _, count in rows),
        ),
        device_id=device_id,
        upload_id=f"execution-{uuid.uuid4().hex}",
        origin="execution",
    )


def _border_us(trace: Trace) -> float:
    """What a run took before its first segment started and after its last one ended."""
    first = min(span.start_us for span in trace.spans)
    return trace.total_us - (max(span.end_us for span in trace.segments) - first)


def _bound(executor: Executor, inputs: Mapping[str, np.ndarray]) -> list[tuple[list[Callable[[], Any]], BoundCall]]:
    """Bind every segment to memory of its own, laid out as the executor's; with each what is copied before it."""
    program = executor.program
    buffers = allocate(program, executor.memory)
    calls = []
    for segment, executable in zip(program.segments, executor.executables, strict=True):
        here = program.processors[segment.processor]
        for move in segment.moves:
            if move.source == HOST and move.keeper == move.target:
                here.from_host(np.ascontiguousarray(inputs[move.tensor]), buffers[move.tensor, here.id])
        read = {name: buffers[name, here.id] for name in segment.segment.inputs}
        written = {name: buffers[name, here.id] for name in segment.segment.outputs}
        calls.append((copies(program, buffers, segment), executable.bind(read, written)))
    return calls
