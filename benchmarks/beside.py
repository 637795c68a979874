"""A session beside what the same application keeps computing: plain sessions that spin, or busy processes.

    python -m benchmarks.beside [--models squeezenet,inception_v1] [--rounds 25] [--busy 1] [--json FILE]

Ours and plain ONNX Runtime sessions, of all thread counts, take turns in one process. Before each turn all threads fall
asleep, then another plain session runs, with its default threads, which spin for 40 ms. Besides, ``--busy`` processes
compute all the time, none by default. Plans are those of ``HOPE_CACHE_DIR``, where it holds some. A ratio is of
medians: ours, as it answers and as planned, to the best plain session there.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

import numpy as np
import onnxruntime as ort

from agent_sdk import Agent
from agent_sdk.journey.trial import PLAN
from agent_sdk.model.feeds import draw
from benchmarks import cli
from benchmarks.results import Measure, Table, TableRow, report, verdict

MUST: Final = 1.05
ASLEEP_S: Final = 0.06
"""ONNX Runtime's threads spin for 40 ms after a run."""
SPIN: Final = "while True: pass"


def plain(model: bytes, threads: int = 0) -> ort.InferenceSession:
    """A session as an application makes it; 0 threads: as many as the runtime wants."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute meanwhile."""
    started = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def in_turns(calls: Mapping[str, Callable[[], object]], before: Callable[[], object], rounds: int) -> dict[str, float]:
    """The usual time of each call right after ``before``, milliseconds."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(ASLEEP_S)
            before()
            began = time.perf_counter()
            call()
            took[name].append((time.perf_counter() - began) * 1e3)
    return {name: statistics.median(times) for name, times in took.items()}


def network(agent: Agent, name: str, rounds: int, processes: int) -> tuple[list[Measure], TableRow]:
    """One network: what must hold, and the row of all its times."""
    with agent.load(name, background=False) as session:
        prepared = session.latest
        model, inputs = prepared.model, draw(prepared.model, 0)
        content = model.proto.SerializeToString()
        cores = len(agent.device.cores)
        counts = [0, *(threads for threads in (1, 2, 4, 8, 16) if threads < cores)]
        sessions = {f"plain, {threads or 'default'} threads": plain(content, threads) for threads in counts}
        calls: dict[str, Callable[[], object]] = {
            label: partial(own.run, None, inputs) for label, own in sessions.items()
        }
        executor = prepared.contenders.get(PLAN)
        if executor is not None:
            calls[PLAN] = lambda: executor.run(inputs)
        calls["ours"] = lambda: session.run(inputs)
        spinning = plain(content)
        feeds: dict[str, np.ndarray] = dict(inputs)
        with busy(processes), agent._services.supplier.resting():
            took = in_turns(calls, lambda: spinning.run(None, feeds), rounds)
    best = min(took[label] for label in sessions)
    found = [verdict(f"{name}: ours ÷ the best plain session", took["ours"] / best, MUST)]
    return found, [name, took["ours"], took.get(PLAN), best, took["plain, default threads"]]


def main() -> None:
    """Print and keep what was found."""
    parser = cli.measuring("beside", __doc__)
    parser.add_argument("--models", type=cli.names, default=["squeezenet", "inception_v1"])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    options = parser.parse_args()
    measures: list[Measure] = []
    rows = []
    with Agent() as agent:
        for name in options.models:
            found, row = network(agent, name, options.rounds, options.busy)
            measures += found
            rows.append(row)
    columns = ["network", "ours ms", "the plan ms", "best plain ms", "plain by default ms"]
    report(options.json, measures, [Table("Beside a plain session that spins", columns, rows)])


if __name__ == "__main__":
    main()
