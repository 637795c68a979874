"""What launches and neighbours cost before any plan has run: a rehearsal, which is read as trials are.

Timed by itself, on warm caches, hardly anything slows a core down. In a plan segments begin on tensors that other cores
have just made, a gang's workers are woken for each of them, and cores share memory, caches and clocks. So copies of a
stretch of the network run side by side through the engine, some ops of each elsewhere; what their segments take beyond
the same ops alone are samples like those of a trial (``truth.py``).
"""

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import onnx

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.machine.timing import Timing, take_turns
from agent_sdk.machine.witness import Witness
from agent_sdk.measure.launch import segment_of_all, stretch
from agent_sdk.measure.truth import Costs, Sample, segment_samples
from agent_sdk.model import Model, extract, read_model
from agent_sdk.model.feeds import draw
from agent_sdk.model.nodes import op_id, subgraphs
from agent_sdk.model.united import marked
from agent_sdk.runtimes.base import Processor
from hope_schema import Cause, Plan, PlannedJob, Step, SuperOp, merge

LAUNCHES: Final = 240
"""Super-ops of all copies together: each may be a segment, which takes some milliseconds to compile."""
AT_WORK: Final = 2 / 3
"""Copies for each processor. Some wait for others, so about half of all processors are at work, as in plans."""
AWAY: Final = 1 / 3
"""How many super-ops of a copy are not computed where most of them are."""
ROUNDS: Final = 16

Latencies = Mapping[tuple[str, str], Timing | None]
"""By signature and kind what super-ops take alone; None where they cannot run."""


def neighbours(processor: Processor, others: Sequence[Processor]) -> list[Processor]:
    """Processors that keep the other cores busy: of the same runtime and memory, as wide as this one if possible."""
    taken = set(processor.spec.resources)
    chosen = []
    alike = [
        other
        for other in others
        if (other.spec.runtime, other.spec.memory) == (processor.spec.runtime, processor.spec.memory)
    ]
    for other in sorted(alike, key=lambda other: abs(math.log(other.spec.threads / processor.spec.threads))):
        if not taken & set(other.spec.resources):
            taken |= set(other.spec.resources)
            chosen.append(other)
    return chosen


def rehearse(
    processor: Processor,
    others: Sequence[Processor],
    model: Model,
    alone: Latencies,
    deadline: float,
    witness: Witness | None = None,
) -> list[Sample]:
    """Samples of a processor and its neighbours, as far as ``alone`` says what a stretch of the network takes there.

    None where there are no neighbours. After the ``deadline`` (``time.monotonic``) no more rounds are made than there
    must be. Raises ExecutionError, and InputError where nothing that is drawn is taken.
    """
    seats = [processor, *neighbours(processor, others)]
    count = max(2, round(AT_WORK * len(seats)))
    row = stretch(model, max(1, LAUNCHES // count))
    seats = [seat for seat in seats if all(alone.get((one.signature, seat.spec.kind)) for one in row)]
    rehearsed = {op.id for super_op in row for op in super_op.ops}
    nested = any(subgraphs(node) for node in model.proto.graph.node if op_id(node) in rehearsed)
    if len(seats) < 2 or processor not in seats or nested:
        return []
    copies = side_by_side(model, row, min(count, len(seats)))
    program = build_program(dealt(copies, seats, alone), copies, {seat.id: seat for seat in seats})
    with Device(()) as device, Executor(program, device) as executor:
        run = partial(executor.traced, draw(copies))
        turns = take_turns({"run": run}, rounds=ROUNDS, share=deadline, witness=witness, crowded=lambda _: True)
    traces = [turn.result for turn in turns.counted["run"]]
    return list(segment_samples(traces, [other.spec for other in others]).values())


def side_by_side(model: Model, row: Sequence[SuperOp], count: int) -> Model:
    """Some super-ops of a network as a network of their own, so many times; the copies share their weights."""
    segment = segment_of_all(row, model)
    piece = extract(model, segment.ops, segment.inputs, segment.outputs)
    made = onnx.ModelProto()
    made.CopyFrom(piece)
    for names in ("node", "input", "output"):
        made.graph.ClearField(names)
    weights = {tensor.name for tensor in piece.graph.initializer}

    def each(names: Sequence[str], place: int) -> list[str]:
        return [marked(place, name) if name and name not in weights else name for name in names]

    for place in range(count):
        for node in piece.graph.node:
            copy = made.graph.node.add()
            copy.CopyFrom(node)
            copy.input[:], copy.output[:] = each(node.input, place), each(node.output, place)
            copy.name = op_id(copy)
        for theirs, ours in ((piece.graph.input, made.graph.input), (piece.graph.output, made.graph.output)):
            for info in theirs:
                ours.add().CopyFrom(info)
                ours[-1].name = marked(place, info.name)
    taken = {marked(place, name): value for place in range(count) for name, value in model.taken.items()}
    return replace(read_model(made), taken=taken)


def dealt(copies: Model, seats: Sequence[Processor], alone: Latencies) -> Plan:
    """Each copy on a processor of its own, but for some super-ops, which any other one computes."""
    rows: dict[str, list[SuperOp]] = defaultdict(list)
    for super_op in merge(copies.graph):
        rows[super_op.id.partition("/")[0]].append(super_op)
    draw = random.Random(0)
    free_us, done_us = [0.0] * len(seats), [0.0] * len(rows)
    steps: list[Step] = []
    for index in range(max(map(len, rows.values()))):
        for home, row in enumerate(rows.values()):
            if index >= len(row):
                continue
            place = home if draw.random() >= AWAY else draw.randrange(len(seats))
            seat, super_op = seats[place], row[index]
            timing = alone.get((super_op.signature, seat.spec.kind))
            start_us = max(free_us[place], done_us[home])
            free_us[place] = done_us[home] = start_us + (timing.us if timing else 0.0)
            steps.append(
                Step(
                    id=len(steps),
                    ops=tuple(op.id for op in super_op.ops),
                    dtype=copies.graph.tensor[super_op.outputs[0]].dtype,
                    processor=seat.id,
                    start_us=start_us,
                    finish_us=done_us[home],
                    alone_us=timing.us if timing else None,
                    cause=Cause.PARALLEL_BRANCH,
                )
            )
    end_us = max(done_us)
    return Plan(
        jobs=(PlannedJob(model_hash=copies.graph.model_hash, finish_us=end_us),),
        soc="here",
        frequency="now",
        processors=tuple(seat.id for seat in seats),
        steps=tuple(steps),
        order=tuple(step.id for step in sorted(steps, key=lambda step: (step.start_us, step.id))),
        makespan_us=end_us,
        lower_bound_us=0.0,
        gap=0.0,
        method="rehearsal",
        bound_method="none",
        profile_version=0,
    )


def like_the_nearest(
    late: Sequence[Processor], others: Sequence[Processor], known: Mapping[str, Costs]
) -> dict[str, float]:
    """By kind what slows processors that were not rehearsed, as far as they have neighbours and a kind of their runtime
    is ``known``: the figure of the one that is nearest in width, of equals the narrower.
    """
    widths = {one.spec.kind: (one.spec.runtime, one.spec.threads) for one in others if one.spec.kind in known}
    found = {}
    for own in late:
        alike = {kind: threads for kind, (runtime, threads) in widths.items() if runtime == own.spec.runtime}
        if alike and neighbours(own, others):
            nearest = min(alike, key=lambda kind: (abs(math.log(alike[kind] / own.spec.threads)), alike[kind]))
            found[own.spec.kind] = known[nearest].slowdown
    return found
