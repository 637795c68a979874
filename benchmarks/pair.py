"""A phone's ratio of GPU to CPU on a machine that can be measured: a few multiprocessors beside the cores, planned.

    python -m benchmarks.gpu --models "" --pair inception_v3,inception_v4     (whole networks with branches)
    python -m benchmarks.splits --pair vgg19,resnet50                         (without: their ops are computed in parts)

The last core computes nothing: it sets the GPU and its copy engines to work. An agent measures, asks for a plan, tries
it beside every processor alone and asks again, as for any user; then all take turns. What was planned is the makespan
of the plan that is carried out, as the planner said it before any of these runs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from agent_sdk.agent import Agent
from agent_sdk.engine import Copy, Executor
from agent_sdk.engine.trace import Trace
from agent_sdk.explain.perfetto import to_perfetto
from agent_sdk.journey.services import THOROUGH_S
from agent_sdk.journey.trial import PLAN
from agent_sdk.machine.cores import name_cores
from agent_sdk.machine.soc import read_soc
from agent_sdk.machine.timing import take_turns
from agent_sdk.machine.witness import Witness
from agent_sdk.model.feeds import draw
from benchmarks.results import Measure, say, verdict
from benchmarks.traces import busy_together

MULTIPROCESSORS: Final = 8
ROUNDS: Final = 40
BUDGET_S: Final = 20.0
"""How long an improved plan is waited for."""
MUST: Final[Mapping[str, tuple[float, float]]] = {
    "inception_v3": (0.90, 0.10),
    "inception_v4": (0.90, 0.10),
    "vgg19": (0.85, 0.08),
    "resnet50": (0.85, 0.08),
}
"""By network: of the best single processor's time, and how far a plan may be off."""


def processors() -> str:
    """A part of the GPU, and all cores but the last."""
    cores = tuple(sorted(read_soc().cores))
    return f"cuda:0/{MULTIPROCESSORS}sm,ort@{name_cores(cores[:-1])}"


def rows(name: str, traces_to: Path | None = None, on: str | None = None) -> list[dict[str, Any]]:
    """The plan and each processor alone, by turns; ``on`` names other processors than the pair's."""
    with (
        Agent(processors=on or processors(), measuring_s=THOROUGH_S, wait_s=BUDGET_S) as agent,
        agent.load(name, all_rivals=True, background=False) as session,
    ):
        contenders = dict(session.latest.contenders)
        traces = runs(contenders, draw(session.latest.model, 0))
        walls = walls_us(traces)
        # A plan that uses one processor is that processor, and its session has it once.
        best = min(us for label, us in walls.items() if len(contenders[label].program.processors_used) == 1)
        found = []
        for label, wall in walls.items():
            program = contenders[label].program
            trace = min(traces[label], key=lambda trace: abs(trace.total_us - wall))
            planned = program.plan.makespan_us if label == PLAN else None
            row = {
                "model": name,
                "precision": "fp32",
                "config": f"pair {label}",
                "median_us": round(wall, 1),
                "ratio_to_best_single": round(wall / best, 4),
                "predicted_us": planned and round(planned, 1),
                "prediction_error": planned and round(planned / wall - 1, 4),
                "overlap": round(busy_together(trace), 4),
                "processors": list(program.processors_used),
                "segments": len(program.segments),
                "copies": sum(isinstance(work, Copy) for work in program.work),
                "cuts": len(program.plan.jobs[0].cuts),
            }
            found.append(row)
            say(row)
            if traces_to is not None and label == PLAN:
                (traces_to / f"{name}-pair.trace.json").write_text(json.dumps(to_perfetto(trace)))
        print("\n".join(session.notes), flush=True)
        return found


def runs(executors: Mapping[str, Executor], feeds: Mapping[str, np.ndarray]) -> Mapping[str, Sequence[Trace]]:
    """Runs by the engine, timed in turns as an agent times them."""
    calls = {label: partial(own.traced, feeds) for label, own in executors.items()}
    with Witness() as witness:
        turns = take_turns(calls, rounds=ROUNDS, witness=witness)
    return {label: [turn.result for turn in turns.counted[label]] for label in calls}


def walls_us(traces: Mapping[str, Sequence[Trace]]) -> dict[str, float]:
    """What a run takes from its inputs on the host to its outputs there."""
    return {label: statistics.median(trace.total_us for trace in own) for label, own in traces.items()}


def verdicts(found: Sequence[Mapping[str, Any]]) -> list[Measure]:
    """What a plan for the pair must reach; nothing of networks that nothing was asked of."""
    measures = []
    for row in found:
        if row["config"] == f"pair {PLAN}" and row["model"] in MUST:
            ratio, off = MUST[row["model"]]
            where = f"{row['model']} on {MULTIPROCESSORS} SMs + cores"
            measures.append(verdict(f"{where} / best single", row["ratio_to_best_single"], ratio))
            measures.append(verdict(f"{where}: planned", abs(row["prediction_error"]), off))
    return measures
