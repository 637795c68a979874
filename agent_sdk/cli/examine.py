"""Is the plan right, how fast is it, and is it worth it? One session's answers, as a report."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf

import numpy as np

from agent_sdk.agent import Agent
from agent_sdk.cli.report import TOLERANCE, Bar, RunReport, planned_bars
from agent_sdk.engine import Executor, build_program
from agent_sdk.engine.trace import Trace
from agent_sdk.model import Model, pre_softmax_outputs
from agent_sdk.selection.trial import PLAN, hold_trial
from agent_sdk.session import Session
from agent_sdk.verify import continued, random_inputs, reference, relative_error
from hope_schema import ModelGraph, merge


def examine(
    agent: Agent, session: Session, *, runs: int, compare: bool, seed: int, tolerance: float = TOLERANCE
) -> tuple[RunReport, Trace]:
    """Check a session's answers and time the plan beside the single processors that stand against it.

    Timed runs are interleaved, so that what disturbs the machine disturbs all alike. The report's baselines hold
    every single processor with ``compare``, for which the session must have been loaded with all rivals; a plan that
    uses one processor is its own baseline there. Returns the report and the trace of one run of what is fastest.
    """
    model, serving = session.model, session.serving
    inputs = random_inputs(model.graph, seed)
    agent.progress.phase("timing")
    trial = hold_trial(serving.contenders, inputs, [(runs, inf)])
    trial_us, best = trial.us, trial.best
    executor = serving.contenders[best]
    plan, served, program = session.plan, session.obtained.served, executor.program
    planned = PLAN in serving.contenders
    predicted_us = plan.makespan_us if best == PLAN or not planned else serving.quiet_us.get(best, trial_us[best])
    traces = sorted(trial.traces[best], key=lambda trace: trace.total_us)
    trace = traces[len(traces) // 2]
    agent.progress.phase("checking the answer")
    error = answer_error(model, inputs, {session.plan_executor, executor})
    executed = best if planned else PLAN
    baselines_us = {name: us for name, us in trial_us.items() if name != PLAN}
    if PLAN in trial_us and len(plan.processors_used) == 1:
        baselines_us[plan.processors_used[0]] = trial_us[PLAN]
    notes = list(session.notes)
    if served is not None and session.obtained.source == "planner" and PLAN in trial_us:
        failure = agent.report(served.reply, trial_us[PLAN], trial.runs[PLAN])
        notes += [failure] if failure else []
    if executed != PLAN:
        verdict = f"is slower than {executed} alone" if PLAN in trial_us else "failed"
        notes.append(f"the plan {verdict} on this device at present, so {executed} runs")
    report = RunReport(
        model=model.name,
        model_hash=model.graph.model_hash,
        ops=len(model.graph.ops),
        super_ops=len(merge(model.graph)),
        soc=agent.soc.name,
        frequency=agent.soc.frequency,
        processors=tuple(spec.id for spec in agent.planned),
        plan_id=served.reply.plan_id if served else None,
        plan_version=served.reply.version if served else None,
        plan_cached=session.obtained.cached,
        plan_source=session.obtained.source,
        method=plan.method,
        planned_us=plan.makespan_us,
        predicted_us=predicted_us,
        lower_bound_us=plan.lower_bound_us,
        gap=plan.gap,
        measured_us=trial_us[best],
        plan_measured_us=trial_us.get(PLAN, trial_us[best]),
        baselines_us=baselines_us if compare else {},
        executed=executed,
        processors_used=program.processors_used,
        segments=len(program.segments),
        plan_processors_used=session.plan_executor.program.processors_used,
        plan_segments=len(session.plan_executor.program.segments),
        runs=trial.runs[best],
        max_rel_error=error,
        profiled_signatures=session.obtained.profiled_signatures,
        profiling_seconds=session.obtained.profiling_seconds,
        planner_ms=session.obtained.planner_ms,
        tolerance=tolerance,
        notes=(*notes, *plan.notes),
        planned=planned_bars(plan),
        measured=measured_bars(trace),
    )
    return report, trace


def answer_error(model: Model, inputs: Mapping[str, np.ndarray], executors: Collection[Executor]) -> float:
    """Return the largest error of these, the plan and what answers instead of it, against the uncut model."""
    expected = reference(model, inputs, pre_softmax_outputs(model.graph))
    return max(executor_error(executor, model, inputs, expected) for executor in executors)


def executor_error(
    executor: Executor, model: Model, inputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> float:
    """Return how far an executor's answer is from the tensors of ``pre_softmax_outputs`` as they should be.

    A final softmax hides differences of what enters it, or magnifies them. So the plan is carried out once more to
    compare that, and what is served must be what ONNX Runtime makes of it.
    """
    served = executor.run(inputs)[0]
    outputs = model.graph.outputs
    watched = tuple(name for name in expected if name not in outputs)
    inner = served
    if watched:
        opened = with_outputs(model, (*outputs, *watched))
        planned = executor.program.plan
        job = planned.jobs[0].model_copy(update={"model_hash": opened.graph.model_hash})
        plan = planned.model_copy(update={"jobs": (job,)})
        device = executor.device
        with Executor(build_program(plan, opened, device.processors), device) as again:
            inner = again.run(inputs)[0]
    error = relative_error(inner, expected)
    if math.isinf(error):
        return error
    return max(error, relative_error(served, continued(model, {name: inner[name] for name in expected}, outputs)))


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
