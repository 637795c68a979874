"""The main job's own figures: profiling from nothing, its memory, and what a second start asks of the planner.

    python -m benchmarks.main_job [--profile nasnet_large] [--second inception_v1] [--json FILE]

Each row is measured in a fresh process with an empty cache, on the embedded planner.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from agent_sdk.agent import Agent
from agent_sdk.model import read_model
from benchmarks import cli
from benchmarks.results import report, verdict

STARTS = 5


def first_start(model: str, cache: Path) -> dict[str, float]:
    """Profile and plan a model nobody has seen; seconds of profiling and the process's peak memory."""
    with Agent(cache=cache) as agent:
        obtained = agent.obtain(read_model(model))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"profiling_seconds": obtained.profiling_seconds, "peak_mb": peak_mb, "planner_ms": obtained.planner_ms}


def second_start(model: str, cache: Path) -> dict[str, float]:
    """Obtain the plan of a known model."""
    with Agent(cache=cache) as agent:
        obtained = agent.obtain(read_model(model))
    return {"planner_ms": obtained.planner_ms, "signatures": obtained.profiled_signatures, "cached": obtained.cached}


def fresh(verb: str, model: str, cache: str) -> dict[str, float]:
    """Run one of the verbs above in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.main_job", "--child", verb, model, cache]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = cli.measuring("main_job", __doc__)
    parser.add_argument("--profile", default="nasnet_large", help="network to profile from nothing")
    parser.add_argument("--second", default="inception_v1", help="network to start a second time")
    parser.add_argument("--child", nargs=3, metavar=("VERB", "MODEL", "CACHE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        verb, model, cache = options.child
        print(json.dumps({"first": first_start, "second": second_start}[verb](model, Path(cache))))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        first = fresh("first", options.profile, directory)
    with tempfile.TemporaryDirectory() as directory:
        fresh("first", options.second, directory)
        seconds = [fresh("second", options.second, directory) for _ in range(STARTS)]
    planner_ms = statistics.median(row["planner_ms"] for row in seconds)
    rows = [
        verdict(f"profiling {options.profile} from nothing, s", first["profiling_seconds"], 60.0),
        verdict("peak memory of it, MB", first["peak_mb"], 2000.0),
        verdict(f"planner work, second start of {options.second}, ms", planner_ms, 20.0),
        verdict("signatures profiled then", max(row["signatures"] for row in seconds), 0.0),
    ]
    report(options.json, rows)
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
