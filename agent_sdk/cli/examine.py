"""Is the plan right, how fast is it, and is it worth it? One session's answers, as a report."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Any, Final

import numpy as np

from agent_sdk.agent import Agent
from agent_sdk.cli.report import RunReport, WholeReport
from agent_sdk.engine import Program
from agent_sdk.engine.trace import Trace
from agent_sdk.explain import measured_bars, planned_bars, to_perfetto
from agent_sdk.journey.trial import PLAN, hold_trial
from agent_sdk.machine.timing import timed
from agent_sdk.session import Session
from hope_schema import merge

DEFAULT: Final = "onnxruntime"
"""The processor that stands for ONNX Runtime as its own users run it."""


def examine(
    agent: Agent,
    session: Session,
    inputs: Mapping[str, np.ndarray],
    *,
    runs: int,
    compare: bool,
    tolerance: float | None = None,
) -> tuple[RunReport, Trace]:
    """Check a session's answers and time the plan beside the single processors that stand against it.

    Timed runs are interleaved, so that what disturbs the machine disturbs all alike. The report's baselines hold
    every single processor with ``compare``, for which the session must have been loaded with all rivals; a plan that
    uses one processor is its own baseline there. Returns the report and the trace of one run of what is fastest.
    """
    latest = session.latest
    model, serving = latest.model, latest.serving
    agent.progress.phase("timing")
    trial = hold_trial(serving.contenders, inputs, [(runs, inf)])
    trial_us, best = trial.us, trial.best
    executor = serving.contenders[best]
    plan, served, program = session.plan, latest.obtained.served, executor.program
    planned = PLAN in serving.contenders
    predicted_us = plan.makespan_us if best == PLAN or not planned else serving.quiet_us.get(best, trial_us[best])
    traces = sorted(trial.traces[best], key=lambda trace: trace.total_us)
    trace = traces[len(traces) // 2]
    agent.progress.phase("checking the answer")
    judged = latest.judged(inputs, {latest.plan_executor, executor}, tolerance)
    executed = best if planned else PLAN
    alone = {name: us for name, us in trial_us.items() if name != PLAN}
    baselines_us = dict(alone)
    if PLAN in trial_us and len(plan.processors_used) == 1:
        baselines_us[plan.processors_used[0]] = trial_us[PLAN]
    notes = list(session.notes)
    if served is not None and latest.obtained.source == "planner" and PLAN in trial_us:
        failure = agent.report(served.reply, trial_us[PLAN], trial.runs[PLAN])
        notes += [failure] if failure else []
    if executed != PLAN and PLAN not in trial_us:
        notes.append(f"the plan failed on this device at present, so {executed} runs")
    single = min(alone, key=lambda name: alone[name], default=None)
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
        plan_cached=latest.obtained.cached,
        plan_source=latest.obtained.source,
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
        plan_processors_used=latest.plan_executor.program.processors_used,
        plan_segments=len(latest.plan_executor.program.segments),
        runs=trial.runs[best],
        max_rel_error=judged.error,
        profiled_signatures=latest.obtained.profiled_signatures,
        profiling_seconds=latest.obtained.profiling_seconds,
        planner_ms=latest.obtained.planner_ms,
        tolerance=judged.tolerance,
        verdict=str(judged),
        default_us=trial_us.get(DEFAULT) or _as_at_load(serving.quiet_us, best, trial_us[best]),
        best_single=single,
        best_single_us=alone[single] if single else None,
        notes=(*notes, *plan.notes),
        planned=planned_bars(plan),
        measured=measured_bars(trace),
    )
    return report, trace


def _as_at_load(quiet_us: Mapping[str, float], best: str, best_us: float) -> float | None:
    """What ONNX Runtime by default would take now, if it still takes as many times what the best takes as at load."""
    if DEFAULT not in quiet_us or not quiet_us.get(best):
        return None
    return best_us * quiet_us[DEFAULT] / quiet_us[best]


def examine_whole(session: Session, inputs: Mapping[str, Any], *, runs: int, tolerance: float | None) -> WholeReport:
    """Check and time a network that runs as a whole."""
    whole = session.plans.whole
    judged = session.verify(inputs, tolerance=tolerance)
    times = [timed(partial(whole.run, inputs))[0] for _ in range(runs)]
    return WholeReport(session.name, whole.runtime, statistics.median(times), runs, judged, tuple(session.notes))


def trace_file(recorded: Trace, planned: Program) -> bytes:
    """A run beside the plan, as ``ui.perfetto.dev`` opens it."""
    return json.dumps(to_perfetto(recorded, planned)).encode()
