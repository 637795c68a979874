"""Ours against the runtimes, per model: same process, same conditions, interleaved rounds, medians and ratios.

    python -m benchmarks.engine [--models inception_v1,squeezenet] [--rounds 15] [--load N] [--json FILE]

Configurations: ONNX Runtime with one thread, all threads, and its parallel mode; OpenVINO with all threads (and
HETERO where it has several devices); ours as ``Session.run`` answers, and the plan before any fallback. ``--load N``
keeps N other processes busy meanwhile; without it, rounds in which other processes took more than a twentieth of
the machine are repeated for a while. ``--segmentation`` also cuts every model on one core into pieces of 16
super-ops and compares their sum with the whole.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from agent_sdk import zoo
from agent_sdk.agent import Agent
from agent_sdk.examine import answer_error, computed
from agent_sdk.reader import pre_softmax_outputs
from agent_sdk.session import Session
from agent_sdk.truth import remeasure
from agent_sdk.verify import random_inputs, reference, relative_error
from benchmarks import dispatch
from benchmarks.quiet import PATIENCE_S, undisturbed
from benchmarks.runtimes import ORT_CONFIGS, Run, baselines
from benchmarks.segmentation import loss

WARM_UP = 3
PAUSE_S = 0.003
OURS = ("ours", "ours_planned")


def measure(
    runs: Mapping[str, Run], inputs: Mapping[str, np.ndarray], rounds: int, patience_s: float
) -> tuple[dict[str, list[float]], int]:
    """Microseconds per configuration and round, and how many of the rounds others disturbed.

    The order is drawn anew in every round, and between two runs the threads of the one before go to sleep, so that
    nobody always suffers from the same neighbour.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    latest: dict[str, float] = {}
    order = list(runs)
    draw = random.Random(0)

    def one_round() -> None:
        draw.shuffle(order)
        for name in order:
            time.sleep(PAUSE_S)
            started = time.perf_counter_ns()
            runs[name](inputs)
            latest[name] = (time.perf_counter_ns() - started) / 1e3

    def keep() -> None:
        for name, us in latest.items():
            times[name].append(us)

    for _ in range(WARM_UP):
        one_round()
    return times, undisturbed(one_round, keep, rounds, patience_s)


