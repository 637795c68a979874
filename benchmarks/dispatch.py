"""What the engine adds to a segment: on the same thread, and across threads.

    python -m benchmarks.dispatch [--runs 30] [--json FILE]

A chain of tiny ops that changes processor at every op, so that nothing but dispatch is left to measure. On one lane
(``ort@0`` and the gang it leads) the cost is a segment's share of the run less the bare calls made in a loop; across
lanes (``ort@0`` and ``ort@1``) it is the gap between the end of a segment and the start of the one that waits for it.
Waits of different lengths are told apart: up to the polling limit a thread polls, beyond it sleeps. All times are
medians in microseconds; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import onnx
from onnx import TensorProto, helper

from agent_sdk.device.discovery import discover
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.wait import POLL_NS
from agent_sdk.model import Model, read_model
from hope_schema import Cause, Plan, Step

MUST_US = {"same thread": 3.0, "across threads": 30.0}
LENGTH = 200


def chain(elements: int) -> Model:
    """``LENGTH`` sines, one after another, of this many elements."""
    names = [f"t{index}" for index in range(LENGTH + 1)]
    nodes = [helper.make_node("Sin", [before], [after]) for before, after in pairwise(names)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, elements)) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return read_model(proto)


def alternating(model: Model, processors: Sequence[str]) -> Plan:
    """Every op on another processor than the one before it."""
    steps = tuple(
        Step(
            id=index,
            ops=(op.id,),
            dtype="float32",
            processor=processors[index % len(processors)],
            start_us=index,
            finish_us=index + 1,
            cause=Cause.FASTER,
        )
        for index, op in enumerate(model.graph.topological_ops)
    )
    return Plan(
        model_hash=model.graph.model_hash,
        soc="benchmark",
        frequency="fixed",
        processors=tuple(processors),
        steps=steps,
        order=tuple(range(len(steps))),
        makespan_us=len(steps),
        lower_bound_us=len(steps),
        gap=0,
        method="alternating",
        bound_method="none",
        profile_version=0,
    )


def same_thread(device: Device, processors: Sequence[str], runs: int) -> dict[str, float | str]:
    """A segment's share of the run, less the call itself."""
    model = chain(8)
    feeds = {model.graph.inputs[0]: np.ones((1, 8), np.float32)}
    with Executor(build_program(alternating(model, processors), model, device.processors), device) as executor:
        buffers = {name: np.ones((1, 8), np.float32) for name in model.graph.tensor}
        calls = [
            executable.bind(
                {name: buffers[name] for name in executable.segment.inputs},
                {name: buffers[name] for name in executable.segment.outputs},
            )
            for executable in executor.executables
        ]
        bare, ours, whole = [], [], []
        for _ in range(runs):
            bare.append(device.call(processors[0], lambda: _bare(calls)))
            started = time.perf_counter_ns()
            trace = executor.run(feeds)[1]
            whole.append((time.perf_counter_ns() - started) / 1e3)
            ours.append(trace.segments[-1].end_us - trace.segments[0].start_us)
    segments = len(calls)
    return {
        "case": "same thread",
        "segments": segments,
        "call_us": median(bare) / segments,
        "dispatch_us": (median(ours) - median(bare)) / segments,
        "run_us": median(whole) - median(ours),
    }


def across_threads(device: Device, processors: Sequence[str], elements: int, runs: int) -> dict[str, float | str]:
    """The gap between the end of a segment and the start of its successor on the other thread."""
    model = chain(elements)
    feeds = {model.graph.inputs[0]: np.ones((1, elements), np.float32)}
    gaps, works = [], []
    with Executor(build_program(alternating(model, processors), model, device.processors), device) as executor:
        for _ in range(runs):
            spans = executor.run(feeds)[1].segments
            gaps += [after.start_us - before.end_us for before, after in pairwise(spans)]
            works.append(median(span.us for span in spans))
    tenths = quantiles(gaps, n=10)
    return {
        "case": "across threads",
        "segments": LENGTH,
        "call_us": median(works),
        "dispatch_us": median(gaps),
        "p10_us": tenths[0],
        "p90_us": tenths[-1],
    }


def _bare(calls: Sequence[Callable[[], None]]) -> float:
    started = time.perf_counter_ns()
    for call in calls:
        call()
    return (time.perf_counter_ns() - started) / 1e3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dispatch", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30, help="runs per case (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    options = parser.parse_args(arguments)
    with Device(discover("ort")) as device:
        singles = [p.id for p in device.processors.values() if len(p.spec.resources) == 1]
        leader = device.processors[singles[0]].spec.resources[0]
        gang = [p.id for p in device.processors.values() if p.spec.resources[0] == leader and p.id != singles[0]]
        rows = [same_thread(device, [singles[0], *gang[:1]], options.runs)]
        if len(singles) > 1:
            rows += [across_threads(device, singles[:2], elements, options.runs) for elements in (8, 4000, 100_000)]
    print(f"{'case':<16}{'call µs':>10}{'dispatch µs':>13}{'p10':>8}{'p90':>8}   must")
    for row in rows:
        tails = f"{row['p10_us']:>8.1f}{row['p90_us']:>8.1f}" if "p10_us" in row else " " * 16
        must = MUST_US[str(row["case"])]
        print(f"{row['case']:<16}{row['call_us']:>10.1f}{row['dispatch_us']:>13.2f}{tails}   ≤ {must:g}")
    print(f"Starting and ending a run costs {rows[0]['run_us']:.1f} µs more; threads poll for {POLL_NS / 1e3:.0f} µs.")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
