"""Is the plan right, how fast is it, and is it worth it? One session's answers, as a report."""

import statistics
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import numpy as np

from agent_sdk.agent import Agent
from agent_sdk.cli.report import DEFAULT, RunReport, WholeReport
from agent_sdk.engine.single import whole_run
from agent_sdk.engine.trace import Trace
from agent_sdk.explain import measured_bars, planned_bars
from agent_sdk.journey.rivals import UNFIT
from agent_sdk.journey.trial import FAILURES, PLAN, crowded
from agent_sdk.machine.timing import take_turns, timed
from agent_sdk.machine.witness import Witness, calm
from agent_sdk.session import Session
from hope_schema import merge


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

    All take turns, ``runs`` each, so that what disturbs the machine disturbs all alike; ONNX Runtime by default is
    among them. With ``compare`` the session must have been loaded with all rivals. Returns the report and the trace of
    one run of what is fastest.
    """
    latest = session.latest
    model, plan, served = latest.model, latest.obtained.plan, latest.obtained.served
    contenders = dict(latest.contenders)
    agent.progress.phase("timing")
    with ExitStack() as opened:
        default = agent.device.processors.get(DEFAULT)
        if DEFAULT not in contenders and default is not None:
            with suppress(*UNFIT):  # where there is no room for it beside the others, nothing is said of it
                contenders[DEFAULT] = opened.enter_context(whole_run(model, default, agent.device))
        with Witness() as witness:
            calls = {name: partial(executor.traced, inputs) for name, executor in contenders.items()}
            turns = take_turns(
                calls,
                rounds=runs,
                calm_rounds=runs,
                most=runs,
                witness=witness,
                failing=FAILURES,
                crowded=crowded,
            )
        if not turns.counted:
            raise next(iter(turns.failures.values()))
        traces = {name: [turn.result for turn in own] for name, own in turns.counted.items()}
        timed_us = {name: statistics.median(trace.total_us for trace in own) for name, own in traces.items()}
        executed = min(timed_us, key=lambda name: (timed_us[name], name != PLAN, name))
        executor, program = contenders[executed], contenders[executed].program
        trace = sorted(traces[executed], key=lambda trace: trace.total_us)[len(traces[executed]) // 2]
        agent.progress.phase("checking the answer")
        judged = latest.judge(inputs).verdict({latest.plan_executor, executor}, tolerance)
    notes = list(session.notes)
    quiet_us = [turn.result.total_us for turn in turns.counted.get(PLAN, ()) if calm(turn.disturbance)]
    if served is not None and latest.obtained.source == "planner" and quiet_us:
        failure = agent.report(served.reply, statistics.median(quiet_us), len(quiet_us))
        notes += [failure] if failure else []
    if plan is not None and PLAN not in timed_us:
        notes.append(f"the plan failed on this device at present, so {executed} runs")
    planned = latest.plan_executor.program
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
        method=plan.method if plan else None,
        planned_us=plan.makespan_us if plan else None,
        lower_bound_us=plan.lower_bound_us if plan else None,
        gap=plan.gap if plan else None,
        at_load_us=latest.quiet_us.get(executed),
        timed_us=timed_us,
        executed=executed,
        compared=compare,
        processors_used=program.processors_used,
        segments=len(program.segments),
        plan_processors_used=planned.processors_used if PLAN in timed_us else (),
        plan_segments=len(planned.segments) if PLAN in timed_us else 0,
        runs=len(traces[executed]),
        verdict=judged,
        profiled_signatures=latest.obtained.profiled_signatures,
        profiling_seconds=latest.obtained.profiling_seconds,
        planner_ms=latest.obtained.planner_ms,
        notes=(*notes, *(plan.notes if plan else ())),
        planned=planned_bars(plan) if plan else (),
        measured=measured_bars(trace),
    )
    return report, trace


def examine_whole(session: Session, inputs: Mapping[str, Any], *, runs: int, tolerance: float | None) -> WholeReport:
    whole = session.plans.whole.get()
    judged = session.verify(inputs, tolerance=tolerance)
    times = [timed(partial(whole.run, inputs))[0] for _ in range(runs)]
    return WholeReport(session.name, whole.runtime, statistics.median(times), runs, judged, tuple(session.notes))
