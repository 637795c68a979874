"""Did the plan tell the truth? What a trial's own traces say of its segments, and of working side by side.

A plan is only worth what is delivered. What single ops take is measured alone, with warm caches; in a plan they begin
on tensors that other cores have just made, between launches, beside neighbours. So a plan that was off is measured by
itself, where it runs: per kind of processor a launch and a slowdown are fitted to all its segments, and to those of
other networks' trials, by the rules by which the planner charges them, and what is left is what each segment's ops
take. How far segments and runs are from that is the kind's spread: a plan is as late as the latest of its lanes. Of a
kind of few segments nothing is fitted, neither by itself nor from other kinds, whose launches are others (a gang wakes
its workers): the launch and the slowdown are those that the planner charged, and the rest is the ops'.
"""

import math
import statistics
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from agent_sdk.engine import Copy, Program
from agent_sdk.engine.trace import Trace
from agent_sdk.machine.columns import latency_columns, transfer_columns
from agent_sdk.machine.timing import Timing, middle_half
from hope_schema import HOST, Observations, Overheads, Plan, Processor, TensorType, by_recipe, merge
from hope_schema.base import Count, FigureMicroseconds
from hope_schema.profile import Kind

OUTDATED: Final = 0.08
"""A plan whose measured latency differs from its makespan by more than this fraction is asked for again."""
RUNS: Final = 3
"""Runs that say something about a plan."""
ENOUGH: Final = 8
"""Segments of a kind from which a launch and a slowdown can be told apart."""
ONE_BY_ONE: Final = 1.01
"""Steps that together take no more than so many times their segment's time follow one another."""
MOST: Final = 16.0
"""Nobody is slowed down by more than that; what looks like it is other work."""
LEAST_PRESSURE: Final = 0.1
"""What segments take beyond their launches is the neighbours' doing as if there had been so many at least."""
MOST_SPREAD: Final = 1.0
"""Nothing varies by more than that; what seems to was disturbed."""
ALIKE: Final = 4.0
"""Ops of which one takes no more than so many times as long as the other are slowed alike."""
LEAST: Final = 0.05
"""What ops take is at least this part of what was planned: the rest of a short segment may all be its launch."""


def is_outdated(plan: Plan, traces: Sequence[Trace]) -> bool:
    """Whether what was measured differs by more than ``OUTDATED`` from what the planner said.

    A makespan that runs come to may be right: on a disturbed machine they differ more than a plan is off. An eighth of
    the runs at either end, rounded, says nothing. Fewer than ``RUNS`` may all have been disturbed.
    """
    took = sorted(trace.total_us for trace in traces)
    if len(took) < RUNS or not plan.makespan_us:
        return False
    rare = (len(took) + 3) // 8
    if took[rare] <= plan.makespan_us <= took[-1 - rare]:
        return False
    measured_us = statistics.median(took)
    return abs(plan.makespan_us - measured_us) > OUTDATED * measured_us


@dataclass(frozen=True)
class Sample:
    """What a segment took, beside what it should.

    Attributes:
        us: its usual time, microseconds.
        alone_us: what the plan says that its steps take by themselves, without launches.
        launches: how many of its steps newly take in what another processor made, or a graph input.
        pressure: the part of what its processor leaves of its memory's resources that others used meanwhile.
        charged_us: what the plan charges it beyond ``alone_us``, for launches and neighbours.
        steps_us: root of the sum of squares of what its steps take by themselves.
        between_us: standard deviation of what it takes from run to run.
    """

    kind: Kind
    us: FigureMicroseconds
    alone_us: Annotated[FigureMicroseconds, Field(gt=0.0)]
    launches: Count
    pressure: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    charged_us: FigureMicroseconds = 0.0
    steps_us: FigureMicroseconds = 0.0
    between_us: FigureMicroseconds = 0.0


@dataclass(frozen=True)
class Costs:
    """What a launch costs a kind of processor, microseconds, how many times as long it takes beside others, and by how
    much its ops vary, see ``hope_schema.profile.Spread``.
    """

    launch_us: float
    slowdown: float
    spread: float = 0.0

    def slower(self, sample: Sample) -> float:
        """How many times as long a segment's ops take as by themselves."""
        return 1.0 + (self.slowdown - 1.0) * sample.pressure

    def ops_us(self, sample: Sample) -> float:
        return max(LEAST * sample.alone_us, (sample.us - self.launch_us * sample.launches) / self.slower(sample))


