"""Ours against the runtimes, per model: same process, same conditions, interleaved rounds, medians and ratios.

    python -m benchmarks.engine [--models inception_v1,squeezenet] [--rounds 15] [--load N] [--json FILE]

Configurations: ONNX Runtime with 1, 2, 4, 8, ... and all threads, and its parallel mode; OpenVINO, where it is
installed, with all threads (and HETERO where it has several devices); ours as ``Session.run`` answers, and the plan
before any fallback. ``--load N`` keeps N other processes busy meanwhile; without it, only those rounds count beside
which a witness found the cores at full speed, as far as ``--patience`` allows, or the network's share of ``--minutes``.
The file holds every network that is done, whatever becomes of the next. ``--segmentation`` also cuts every model on one
core into pieces of 16 super-ops and compares their sum with the whole.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import hope_zoo as zoo
from agent_sdk.agent import Agent
from agent_sdk.engine import Executor
from agent_sdk.errors import HopeError
from agent_sdk.explain import to_perfetto
from agent_sdk.measure.timing import Turn, take_turns
from agent_sdk.measure.witness import Witness, calm
from agent_sdk.model import Model, pre_softmax_outputs
from agent_sdk.obtaining import THOROUGH_S
from agent_sdk.selection.trial import PLAN
from agent_sdk.session import Session
from agent_sdk.verify import executor_error, random_inputs, reference, relative_error
from benchmarks import dispatch
from benchmarks.memory import allocated_bytes, peak_bytes
from benchmarks.results import circumstances
from benchmarks.runtimes import Run, baselines
from benchmarks.segmentation import loss
from benchmarks.together import busy_together

SETTLING_S = 3.0
"""Seconds of runs before anything is timed: a session compares who was near at its trial (``selection/serving.py``)."""
TRACED = 5
"""Runs of what answers that are traced, beside those that are timed: users ask for no record."""
LEAST_S = 10.0
"""How long a model is measured where patience reaches so far: fast networks then get many rounds, steady medians."""


def measure(
    runs: Mapping[str, Callable[[], Any]], rounds: int, witness: Witness | None, patience_s: float
) -> dict[str, list[Turn]]:
    """Run all configurations in turns (``measure/timing.py``); return those runs of each that count.

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
        model, serving = session.latest.model, session.latest.serving
        inputs = random_inputs(model.graph, 0)
        runs: dict[str, Run] = baselines(model, len(agent.soc.cores))
        calls: dict[str, Callable[[], Any]] = {config: partial(_forgotten, run, inputs) for config, run in runs.items()}
        calls["ours"] = partial(_forgotten, session.run, inputs)
        calls["ours_planned"] = lambda: session.latest.plan_executor.run(inputs)[1]
        settled = time.monotonic() + SETTLING_S
        while time.monotonic() < settled:
            session.run(inputs)
        before = serving.answered.copy()
        with busy(load):
            turns = measure(calls, rounds, witness, min(patience_s, until - time.monotonic()))
        answered_by = (serving.answered - before).most_common(1)[0][0]
        executors = {"ours": serving.contenders[answered_by], "ours_planned": session.latest.plan_executor}
        medians = {config: statistics.median(turn.us for turn in turns[config]) for config in calls}
        predicted_us = {"ours": predicted(session, answered_by), "ours_planned": session.plan.makespan_us}
        planner_us = session.latest.plan_executor.program.plan.makespan_us
        best_ort = min(us for config, us in medians.items() if config.startswith("ort_"))
        best_single = min(medians[config] for config in runs)
        traces = {"ours": [executors["ours"].run(inputs)[1] for _ in range(TRACED)]}
        traces["ours_planned"] = [turn.result for turn in turns["ours_planned"]]
        errors = errors_of(model, executors, runs, inputs)
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
        trace = session.latest.plan_executor.run(inputs)[1]
        if traces_to is not None:
            (traces_to / f"{name}.trace.json").write_text(json.dumps(to_perfetto(trace)))
        facts = {
            "model": name,
            "answered_by": answered_by,
            "runs": {config: len(own) for config, own in turns.items()},
            "calm_runs": {config: sum(calm(turn.disturbance) for turn in own) for config, own in turns.items()},
            "changes": list(serving.changes),
            "notes": list(session.notes),
            "quiet_us": dict(serving.quiet_us),
            "planned_us": planner_us,
            "lower_bound_us": session.plan.lower_bound_us,
            "predicted_us": predicted_us["ours_planned"],
            "method": session.plan.method,
            "peak_bytes": peak_bytes(trace),
            "allocated_bytes": allocated_bytes(session.latest.plan_executor),
        }
        return rows, facts


def predicted(session: Session, answered_by: str) -> float:
    """What was said beforehand about what answers: the plan's makespan, or the trial's figure of another."""
    return (
        session.plan.makespan_us if answered_by == PLAN else session.latest.serving.quiet_us.get(answered_by, math.nan)
    )


def _forgotten(run: Run, inputs: Mapping[str, np.ndarray]) -> None:
    """Run and let go of the outputs, as a user does: kept ones would cost the runtimes' allocators new memory."""
    run(inputs)


