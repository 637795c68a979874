"""What a session takes beside the runtime it stands on, to start and at each run; and how many networks it runs right.

    nice python -m benchmarks.session [--only starts,run,trust,behind,counts] [--rounds 15] [--json FILE]
                                      [--models squeezenet,inception_v1,shufflenet]

Times are ratios of medians: ours and the runtime's own calls take turns within one process. What a start leaves to be
done behind it is ended before the next turn. What trust costs is found on all processors, of the small networks and of
``--models``. Counts are of tests that pass, with their full counts (``make campaign``); those of exports need the
``campaign`` extra.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final
from unittest.mock import patch
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import hope_zoo as zoo
from agent_sdk import Agent, Session
from agent_sdk.engine import Executor
from agent_sdk.engine.flight import Flight
from agent_sdk.journey.trial import PLAN
from agent_sdk.model.feeds import draw
from agent_sdk.model.held import TICK_S
from benchmarks import behind, cli
from benchmarks.results import ROOT, Measure, Table, TableRow, report, verdict

ONLY: Final = ("starts", "run", "trust", "behind", "counts")
COLD: Final = 1.5
WARM: Final = 1.5
TRAVELLED: Final = 1.3
RUN: Final = 1.10
LOOKED: Final = 1.02
LOOKING_S: Final = 10.0
"""How long runs are looked at in turns with others."""
SMALL_S: Final = (60e-6, 100e-6, 150e-6)
"""What plain runs of the small networks take, about."""
ROWS: Final = 25
ROW: Final = 300
"""Their runs in a row, in which nobody else has a turn,"""
REST_S: Final = 0.06
"""and a rest before them: ONNX Runtime's threads spin for 40 ms after a run, at the expense of whoever is next."""
COUNTED: Final = {
    "files inside popular packages that run and are right": ("model/test_shipped.py", "computed_right"),
    "exports of torchvision, timm and a GPT-2 that run and are right": (
        "model/test_exported.py",
        "exported_networks or decoder",
    ),
    "parts of onnx's backend suite where all that ONNX Runtime passes passes": ("model/test_backend_suite.py", "ours"),
    "types with one answer in 2000 calls on two runtimes under load": ("test_session_shapes.py", "under_load"),
}
"""What is counted: cases of a file of tests whose names contain something."""


def small_network(channels: int, size: int = 16) -> bytes:
    """Two convolutions."""
    rng = np.random.default_rng(0)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, size, size]) for name in ("x", "y")]
    weights = [
        numpy_helper.from_array((rng.standard_normal((channels, channels, 3, 3)) * 0.1).astype(np.float32), name)
        for name in ("w0", "w1")
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], weights)
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto.SerializeToString()