def observations(
    trials: Sequence[Sequence[Trace]],
    planned: Sequence[Processor],
    earlier: Iterable[Sample] = (),
    *,
    soc: str,
    frequency: str,
    device_id: str,
) -> Observations | None:
    """What runs of plans say about ops, launches and neighbours; None for plans that do not say what ops take.

    Args:
        trials: of each plan that was tried its runs; what is fitted holds for all of them.
        planned: the processors that plans are made for.
        earlier: what trials of other networks showed here.
    """
    shown = [(traces[0].program, segment_samples(traces, planned)) for traces in trials]
    samples = [sample for _, own in shown for sample in own.values()]
    if not samples:
        return None
    kinds = {sample.kind for sample in samples}
    sizes = op_sizes((sample.kind, sample.alone_us, sample.steps_us) for sample in samples)
    told = {kind: own for kind, own in fitted([*samples, *alike(earlier, sizes)]).items() if kind in kinds}
    costs = charged(samples) | told
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for program, own in shown:
        signatures = {super_op.ops[0].id: super_op for super_op in merge(program.graph)}
        for index, sample in own.items():
            ops_us = costs[sample.kind].ops_us(sample)
            for step in (program.plan.step[step] for step in program.segments[index].steps):
                super_op = signatures.get(step.ops[0])
                if super_op is not None and tuple(op.id for op in super_op.ops) == step.ops:
                    signature = by_recipe(super_op.signature, step.recipe)
                    found[signature, sample.kind].append(ops_us * (step.alone_us or 0.0) / sample.alone_us)
    moves: dict[tuple[TensorType, str, str], list[float]] = defaultdict(list)
    for traces in trials:
        for key, times in _moves(traces).items():
            moves[key] += times
    return Observations(
        soc=soc,
        frequency=frequency,
        processors=tuple({name: one.spec for own, _ in shown for name, one in own.processors.items()}.values()),
        latencies=latency_columns({key: _median(times) for key, times in found.items()}),
        transfers=transfer_columns({key: _median(times) for key, times in moves.items()}),
        overheads=overheads_with(Overheads(), told),
        device_id=device_id,
        upload_id=f"execution-{uuid.uuid4().hex}",
        origin="execution",
    )