def errors_of(
    model: Model, executors: Mapping[str, Executor], runs: Mapping[str, Run], inputs: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Largest relative error per configuration: ours as ``hope-agent run`` checks it, the runtimes on their outputs."""
    compared = tuple(dict.fromkeys(pre_softmax_outputs(model.graph)))
    expected = reference(model, inputs, tuple(dict.fromkeys((*compared, *model.graph.outputs))))
    before = {name: expected[name] for name in compared}
    after = {name: expected[name] for name in model.graph.outputs}
    errors = {config: relative_error(run(inputs), after) for config, run in runs.items()}
    return errors | {config: executor_error(own, model, inputs, before) for config, own in executors.items()}


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


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of the summary."""
    ours = [row for row in rows if row["config"] == "ours"]
    planned = [row for row in rows if row["config"] == "ours_planned"]
    wins = [r["model"] for r in planned if r["ratio_to_best_single"] < 0.99 and len(r["processors_used"]) > 1]
    lines = []
    for key, label in (("ratio_to_best_ort", "best ONNX Runtime"), ("ratio_to_best_single", "best single runtime")):
        ratios = [row[key] for row in ours]
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
        lines.append(f"ours / {label}: worst {max(ratios):.3f}, geometric mean {mean:.3f}")
    lines.append(f"plans that win with two or more processors: {len(wins)} ({', '.join(wins) or 'none'})")
    errors = {"what answers": ours, "plans": planned}
    lines += [
        f"prediction error, {name}: worst {max(r['prediction_error'] for r in own):.1%}" for name, own in errors.items()
    ]
    parallel = [row["model"] for row in ours if row["overlap"] >= 1 / 3 and row["ratio_to_best_ort"] <= 0.85]
    lines.append(
        f"<= 0.85 with two or more at work for a third of a run: {len(parallel)} ({', '.join(parallel) or 'none'})"
    )
    return lines


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """One line per row."""
    for row in rows:
        off = f"{row['prediction_error']:7.1%}" if row["prediction_error"] is not None else " " * 7
        print(
            f"{row['model']:<16} {row['config']:<15} {row['median_us'] / 1e3:9.2f} ms  {row['ratio_to_best_ort']:6.3f} "
            f"{row['ratio_to_best_single']:6.3f} {off}  {row['max_rel_error']:.1e}  "
            f"{row['segments']:4d} {'' if row['overlap'] is None else format(row['overlap'], '5.0%'):>5}  "
            f"{','.join(row['processors_used'])}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(zoo.names()), help="comma-separated zoo networks (default: all)")
    parser.add_argument("--rounds", type=int, default=15, help="fewest timed rounds per model (default %(default)s)")
    parser.add_argument("--processors", help="plan with these processors only")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="keep N other processes busy meanwhile")
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="S", help="seconds to go on looking for calm runs, per model"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, metavar="M", help="have patience for no longer than that, all told"
    )
    parser.add_argument("--wait", type=float, metavar="S", help="let the planner improve each plan for up to S seconds")
    parser.add_argument("--trace", type=Path, metavar="DIRECTORY", help="write a Perfetto trace of every plan there")
    parser.add_argument("--segmentation", action="store_true", help="also measure what cutting costs on one core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    facts: list[dict[str, Any]] = []
    failed: list[str] = []
    content: dict[str, Any] = {"rows": rows, "models": facts, "dispatch": []}

    def save() -> None:
        if options.json:
            whole = options.json.with_suffix(".part")
            whole.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            whole.replace(options.json)

    print(f"{'model':<16} {'config':<15} {'median':>9}     / ort  / all   pred.  error   segments, overlap, processors")
    names = options.models.split(",")
    here = Agent(
        processors=options.processors,
        wait_s=options.wait,
        measuring_s=min(THOROUGH_S, 60 * options.minutes / len(names)),
    )
    content["circumstances"] = circumstances()
    content["machine"] = {
        "soc": here.soc.name,
        "cores": len(here.soc.cores),
        "processors": [spec.id for spec in here.planned],
    }
    end = time.monotonic() + 60 * options.minutes
    with here as agent, Witness() as witness:
        watching = None if options.load else witness
        for done, name in enumerate(names):
            now = time.monotonic()
            until = now + (end - now) / (len(names) - done)
            try:
                found, more = rows_for(
                    agent, name, options.rounds, options.load, watching, options.patience, until, options.trace
                )
            except HopeError as error:
                failed.append(name)
                print(f"{name:<16} failed: {error}", flush=True)
                continue
            if options.segmentation:
                more["segmentation"] = loss(name)
            show(found)
            print(
                f"{'':<16} answered by {more['answered_by']}, planned {more['planned_us'] / 1e3:.2f} ms by "
                f"{more['method']}, predicted {more['predicted_us'] / 1e3:.2f} ms, "
                f"{sum(more['calm_runs'].values())} of {sum(more['runs'].values())} runs that count were calm"
            )
            if options.segmentation:
                print(f"{'':<16} pieces / whole on one core, by super-ops per piece: {more['segmentation']}")
            rows += found
            facts.append(more)
            save()
        content["witness_us"] = witness.shortest_us
        content["dispatch"] = [{"case": "same lane", "dispatch_us": dispatch.same_lane()}]
        save()
    for line in summary(rows) if rows else ():
        print(line)
    for row in content["dispatch"]:
        print(f"dispatch, {row['case']}: {row['dispatch_us']:.2f} µs a segment")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