def sized_networks() -> list[bytes]:
    """The small networks whose plain runs take nearest to ``SMALL_S`` on this machine."""

    def plain_s(source: bytes) -> float:
        session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
        inputs = {port.name: np.zeros(port.shape, np.float32) for port in session.get_inputs()}
        time.sleep(REST_S)
        return statistics.median([timed_own(session, inputs) for _ in range(ROW)][ROW // 3 :])

    took = {
        source: plain_s(source) for source in (small_network(*of) for of in product(range(16, 72, 8), (12, 14, 16, 20)))
    }
    return [min(took, key=lambda source: abs(took[source] - wanted)) for wanted in SMALL_S]


def in_turns(calls: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median seconds of each, after one turn that does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            took = call()
            if turn:
                times[name].append(took)
    return {name: statistics.median(own) for name, own in times.items()}


def in_rows(calls: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Median seconds of each, in rows of runs; the first third, until the threads are awake, does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROWS):
        for name, call in calls.items():
            time.sleep(REST_S)
            times[name] += [call() for _ in range(ROW)][ROW // 3 :]
    return {name: statistics.median(own) for name, own in times.items()}


def counts() -> tuple[list[Measure], list[TableRow]]:
    """How many cases pass of all that were not skipped; and of each count the cases, the skipped and the seconds."""
    measures: list[Measure] = []
    rows: list[TableRow] = []
    for what, (file, names) in COUNTED.items():
        began = time.perf_counter()
        with tempfile.NamedTemporaryFile(suffix=".xml") as found:
            command = [sys.executable, "-m", "pytest", "-q", f"tests/agent/{file}", "-k", names]
            command += ["--timeout", "600", f"--junitxml={found.name}"]
            subprocess.run(
                command, cwd=ROOT, env={**os.environ, "HOPE_CAMPAIGN": "1"}, capture_output=True, check=False
            )
            suite = next(ElementTree.parse(found.name).getroot().iter("testsuite")).attrib
        total, skipped, failed = (int(suite[name]) for name in ("tests", "skipped", "failures"))
        cases = total - skipped
        if cases:
            measures.append(verdict(what, cases - failed - int(suite["errors"]), cases, at_least=True))
        rows.append([what, cases, skipped, round(time.perf_counter() - began)])
    return measures, rows


def own_load(runtime: str, path: Path) -> float:
    """Seconds that a runtime takes to load a file by itself."""
    began = time.perf_counter()
    if runtime == "openvino":
        from agent_sdk.runtimes.openvino.processor import runtime as core

        loaded: object = core().compile_model(str(path), "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    else:
        loaded = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    took = time.perf_counter() - began
    del loaded
    return took


def own_first_answer(path: Path, inputs: Mapping[str, np.ndarray]) -> float:
    """Seconds that ONNX Runtime takes to load a file and run it once."""
    began = time.perf_counter()
    ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, dict(inputs))
    return time.perf_counter() - began


def first_answer(agent: Agent, path: Path, inputs: Mapping[str, np.ndarray], folder: Path) -> float:
    """Seconds that a cold start takes until it has answered; every file is a new one to it, not one just written."""
    fresh = Path(shutil.copy(path, folder / f"cold-{time.monotonic_ns()}.onnx"))
    time.sleep(2 * TICK_S)
    began = time.perf_counter()
    session = agent.load(fresh)
    session.run(inputs)
    took = time.perf_counter() - began
    session.close()
    fresh.unlink()
    return took


def load(agent: Agent, path: Path, plan: Path | None = None) -> float:
    """Seconds until ``load`` returns."""
    began = time.perf_counter()
    session = agent.load(path, plan=plan)
    took = time.perf_counter() - began
    session.close()
    return took


def starts(agent: Agent, name: str, rounds: int, folder: Path) -> tuple[list[Measure], TableRow]:
    """The three starts of one network."""
    path, plan = folder / f"{name}.onnx", folder / f"{name}.plan"
    shutil.copy(zoo.path(name), path)
    with agent.load(path, background=False) as prepared:
        inputs = draw(prepared.latest.model, 0)
        agent.export_plan(prepared, plan)
        answers = prepared.latest.current
    with agent.load(path) as warm, agent.load(path, plan=plan) as travelled:  # two trials, perhaps with two ends
        first, carried = warm.plans.whole.get().runtime, travelled.plans.whole.get().runtime
    cold = in_turns(
        {
            "ours": partial(first_answer, agent, path, inputs, folder),
            "own": partial(own_first_answer, path, inputs),
        },
        rounds,
    )
    loads = in_turns(
        {
            "warm": partial(load, agent, path),
            "travelled": partial(load, agent, path, plan),
            **{runtime: partial(own_load, runtime, path) for runtime in (first, carried)},
        },
        rounds,
    )
    measures = [
        verdict(f"{name}: first answer of a cold start ÷ ONNX Runtime's", cold["ours"] / cold["own"], COLD),
        verdict(f"{name}: warm load ÷ {first}'s", loads["warm"] / loads[first], WARM),
        verdict(f"{name}: load with a plan file ÷ {carried}'s", loads["travelled"] / loads[carried], TRAVELLED),
    ]
    shown = (*cold.values(), loads["warm"], loads[first], loads["travelled"], loads[carried])
    return measures, [name, answers, *(round(took * 1e3, 2) for took in shown)]


def runs(agent: Agent, source: bytes) -> Measure:
    """A run of a small network through a session, beside an InferenceSession of as many threads as answer there."""
    with agent.load(source, background=False) as session:
        options = ort.SessionOptions()
        options.intra_op_num_threads = max(
            own.spec.threads for own in session.latest.executor.program.processors.values()
        )
        theirs = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        inputs = draw(session.latest.model, 0)
        took = in_rows({"ours": partial(timed_run, session, inputs), "own": partial(timed_own, theirs, inputs)})
        who = "the plan" if session.latest.current == PLAN else session.latest.current
    what = f"run of a {took['own'] * 1e6:.0f} µs network ({who}) ÷ InferenceSession.run"
    return verdict(what, took["ours"] / took["own"], RUN)


def looks(agent: Agent, name: str, source: bytes | str) -> tuple[Measure, TableRow] | None:
    """What it adds to a run that its values are looked at, where others than ONNX Runtime answer; None where none do.

    It is all that trust adds: of these networks its tables refuse nothing (``tests/agent/runtimes/test_trust.py``). Of
    two flights of the same compiled segments, which run in turns, one is made as if every processor were the reference.
    """
    with agent.load(source, background=False) as session:
        prepared = session.latest
        inputs, quiet_us = draw(prepared.model, 0), prepared.quiet_us
        trusting = {who: executor.program for who, executor in prepared.contenders.items() if executor.program.trusting}
        if not trusting:
            return None
        who = min(trusting, key=lambda one: quiet_us.get(one, math.inf))
        with Executor(trusting[who], agent.device, in_flight=2) as executor, ExitStack() as believed:
            for kind in set(map(type, executor.program.processors.values())):
                believed.enter_context(patch.object(kind, "trusted", None))
            executor._turns._free[1] = Flight(executor._compiled, agent.device.arbiter, agent.device.cores)

            def looked_at() -> float:
                began = time.perf_counter()
                prepared.takes(inputs)
                executor.run(inputs)
                return time.perf_counter() - began

            def believed_at_once() -> float:
                began = time.perf_counter()
                executor.run(inputs)
                return time.perf_counter() - began

            end = time.monotonic() + LOOKING_S
            pairs: list[tuple[float, float]] = []
            while time.monotonic() < end:
                pairs.append((looked_at(), believed_at_once()))
    us = statistics.median(plain for _, plain in pairs) * 1e6
    ratio = statistics.median(looked / plain for looked, plain in pairs)
    floats = sum(int(np.size(inputs[port])) for port in prepared.model.guard.floats)
    what = f"{name}: a run of {us:.0f} µs ({who}) that is looked at ÷ one that is not"
    return verdict(what, ratio, LOOKED), [name, who, floats, len(pairs), round(us, 1), round(ratio, 4)]


def timed_run(session: Session, inputs: Mapping[str, np.ndarray]) -> float:
    began = time.perf_counter()
    session.run(inputs)
    return time.perf_counter() - began


def timed_own(session: ort.InferenceSession, inputs: Mapping[str, np.ndarray]) -> float:
    began = time.perf_counter()
    session.run(None, inputs)
    return time.perf_counter() - began


def main() -> None:
    parser = cli.measuring("session", __doc__)
    parser.add_argument("--only", type=cli.names, default=ONLY, help="what to measure")
    parser.add_argument("--models", type=cli.names, default=["squeezenet", "inception_v1", "shufflenet"])
    parser.add_argument("--rounds", type=int, default=15, help="turns of each start; the median counts")
    options = parser.parse_args()
    measures: list[Measure] = []
    tables = []
    if "run" in options.only:
        with tempfile.TemporaryDirectory() as name, Agent(processors="ort", cache=Path(name) / "ort") as agent:
            measures += [runs(agent, source) for source in sized_networks()]
    if "trust" in options.only:
        rows = []
        with tempfile.TemporaryDirectory() as folder, Agent(cache=Path(folder) / "cache") as agent:
            small: list[tuple[str, bytes | str]] = [("two convolutions", source) for source in sized_networks()]
            for network, source in [*small, *zip(options.models, options.models, strict=True)]:
                if looked := looks(agent, network, source):
                    measures.append(looked[0])
                    rows.append(looked[1])
        tables.append(Table("Trust", ["network", "answers", "floats", "pairs of runs", "µs", "ratio"], rows))
    if "starts" in options.only:
        os.environ.setdefault("HOPE_SOLVE_BUDGET_S", "2")  # what a start costs does not depend on how good its plan is
        rows = []
        with tempfile.TemporaryDirectory() as name, Agent(cache=Path(name) / "cache") as agent:
            for network in options.models:
                found, row = starts(agent, network, options.rounds, Path(name))
                measures += found
                rows.append(row)
        columns = ["network", "answers", "cold ms", "ONNX Runtime's", "warm ms", "own ms", "plan file ms", "its own ms"]
        tables.append(Table("Starts", columns, rows))
    if "behind" in options.only:
        measures += behind.measured()
    if "counts" in options.only:
        found, cases = counts()
        measures += found
        tables.append(Table("Counts", ["what", "cases", "skipped", "seconds"], cases))
    report(options.json, measures, tables)


if __name__ == "__main__":
    main()
