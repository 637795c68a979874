"""Ours against the runtimes, per model: same process, same conditions, interleaved rounds, medians and ratios.

    python -m benchmarks.engine [--models inception_v1,squeezenet] [--rounds 15] [--load N] [--json FILE]

Configurations: ONNX Runtime with one thread, all threads, and its parallel mode; OpenVINO with all threads (and
HETERO where it has several devices); ours as ``Session.run`` answers, and the plan before any fallback. ``--load N``
keeps N other processes busy meanwhile; without it, only those runs count beside which a witness found the cores at
full speed, as far as ``--patience`` allows. ``--segmentation`` also cuts every model on one core into pieces of 16
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from agent_sdk.measure.steady import Witness, calm, counted

import hope_zoo as zoo
from agent_sdk.agent import Agent
from agent_sdk.cli.examine import answer_error, executor_error
from agent_sdk.engine import Device
from agent_sdk.measure.timing import Timing, timed
from agent_sdk.measure.truth import Rehearsal
from agent_sdk.model import pre_softmax_outputs
from agent_sdk.session import Session
from agent_sdk.verify import random_inputs, reference, relative_error
from benchmarks import dispatch
from benchmarks.runtimes import ORT_CONFIGS, Run, baselines
from benchmarks.segmentation import loss

LEAST_S = 10.0
"""How long a model is measured where patience reaches so far: fast networks then get many rounds, steady medians."""
PAUSE_S = 0.003
OURS = ("ours", "ours_planned")


@dataclass(frozen=True)
class Sample:
    """One run: microseconds, what it has to tell, and how many times its shortest the witness took beside it."""

    us: float
    result: Any
    slowness: float

    @property
    def calm(self) -> bool:
        """Whether the cores were at full speed right before and right after."""
        return calm(self.slowness)


def measure(
    runs: Mapping[str, Callable[[], Any]], rounds: int, witness: Witness | None, patience_s: float
) -> dict[str, list[Sample]]:
    """Run all configurations in turns; return those runs of each that count.

    The order is drawn anew in every round, and before every turn the threads of the one before go to sleep, so that
    nobody always suffers from the same neighbour. A turn is two runs, of which the second one is timed: the first
    brings back into the caches what others pushed out, as the request before does where networks are served.

    With a witness this goes on until every configuration had ``rounds`` calm runs, or for ``patience_s`` seconds, and
    only calm runs count; where these are fewer, the calmest third does. Calm is what the witness says, whatever the
    runs themselves took.
    """
    taken: dict[str, list[Sample]] = {name: [] for name in runs}
    order = list(runs)
    draw = random.Random(0)
    began = time.monotonic()

    def enough() -> bool:
        if min(len(own) for own in taken.values()) < rounds:
            return False
        if witness is None:
            return True
        span = time.monotonic() - began
        fewest = min(sum(sample.calm for sample in own) for own in taken.values())
        return span >= patience_s or (fewest >= rounds and span >= LEAST_S)

    while not enough():
        draw.shuffle(order)
        for name in order:
            time.sleep(PAUSE_S)
            before = witness.slowness(PAUSE_S) if witness else 1.0
            runs[name]()
            us, result = timed(runs[name])
            after = witness.slowness() if witness else 1.0
            taken[name].append(Sample(us, result, max(before, after)))
    if witness is None:
        return taken
    return {name: [own[i] for i in counted([run.slowness for run in own], rounds)] for name, own in taken.items()}


def rows_for(
    agent: Agent, name: str, rounds: int, load: int, witness: Witness | None, patience_s: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Time one model in every configuration; the rows, and what else there is to say about it."""
    session = agent.load(name)
    try:
        model = session.model
        inputs = random_inputs(model.graph, 0)
        runs = baselines(model, len(agent.soc.cores))
        runs["ours"] = session.run
        runs["ours_planned"] = lambda feeds: session.plan_executor.run(feeds)[0]
        executors = {"ours": session.executor, "ours_planned": session.plan_executor}
        rehearsals = {config: Rehearsal(executor, inputs) for config, executor in executors.items()}
        calls: dict[str, Callable[[], Any]] = {config: partial(_forgotten, run, inputs) for config, run in runs.items()}
        # Segments alone take turns with whole runs, so that both find the caches and the machine in the same state.
        calls |= {f"{config}, segments alone": rehearsal.round for config, rehearsal in rehearsals.items()}
        with busy(load):
            samples = measure(calls, rounds, witness, patience_s)
        medians = {config: statistics.median(sample.us for sample in samples[config]) for config in runs}
        predicted, off = {}, {}
        for config, rehearsal in rehearsals.items():
            alone = zip(*(sample.result for sample in samples[f"{config}, segments alone"]), strict=True)
            predicted[config] = rehearsal.truth([middle(times) for times in alone]).predicted_us
            off[config] = abs(predicted[config] - medians[config]) / medians[config]
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
            "runs": {config: len(own) for config, own in samples.items()},
            "calm_runs": {config: sum(sample.calm for sample in own) for config, own in samples.items()},
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