def rows_for(
    agent: Agent, name: str, rounds: int, load: int, patience_s: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Time one model in every configuration; the rows, and what else there is to say about it."""
    session = agent.load(name)
    try:
        model = session.model
        inputs = random_inputs(model.graph, 0)
        runs = baselines(model, len(agent.soc.cores))
        runs["ours"] = session.run
        runs["ours_planned"] = lambda feeds: session.plan_executor.run(feeds)[0]
        with busy(load):
            times, disturbed = measure(runs, inputs, rounds, 0.0 if load else patience_s)
            predicted, off = {}, {}
            for config, executor in (("ours", session.executor), ("ours_planned", session.plan_executor)):
                predicted[config] = remeasure(executor, inputs).predicted_us
                # As warm as what was predicted: among other configurations every run finds cold caches.
                again = statistics.median(executor.run(inputs)[1].total_us for _ in range(rounds))
                off[config] = abs(predicted[config] - again) / again
        medians = {config: statistics.median(samples) for config, samples in times.items()}
        best_ort = min(medians[config] for config in ORT_CONFIGS)
        best_single = min(us for config, us in medians.items() if config not in OURS)
        errors = errors_of(session, runs, inputs)
        programs = {"ours": session.executor.program, "ours_planned": session.plan_executor.program}
        rows = []
        for config, us in medians.items():
            program = programs.get(config)
            rows.append(
                {
                    "model": name,
                    "config": config,
                    "median_us": round(us, 1),
                    "ratio_to_best_ort": round(us / best_ort, 4),
                    "ratio_to_best_single": round(us / best_single, 4),
                    "prediction_error": round(off[config], 4) if config in off else None,
                    "max_rel_error": errors[config],
                    "processors_used": list(program.processors_used) if program else [config],
                    "segments": len(program.segments) if program else 1,
                }
            )
        trace = session.plan_executor.run(inputs)[1]
        facts = {
            "model": name,
            "answered_by": session.contest.current,
            "disturbed_rounds": disturbed,
            "changes": list(session.contest.changes),
            "planned_us": session.plan.makespan_us,
            "predicted_us": predicted["ours_planned"],
            "method": session.plan.method,
            "peak_bytes": trace.peak_bytes,
            "allocated_bytes": session.plan_executor.allocated_bytes,
        }
        return rows, facts
    finally:
        session.close()


def errors_of(session: Session, runs: Mapping[str, Run], inputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Largest relative error per configuration: ours before softmax, the runtimes on the outputs they give."""
    model = session.model
    compared = tuple(dict.fromkeys(pre_softmax_outputs(model.graph)))
    expected = reference(model, inputs, tuple(dict.fromkeys((*compared, *model.graph.outputs))))
    before = {name: expected[name] for name in compared}
    after = {name: expected[name] for name in model.graph.outputs}
    errors = {config: relative_error(run(inputs), after) for config, run in runs.items() if config not in OURS}
    errors["ours"] = answer_error(session, inputs)
    errors["ours_planned"] = relative_error(computed(session.plan_executor, model, inputs, compared), before)
    return errors


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
    """The lines that the issue's table asks for."""
    ours = [row for row in rows if row["config"] == "ours"]
    planned = [row for row in rows if row["config"] == "ours_planned"]
    wins = [r["model"] for r in planned if r["ratio_to_best_single"] < 0.99 and len(r["processors_used"]) > 1]
    lines = []
    for key, label in (("ratio_to_best_ort", "best ONNX Runtime"), ("ratio_to_best_single", "best single runtime")):
        ratios = [row[key] for row in ours]
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
        lines.append(f"ours / {label}: worst {max(ratios):.3f}, geometric mean {mean:.3f}")
    lines.append(f"plans that win with two or more processors: {len(wins)} ({', '.join(wins) or 'none'})")
    lines.append(f"prediction error: worst {max(row['prediction_error'] for row in ours):.1%}")
    return lines


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """One line per row."""
    for row in rows:
        off = f"{row['prediction_error']:7.1%}" if row["prediction_error"] is not None else " " * 7
        print(
            f"{row['model']:<16} {row['config']:<15} {row['median_us'] / 1e3:9.2f} ms  {row['ratio_to_best_ort']:6.3f} "
            f"{row['ratio_to_best_single']:6.3f} {off}  {row['max_rel_error']:.1e}  "
            f"{row['segments']:4d}  {','.join(row['processors_used'])}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(zoo.names()), help="comma-separated zoo networks (default: all)")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds per model (default %(default)s)")
    parser.add_argument("--processors", help="plan with these processors only")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="keep N other processes busy meanwhile")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, metavar="S", help="seconds to wait for quiet rounds, per model"
    )
    parser.add_argument("--segmentation", action="store_true", help="also measure what cutting costs on one core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    facts: list[dict[str, Any]] = []
    print(f"{'model':<16} {'config':<15} {'median':>9}     / ort  / all   pred.  error   segments, processors")
    with Agent(processors=options.processors) as agent:
        for name in options.models.split(","):
            found, more = rows_for(agent, name, options.rounds, options.load, options.patience)
            if options.segmentation:
                more["segmentation"] = loss(name)
            show(found)
            print(
                f"{'':<16} answered by {more['answered_by']}, planned {more['planned_us'] / 1e3:.2f} ms by "
                f"{more['method']}, predicted {more['predicted_us'] / 1e3:.2f} ms, "
                f"{more['disturbed_rounds']} of {options.rounds} rounds disturbed"
            )
            if options.segmentation:
                print(f"{'':<16} pieces / whole on one core, by super-ops per piece: {more['segmentation']}")
            rows += found
            facts.append(more)
        cores = [p.id for p in agent.device.processors.values() if p.spec.runtime == "ort"]
        lanes = [cores[0], cores[-1]]
        dispatched = [dispatch.same_thread(agent.device, lanes, 20)]
        if len(cores) > 2:
            dispatched.append(dispatch.across_threads(agent.device, cores[:2], 4000, 20))
    for line in summary(rows):
        print(line)
    for row in dispatched:
        print(f"dispatch, {row['case']}: {row['dispatch_us']:.2f} µs a segment")
    if options.json:
        content = {"rows": rows, "models": facts, "dispatch": dispatched}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
