"""Is the plan right, how fast is it, and is it worth it? One session's answers, as a report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from agent_sdk.agent import Session
from agent_sdk.engine import Executor, build_program
from agent_sdk.reader import Model, pre_softmax_outputs
from agent_sdk.report import Bar, RunReport, planned_bars
from agent_sdk.trace import Trace
from agent_sdk.verify import random_inputs, reference, relative_error
from hope_schema import ModelGraph, merge

WARM_UP = 2
"""Runs before the first one that is timed."""


def examine(session: Session, *, runs: int, compare: bool, seed: int) -> tuple[RunReport, Trace]:
    """Check a session's answers, time it and, with ``compare``, every single processor beside it.

    Timed runs are interleaved, so that what disturbs the machine disturbs all alike. Returns the report and the
    trace of the last timed run.
    """
    agent, model = session.agent, session.model
    inputs = random_inputs(model.graph, seed)
    agent.progress.phase("checking the answer")
    error = answer_error(session, inputs)
    rivals = agent.singles(model) if compare else {}
    try:
        times: dict[str, list[float]] = {"": [], **{name: [] for name in rivals}}
        agent.progress.phase("timing", runs)
        for turn in range(-WARM_UP, runs):
            agent.progress.step(max(0, turn))
            for name, executor in (("", session.executor), *rivals.items()):
                trace = executor.run(inputs)[1]
                if turn >= 0:
                    times[name].append(trace.total_us)
                if name == "":
                    last = trace
    finally:
        for executor in rivals.values():
            executor.close()
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    plan, served = session.plan, session.obtained.served
    report = RunReport(
        model=model.name,
        model_hash=model.graph.model_hash,
        ops=len(model.graph.ops),
        super_ops=len(merge(model.graph)),
        soc=agent.soc.name,
        frequency=agent.soc.frequency,
        processors=tuple(agent.device.processors),
        plan_id=served.reply.plan_id if served else None,
        plan_version=served.reply.version if served else None,
        plan_cached=session.obtained.cached,
        plan_source=session.obtained.source,
        method=plan.method,
        planned_us=plan.makespan_us,
        predicted_us=plan.makespan_us,
        lower_bound_us=plan.lower_bound_us,
        gap=plan.gap,
        measured_us=medians[""],
        plan_measured_us=medians[""],
        baselines_us={name: medians[name] for name in rivals},
        executed="plan",
        processors_used=session.executor.program.processors_used,
        segments=len(session.executor.program.segments),
        runs=runs,
        max_rel_error=error,
        profiled_signatures=session.obtained.profiled_signatures,
        profiling_seconds=session.obtained.profiling_seconds,
        planner_ms=session.obtained.planner_ms,
        notes=(*session.obtained.notes, *plan.notes),
        planned=planned_bars(plan),
        measured=measured_bars(last),
    )
    return report, last


def answer_error(session: Session, inputs: Mapping[str, np.ndarray]) -> float:
    """Return the error of a session's outputs, and of what enters a final softmax, against the uncut model.

    A softmax hides differences, so the same plan is run once more with the tensors before it as outputs.
    """
    model = session.model
    outputs, _ = session.executor.run(inputs)
    before = tuple(dict.fromkeys(pre_softmax_outputs(model.graph)))
    expected = reference(model, inputs, (*model.graph.outputs, *before))
    watched = tuple(name for name in before if name not in model.graph.outputs)
    if watched:
        opened = with_outputs(model, (*model.graph.outputs, *watched))
        plan = session.plan.model_copy(update={"model_hash": opened.graph.model_hash})
        program = build_program(plan, opened, session.agent.device.processors)
        with Executor(program, session.agent.device) as executor:
            outputs |= executor.run(inputs)[0]
        expected = {name: expected[name] for name in before}
    return relative_error(outputs, expected)


def with_outputs(model: Model, outputs: tuple[str, ...]) -> Model:
    """Return the same model with other graph outputs."""
    graph = model.graph
    opened = ModelGraph(name=graph.name, tensors=graph.tensors, ops=graph.ops, inputs=graph.inputs, outputs=outputs)
    return replace(model, graph=opened)


def measured_bars(trace: Trace) -> tuple[Bar, ...]:
    """Return what processors were busy with in a run as bars; waiting is left blank."""
    return tuple(
        Bar(span.processor, span.start_us, span.end_us, "transfer" if span.kind == "transfer" else "compute")
        for span in trace.spans
        if span.kind != "wait"
    )