def _forgotten(run: Run, inputs: Mapping[str, np.ndarray]) -> None:
    """Run and let go of the outputs, as a user does: kept ones would cost the runtimes' allocators new memory."""
    run(inputs)


def middle(samples: Sequence[float]) -> Timing:
    """The median, as of whole runs."""
    return Timing(us=statistics.median(samples), spread_us=0.0, count=len(samples))


def errors_of(session: Session, runs: Mapping[str, Run], inputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Largest relative error per configuration: ours as ``hope-agent run`` checks it, the runtimes on their outputs."""
    model = session.model
    compared = tuple(dict.fromkeys(pre_softmax_outputs(model.graph)))
    expected = reference(model, inputs, tuple(dict.fromkeys((*compared, *model.graph.outputs))))
    before = {name: expected[name] for name in compared}
    after = {name: expected[name] for name in model.graph.outputs}
    errors = {config: relative_error(run(inputs), after) for config, run in runs.items() if config not in OURS}
    errors["ours"] = answer_error(session, inputs)
    errors["ours_planned"] = executor_error(session.plan_executor, model, inputs, before)
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


def dispatched(device: Device) -> list[dict[str, float | str]]:
    """What the engine adds to a segment, where ONNX Runtime has a core and a gang on one lane, or two cores."""
    own = [processor.spec for processor in device.processors.values() if processor.spec.runtime == "ort"]
    singles = [spec for spec in own if spec.threads == 1]
    gangs = [spec for spec in own if spec.threads > 1]
    pairs = [[one.id, gang.id] for one in singles for gang in gangs if one.resources[0] == gang.resources[0]]
    rows = [dispatch.same_thread(device, pair, 20) for pair in pairs[:1]]
    if len(singles) > 1:
        rows.append(dispatch.across_threads(device, [spec.id for spec in singles[:2]], 4000, 20))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(zoo.names()), help="comma-separated zoo networks (default: all)")
    parser.add_argument("--rounds", type=int, default=15, help="fewest timed rounds per model (default %(default)s)")
    parser.add_argument("--processors", help="plan with these processors only")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="keep N other processes busy meanwhile")
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="S", help="seconds to go on looking for calm runs, per model"
    )
    parser.add_argument("--segmentation", action="store_true", help="also measure what cutting costs on one core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    facts: list[dict[str, Any]] = []
    content: dict[str, Any] = {"rows": rows, "models": facts, "dispatch": []}

    def save() -> None:
        if options.json:
            options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    print(f"{'model':<16} {'config':<15} {'median':>9}     / ort  / all   pred.  error   segments, processors")
    with Agent(processors=options.processors) as agent, Witness() as witness:
        for name in options.models.split(","):
            watching = None if options.load else witness
            found, more = rows_for(agent, name, options.rounds, options.load, watching, options.patience)
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
        content["dispatch"] = dispatched(agent.device)
        save()
    for line in summary(rows):
        print(line)
    for row in content["dispatch"]:
        print(f"dispatch, {row['case']}: {row['dispatch_us']:.2f} µs a segment")
    return 0


if __name__ == "__main__":
    sys.exit(main())