def op_sizes(work: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """By kind what the op takes that a microsecond of work belongs to.

    Args:
        work: kind, microseconds of some ops together, and the root of the sum of their squares.
    """
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kind, us, root_us in work:
        totals[kind][0] += us
        totals[kind][1] += root_us**2
    return {kind: squares / us for kind, (us, squares) in totals.items() if us > 0.0}


def alike(samples: Iterable[Sample], sizes: Mapping[str, float]) -> list[Sample]:
    """Segments of ops that take about as long as those of ``sizes``.

    What a slowdown stands for is in part what inputs cost that are not in the cache: of long ops that is little.
    """
    found = []
    for sample in samples:
        size_us = sample.steps_us**2 / sample.alone_us
        if 1 / ALIKE <= size_us / sizes.get(sample.kind, math.inf) <= ALIKE:
            found.append(sample)
    return found


def overheads_with(known: Overheads, told: Mapping[str, Costs]) -> Overheads:
    """Overheads with what trials tell of some kinds."""
    return known.model_copy(
        update={
            name: {**getattr(known, name), **{kind: getattr(own, name) for kind, own in told.items()}}
            for name in ("launch_us", "slowdown", "spread")
        }
    )


def _median(times: Sequence[float]) -> Timing:
    us = statistics.median(times)
    return Timing(us, statistics.median(abs(one - us) for one in times), len(times))


def segment_samples(traces: Sequence[Trace], planned: Sequence[Processor]) -> dict[int, Sample]:
    """A sample per segment, by index. Steps that a processor ran at once stretch alike, as their segment does.

    The first of them begins with nobody beside it: what it is charged beyond its own time is the launch.
    """
    program = traces[0].program
    traces = middle_half(traces, us=lambda trace: trace.total_us)  # by the median of which a plan is judged
    runs = np.array([[span.us for span in trace.segments] for trace in traces])
    took, between = runs.mean(axis=0), runs.std(axis=0)
    beside = np.mean([pressure(trace, planned) for trace in traces], axis=0)
    launches = _launches(program)
    fetches: dict[int | None, float] = defaultdict(float)
    for move in program.plan.transfers:
        fetches[move.reader] += move.finish_us - move.start_us
    samples = {}
    for segment in program.segments:
        steps = [program.plan.step[step] for step in segment.steps]
        alone_us = sum(step.alone_us or 0.0 for step in steps)
        planned_us = sum(step.finish_us - step.start_us for step in steps)
        fetched_us = sum(fetches[step.id] for step in steps)
        length_us = segment.finish_us - segment.start_us
        us = float(took[segment.index])
        steps_us = math.hypot(*(step.alone_us or 0.0 for step in steps))
        if planned_us > ONE_BY_ONE * length_us:
            first = min(steps, key=lambda step: step.start_us)
            planned_us, fetched_us = first.finish_us - first.start_us, fetches[first.id]
            charged_us = max(0.0, planned_us - fetched_us - (first.alone_us or 0.0))
            steps_us = alone_us = max(0.0, length_us - fetched_us - charged_us)
        else:
            charged_us = max(0.0, planned_us - fetched_us - alone_us)
        if alone_us > 0.0:
            samples[segment.index] = Sample(
                kind=program.processors[segment.processor].spec.kind,
                us=us,
                alone_us=alone_us,
                launches=sum(launches[step.id] for step in steps),
                pressure=float(beside[segment.index]),
                charged_us=charged_us,
                steps_us=steps_us,
                between_us=float(between[segment.index]),
            )
    return samples


def _moves(traces: Sequence[Trace]) -> dict[tuple[TensorType, str, str], list[float]]:
    """By type, source and target place, what moves between memories took; of inputs loaded together each by its bytes.

    Loading graph inputs before the first segment is a move from the host, and what delivers an output one to it.
    """
    program = traces[0].program
    places = {HOST: HOST} | {name: own.spec.place for name, own in program.processors.items()}
    found: dict[tuple[TensorType, str, str], list[float]] = defaultdict(list)

    def note(us: float, moves: Iterable[tuple[str, str, str]]) -> None:
        rows = [
            (program.graph.tensor[name].type, places[source], places[target])
            for name, source, target in moves
            if places[source].partition("/")[0] != places[target].partition("/")[0]
        ]
        total = sum(kind.bytes for kind, _, _ in rows)
        for kind, source, target in rows:
            found[kind, source, target].append(us * kind.bytes / max(1, total))

    readers = {
        (name, program.processors[segment.processor].spec.memory): segment.processor
        for segment in program.segments
        for name in segment.segment.inputs
        if program.home[name] == HOST
    }
    for trace in traces:
        note(trace.load_us, ((name, HOST, reader) for (name, _), reader in readers.items()))
        for kind, place, us in trace.deliveries():
            found[kind, place, HOST].append(us)
        moved: dict[tuple[str, str], float] = defaultdict(float)  # what changes layouts on the way is part of it
        for span in trace.spans:
            work = program.by_lane[program.lanes.index(span.lane)][span.position]
            if isinstance(work, Copy):
                moved[work.move.tensor, work.processor] += span.us if span.kind == "transfer" else 0.0
        for (name, reader), us in moved.items():
            note(us, [(name, program.home[name], reader)])
    return found


def pressure(trace: Trace, planned: Sequence[Processor]) -> np.ndarray:
    """(S,) which part of what each segment's processor leaves of its memory's resources others took meanwhile.

    As the planner charges it: each step, when it begins, for those that began before it and are still at work; of two
    that begin at once, for the earlier one in the plan's order. Steps count by what they take by themselves, and lie in
    the measured segment as they lie in the planned one.
    """
    program = trace.program
    near = defaultdict[str, set[str]](set)
    for spec in (*planned, *(one.spec for one in program.processors.values())):
        near[spec.memory] |= set(spec.resources)
    rows = []
    for segment, span in zip(program.segments, trace.segments, strict=True):
        stretch = span.us / max(1e-3, segment.finish_us - segment.start_us)
        for step in (program.plan.step[step] for step in segment.steps):
            begin = span.start_us + stretch * (step.start_us - segment.start_us)
            end = span.start_us + stretch * (step.finish_us - segment.start_us)
            rows.append((segment.index, span.processor, begin, end, max(1e-3, step.alone_us or 0.0)))
    segments, processors, begins, ends, took = (np.array(column) for column in zip(*rows, strict=True))
    position = {step: place for place, step in enumerate(program.plan.order)}
    order = np.array([position[step] for segment in program.segments for step in segment.steps])
    taken = np.zeros(len(rows))
    for name, spec in ((name, one.spec) for name, one in program.processors.items()):
        mine = np.flatnonzero(processors == name)
        at, place = begins[mine, None], order[mine, None]
        working = ((begins < at) | ((begins == at) & (order < place))) & (at < ends)
        others = {
            other: len(set(one.spec.resources) - set(spec.resources)) if one.spec.memory == spec.memory else 0
            for other, one in program.processors.items()
        }
        room = max(1, len(near[spec.memory]) - len(spec.resources))
        taken[mine] = np.minimum(1.0, working @ np.array([others[name] for name in processors.tolist()]) / room)
    total = np.bincount(segments, took, len(program.segments))
    return np.asarray(np.bincount(segments, took * taken, len(program.segments)) / np.maximum(total, 1e-3))


def _launches(program: Program) -> Counter[int]:
    """By step, whether it newly takes in what another processor made, or a graph input, as the planner charges it."""
    made: dict[str, str] = {}
    taken: set[tuple[str, str]] = set()
    launches = Counter[int]()
    for step in (program.plan.step[step] for step in program.plan.order):
        for op in (program.graph.op[op] for op in step.ops):
            for name in op.inputs:
                if made.get(name) != step.processor and (name, step.processor) not in taken:
                    taken.add((name, step.processor))
                    launches[step.id] = 1
            made.update(dict.fromkeys(op.outputs, step.processor))
    return launches


def fitted(samples: Iterable[Sample]) -> dict[str, Costs]:
    """By kind of enough segments what its launches and its neighbours cost, and how much its ops vary."""
    return {kind: _fitted(own) for kind, own in _by_kind(samples).items() if len(own) >= ENOUGH}


def charged(samples: Iterable[Sample]) -> dict[str, Costs]:
    """By kind what the plan charged for its launches and its neighbours.

    The least that a segment is charged for a launch is the launch, and the most beyond that, over what its ops take,
    the slowdown: the planner charges whoever stands later for who runs already, while both slow each other.
    """
    found = {}
    for kind, own in _by_kind(samples).items():
        launch_us = min((sample.charged_us / sample.launches for sample in own if sample.launches), default=0.0)
        slower = max((sample.charged_us - launch_us * sample.launches) / sample.alone_us for sample in own)
        found[kind] = Costs(launch_us, 1.0 + max(0.0, slower))
    return found


def _by_kind(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample.kind].append(sample)
    return found


def _fitted(samples: Sequence[Sample]) -> Costs:
    """The launch for which the samples come out nearest (least squares), and the slowdown for which together they take
    what they took: a run is their sum. Neither is below nothing.

    A segment counts by its planned time, so that neither the long nor the many short ones decide alone.
    """
    alone, beside, launches, us = (
        np.array([getattr(sample, name) for sample in samples], dtype=np.float64)
        for name in ("alone_us", "pressure", "launches", "us")
    )
    weight = 1.0 / np.sqrt(alone)
    columns = np.stack([launches * weight, alone * beside * weight], axis=1)
    beyond = (us - alone) * weight
    launch_us, slope = (float(one) for one in np.linalg.lstsq(columns, beyond, rcond=None)[0])
    if slope < 0.0:
        launch_us = float(columns[:, 0] @ beyond) / max(1e-9, float(columns[:, 0] @ columns[:, 0]))
    launch_us = max(0.0, launch_us)
    beyond_us = max(0.0, float((us - alone - launch_us * launches).sum()))
    slower = beyond_us / max(float(alone @ beside), LEAST_PRESSURE * float(alone.sum()))
    costs = Costs(launch_us, min(MOST, 1.0 + slower))
    return replace(costs, spread=_spread(samples, costs))


def _spread(samples: Sequence[Sample], costs: Costs) -> float:
    """By how much ops vary, each by itself, for segments to be as far from what they are charged as they are.

    A segment counts by what it is charged: of one that is hardly more than its launch, the launch varies. Two of them
    went to the fit.
    """
    off = own = 0.0
    for sample in samples:
        slower = costs.slower(sample)
        charged_us = costs.launch_us * sample.launches + slower * sample.alone_us
        off += ((sample.us - charged_us) ** 2 + sample.between_us**2) / charged_us
        own += (slower * sample.steps_us) ** 2 / charged_us
    few = len(samples) / (len(samples) - 2)
    return min(MOST_SPREAD, math.sqrt(few * off / own)) if own else 0.0
