"""One network, ours against the runtimes: same process, same conditions, interleaved rounds, medians and ratios."""

from __future__ import annotations

import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agent_sdk.agent import Agent
from agent_sdk.engine import Executor
from agent_sdk.explain import to_perfetto
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.trial import PLAN
from agent_sdk.journey.verify import Judge, relative_error
from agent_sdk.machine.timing import Turn, take_turns
from agent_sdk.machine.witness import Witness, calm
from agent_sdk.model import Model
from agent_sdk.model.feeds import draw
from benchmarks.engine.runtimes import Run, baselines
from benchmarks.traces import busy_together

SETTLING_S = 3.0
"""Seconds of runs before anything is timed: a session compares who was near at its trial (``journey/prepared.py``)."""
TRACED = 5
"""Runs of what answers that are traced, beside those that are timed: users ask for no record."""
LEAST_S = 10.0
"""How long a model is measured where patience reaches so far: fast networks then get many rounds, steady medians."""


def measure(
    runs: Mapping[str, Callable[[], Any]], rounds: int, witness: Witness | None, patience_s: float
) -> dict[str, list[Turn]]:
    """Run all configurations in turns (``machine/timing.py``); return those runs of each that count.

    With a witness this goes on until ``rounds`` rounds were calm, or for ``patience_s`` seconds.
    """
    deadline = time.monotonic() + patience_s
    if witness is None:
        return take_turns(runs, rounds=rounds).counted
    return take_turns(
        runs,
        rounds=rounds,
        calm_rounds=rounds,
        most=10**6,
        least_s=min(LEAST_S, patience_s),
        share=deadline,
        witness=witness,
        crowded=lambda config: config != "ort_1",
    ).counted


def rows_for(
    agent: Agent,
    name: str,
    rounds: int,
    load: int,
    witness: Witness | None,
    patience_s: float,
    until: float,
    traces_to: Path | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Time one model in every configuration; the rows, and what else there is to say about it.

    Patience ends ``until`` then (``time.monotonic``) at the latest, loading included.
    """
    with agent.load(name, background=False) as session:
        prepared = session.latest
        model = prepared.model
        inputs = draw(model, 0)
        runs: dict[str, Run] = baselines(model, len(agent.soc.cores))
        calls: dict[str, Callable[[], Any]] = {config: partial(_forgotten, run, inputs) for config, run in runs.items()}
        calls["ours"] = partial(_forgotten, session.run, inputs)
        calls["ours_planned"] = lambda: session.latest.plan_executor.traced(inputs)
        settled = time.monotonic() + SETTLING_S
        while time.monotonic() < settled:
            session.run(inputs)
        before = prepared.answered.copy()
        with busy(load), agent._services.supplier.resting():  # it improves plans of the networks before
            turns = measure(calls, rounds, witness, min(patience_s, until - time.monotonic()))
        answered_by = (prepared.answered - before).most_common(1)[0][0]
        executors = {"ours": prepared.contenders[answered_by], "ours_planned": session.latest.plan_executor}
        medians = {config: statistics.median(turn.us for turn in turns[config]) for config in calls}
        plan = session.latest.plan_executor.program.plan
        planner_us = plan.makespan_us
        predicted_us = {
            "ours": prepared.quiet_us.get(answered_by, math.nan),
            "ours_planned": prepared.quiet_us.get(PLAN, math.nan),
        }
        best_ort = min(us for config, us in medians.items() if config.startswith("ort_"))
        best_single = min(medians[config] for config in runs)
        traces = {"ours": [executors["ours"].traced(inputs) for _ in range(TRACED)]}
        traces["ours_planned"] = [turn.result for turn in turns["ours_planned"]]
        errors = errors_of(model, session.reference, executors, runs, inputs)
        rows = []
        for config, us in medians.items():
            program = executors[config].program if config in executors else None
            off = abs(predicted_us[config] - us) / us if config in predicted_us else None
            rows.append(
                {
                    "model": name,
                    "config": config,
                    "median_us": round(us, 1),
                    "ratio_to_best_ort": round(us / best_ort, 4),
                    "ratio_to_best_single": round(us / best_single, 4),
                    "prediction_error": None if off is None else round(off, 4),
                    "planner_error": round(abs(planner_us - us) / us, 4) if config == "ours_planned" else None,
                    "max_rel_error": errors[config],
                    "processors_used": list(program.processors_used) if program else [config],
                    "segments": len(program.segments) if program else 1,
                    "overlap": (round(statistics.median(map(busy_together, traces[config])), 4) if program else None),
                }
            )
        trace = session.latest.plan_executor.traced(inputs)
        if traces_to is not None:
            (traces_to / f"{name}.trace.json").write_text(json.dumps(to_perfetto(trace)))
        facts = {
            "model": name,
            "answered_by": answered_by,
            "runs": {config: len(own) for config, own in turns.items()},
            "calm_runs": {config: sum(calm(turn.disturbance) for turn in own) for config, own in turns.items()},
            "changes": list(prepared.changes),
            "notes": list(session.notes),
            "quiet_us": dict(prepared.quiet_us),
            "planned_us": planner_us,
            "lower_bound_us": plan.lower_bound_us,
            "predicted_us": predicted_us["ours_planned"],
            "method": plan.method,
            "held_bytes": sum(slot.kind.bytes for slot in session.latest.plan_executor.memory.slots),
        }
        return rows, facts


def _forgotten(run: Run, inputs: Mapping[str, np.ndarray]) -> None:
    """Run and let go of the outputs, as a user does: kept ones would cost the runtimes' allocators new memory."""
    run(inputs)


def errors_of(
    model: Model,
    reference: Reference,
    executors: Mapping[str, Executor],
    runs: Mapping[str, Run],
    inputs: Mapping[str, np.ndarray],
) -> dict[str, float]:
    """Largest relative error per configuration: ours as ``hope-agent run`` checks it, the runtimes on their outputs."""
    judge = Judge(model, inputs, reference)
    errors = {config: relative_error(run(inputs), judge.outputs) for config, run in runs.items()}
    return errors | {config: judge.error_of(own) for config, own in executors.items()}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep other processes at work meanwhile."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=_spin, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    if started:
        time.sleep(1.0)
    try:
        yield
    finally:
        for process in started:
            process.terminate()
            process.join()


def _spin() -> None:
    while True:
        math.sqrt(2.0)
