"""Splits on this machine's cores: a convolution in halves, a chain along height, and both held to what was planned.

Two single-core processors beside the gang of the same two cores. What is compared runs in turns, in one process, and
every figure is a ratio of medians; parts are profiled as any op is, and the planner's simulator says what comes of it.
As in every session the plan is then tried beside its rivals, what it took is given back to the planner where that was
off, and the plan made of that says what its trial took if it is off as well. Both are judged: what sessions say, and
what the planner's own figures say.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.journey.opening import RENEWALS
from agent_sdk.journey.trial import PLAN, hold_trial, warm
from agent_sdk.machine.timing import take_turns
from agent_sdk.machine.witness import Witness
from agent_sdk.measure.profiler import profile
from agent_sdk.measure.truth import is_outdated, observations
from agent_sdk.model import Model, read_model
from agent_sdk.model.cutting import CutModel, cut_model
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.base import Processor
from agent_sdk.runtimes.offered import discover
from benchmarks.results import Found, Table, TableRow, verdict
from hope_schema import (
    HOST,
    Cause,
    Cut,
    LatencyColumns,
    Missing,
    MissingLatency,
    MissingTransfer,
    Observations,
    Overheads,
    Plan,
    PlannedJob,
    Profile,
    Step,
    TransferColumns,
    merge,
)
from planner_api.planning import build_problem
from planner_api.planning.construct.listing import listed
from planner_api.planning.problem.cuts import cut_problem

Columns = TypeVar("Columns", LatencyColumns, TransferColumns)

CHANNELS, ROWS = 1, 2
ROUNDS, MOST = 40, 200
"""Rounds that count, those beside which the cores were at full speed; and how many are made at most for them."""
BUDGET_S = 20.0
"""For profiling one cut network."""


def convolutions(channels: int, size: int, ops: int) -> Model:
    """So many 3x3 convolutions of an image, one behind the other."""
    rng = np.random.default_rng(0)
    names = ["x", *(f"c{index}" for index in range(1, ops)), "y"]
    weights = [
        numpy_helper.from_array(rng.standard_normal((channels, channels, 3, 3), np.float32) / 20, f"w{index}")
        for index in range(ops)
    ]
    nodes = [
        helper.make_node("Conv", [names[index], f"w{index}"], [names[index + 1]], pads=[1, 1, 1, 1])
        for index in range(ops)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, channels, size, size)) for name in "xy"]
    graph = helper.make_graph(nodes, f"{ops} convolutions", ends[:1], ends[1:], weights)
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def halves(model: Model, axis: int) -> list[Cut]:
    """Every op cut in the middle, as one chain where rows are cut."""
    ops = [op.id for op in merge(model.graph)]
    return [
        Cut(
            op=op, axes=(axis,), at=((model.graph.tensor[op].shape[axis] // 2,),), chained=axis == ROWS and op != ops[0]
        )
        for op in ops
    ]


def planned(cut: CutModel, figures: Profile, lanes: tuple[str, str]) -> Plan:
    """First parts on one lane, second ones on the other; times are what the planner makes of the measured parts."""
    problem = cut_problem(build_problem(cut.source.graph, figures, list(lanes), cut=True), cut.cuts)[0]
    placement = [int("[" in op and ":0:" not in op.rpartition("[")[2]) for op in problem.ops]
    schedule = listed(problem, placement)
    order = sorted(range(len(problem.ops)), key=lambda op: schedule.start_us[op])
    groups = {one.id: one for one in merge(cut.graph)}
    steps = tuple(
        Step(
            id=index,
            ops=tuple(op.id for op in groups[name].ops),
            dtype="float32",
            processor=lanes[placement[index]],
            start_us=float(schedule.start_us[index]),
            finish_us=float(schedule.finish_us[index]),
            alone_us=float(problem.latency_us[index, placement[index]]),
            cause=Cause.PARALLEL_BRANCH,
        )
        for index, name in enumerate(problem.ops)
    )
    makespan = float(schedule.makespan_us)
    return Plan(
        jobs=(PlannedJob(model_hash=cut.source.graph.model_hash, cuts=cut.cuts, finish_us=makespan),),
        soc="here",
        frequency="now",
        processors=lanes,
        steps=steps,
        order=tuple(order),
        makespan_us=makespan,
        lower_bound_us=makespan,
        gap=0.0,
        method="halves",
        bound_method="none",
        profile_version=0,
    )


def known(cut: CutModel, processors: Sequence[Processor]) -> Profile:
    """What the ops of a network take on this machine, and their parts."""
    kind = processors[0].spec.kind
    found = []
    for model in (cut.source, cut):
        rows = [MissingLatency(signature=one, kind=kind) for one in {op.signature for op in merge(model.graph)}]
        ends = {
            MissingTransfer(tensor=model.graph.tensor[name].type, source=place, target=HOST)
            for name in model.graph.outputs
            for place in {processor.spec.place for processor in processors}
        }
        missing = Missing(profile_version=0, latencies=tuple(rows), transfers=tuple(ends))
        found.append(
            profile(model, processors, missing, soc="here", frequency="now", device_id="here", budget_s=BUDGET_S)
        )
    return corrected(
        corrected(Profile(version=0, soc="here", frequency="now", processors=found[0].processors), found[1]), found[0]
    )


def corrected(figures: Profile, measured: Observations) -> Profile:
    """A profile in which what was measured last is true."""
    costs = {
        name: getattr(figures.overheads, name) | getattr(measured.overheads, name)
        for name in ("launch_us", "end_us", "slowdown")
    }
    return figures.model_copy(
        update={
            "latencies": _latest(figures.latencies, measured.latencies, ("signature", "kind")),
            "transfers": _latest(figures.transfers, measured.transfers, ("tensor", "source", "target")),
            "overheads": Overheads(**costs),
        }
    )


def _latest(before: Columns, after: Columns, key: tuple[str, ...]) -> Columns:
    """The rows of both; of one key what was measured last."""
    columns = (*key, "us", "spread_us", "count")
    rows = {
        row[: len(key)]: row
        for one in (before, after)
        for row in zip(*(getattr(one, name) for name in columns), strict=True)
    }
    return type(before)(**dict(zip(columns, zip(*rows.values(), strict=True), strict=True))) if rows else before


def settled(cut: CutModel, device: Device, lanes: tuple[str, str], rivals: Mapping[str, Executor]) -> Plan:
    """The plan that a session ends with."""
    processors = [device.processors[lane] for lane in lanes]
    figures = known(cut, processors)
    inputs = draw(cut.source, 0)
    for asked in range(RENEWALS + 1):
        plan = planned(cut, figures, lanes)
        with Executor(build_program(plan, cut.source, device.processors), device) as run:
            contenders = {PLAN: run, **rivals}
            warm(contenders, inputs)
            traces = hold_trial(contenders, inputs).traces[PLAN]
        if not is_outdated(plan, traces) or asked == RENEWALS:
            break
        measured = observations(
            [traces], [one.spec for one in processors], soc="here", frequency="now", device_id="here"
        )
        figures = corrected(figures, measured) if measured else figures
    return plan


def machine(cores: Sequence[int] = (0, 1)) -> Found:
    """Measure on two cores."""
    lanes, gang = (f"ort@{cores[0]}", f"ort@{cores[1]}"), f"ort@{cores[0]}-{cores[1]}"
    cases = {
        "convolution in halves": (convolutions(128, 56, 1), CHANNELS, 1.10),
        "chain of four along height": (convolutions(64, 112, 4), ROWS, 1.05),
    }
    measures, off = [], []
    lines: list[TableRow] = []
    with TemporaryDirectory() as cache, Device(discover(f"{lanes[0]},{lanes[1]},{gang}", cache=Path(cache))) as device:
        for name, (model, axis, must) in cases.items():
            alone = partial(single_processor_plan, model.graph, soc="here", frequency="now")
            with ExitStack() as opened:

                def opening(plan: Plan, model: Model = model, opened: ExitStack = opened) -> Executor:
                    return opened.enter_context(Executor(build_program(plan, model, device.processors), device))

                runs = {way: opening(alone(way)) for way in (lanes[0], gang)}
                plan = settled(cut_model(model, halves(model, axis)), device, lanes, runs)
                runs["split"] = opening(plan)
                inputs = draw(model, 0)
                with Witness() as witness:
                    turns = take_turns(
                        {way: partial(run.run, inputs) for way, run in runs.items()},
                        rounds=ROUNDS,
                        calm_rounds=ROUNDS,
                        most=MOST,
                        witness=witness,
                    )
                us = {way: statistics.median(turns.us(way)) for way in runs}
            measures.append(verdict(f"{name} over two cores / the gang of both", us["split"] / us[gang], must))
            off.append(abs(us["split"] / plan.makespan_us - 1.0))
            lines.append([name, *(one / 1e3 for one in (us[lanes[0]], us[gang], us["split"], plan.makespan_us))])
    measures.append(verdict("split plans: measured / planned, off by at most", max(off), 0.08))
    columns = ["network", "one core, ms", "gang, ms", "split, ms", "planned, ms"]
    return measures, [Table("Splits on two equal cores", columns, lines)]
