"""What runs inside the killable solver process: read a task, plan, write the answer.

Frames on stdin and stdout are ``length (4 bytes, big-endian) + bytes``: data, never pickles, so that a confused child
can hand its parent nothing but text. Task: header JSON, graph JSON, profile JSON. Answer: header JSON, plan JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from hope_schema import ModelGraph, Plan, PlanRequest, Profile

MAX_FRAME = 256 * 1024 * 1024
"""No frame is longer: the schema's own bounds keep honest graphs far below it."""

_PR_SET_PDEATHSIG = 1

Solve = Callable[[tuple[ModelGraph, ...], Profile, PlanRequest, float, int], Plan]
"""An entry: (a graph per job, profile, request, budget in seconds, seed) -> plan."""


def solve(graphs: tuple[ModelGraph, ...], profile: Profile, request: PlanRequest, budget_s: float, seed: int) -> Plan:
    """The entry of production: plan what is asked for, by the method asked for, under the budget."""
    from planner_api.planning import Job as Due
    from planner_api.planning import plan

    return plan(
        graphs,
        profile,
        processors=request.processors,
        method=request.method,
        jobs=[Due(job.release_us, job.deadline_us, job.weight) for job in request.jobs],
        objective=request.objective,
        budget_s=budget_s,
        seed=seed,
    )


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; ``None`` at the end of the stream or when it breaks off in the middle of one."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack(">I", head)
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes; at most {MAX_FRAME} are allowed")
    body = stream.read(length)
    return body if len(body) == length else None


def write_frame(stream: BinaryIO, body: bytes) -> None:
    """Write one frame (without flushing)."""
    stream.write(struct.pack(">I", len(body)))
    stream.write(body)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies, and leave at once if it died before we could ask."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch_parent(parent: int) -> None:
    """Where there is no PDEATHSIG: a busy child still notices within a second that its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def limit_memory(extra_bytes: int) -> None:
    """Allow ``extra_bytes`` of address space beyond what the imported libraries hold already."""
    import resource

    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + extra_bytes, mapped + extra_bytes))


def _load(entry: str) -> Solve:
    module, _, name = entry.partition(":")
    function: Solve = getattr(importlib.import_module(module), name)
    return function


def _warm(entry: str) -> Solve:
    """Load the entry, and pay for loading (or compiling) the numba kernels before the first task's clock runs."""
    function = _load(entry)
    if function is solve:
        # NOTE: imported here, because a worker shares this module with its child but never plans by itself.
        from planner_api.planning import Budget, optimise
        from planner_api.planning.warming import tiny, warm

        warm()
        optimise(tiny(), "auto", Budget(rounds=1))  # what it needs beside kernels is loaded too
    return function


def _answer(function: Solve, task: dict[str, Any], bodies: Sequence[bytes]) -> tuple[dict[str, object], bytes]:
    from planner_api.planning.problem import PlanningError

    profile, *graphs = bodies
    started = time.perf_counter()
    try:
        found = function(
            tuple(ModelGraph.model_validate_json(graph) for graph in graphs),
            Profile.model_validate_json(profile),
            PlanRequest.model_validate_json(task["request"]),
            task["budget_s"],
            task["seed"],
        )
    except MemoryError:
        return {"ok": False, "memory": True, "error": "the solver ran out of its memory limit"}, b""
    except Exception as error:  # noqa: BLE001 - the boundary of the process: every failure becomes a stored cause
        permanent = isinstance(error, PlanningError)
        return {"ok": False, "permanent": permanent, "error": f"{type(error).__name__}: {error}"[:2000]}, b""
    solve_us = (time.perf_counter() - started) * 1e6
    return {"ok": True, "solve_us": solve_us}, found.model_dump_json().encode()


def main(entry: str, parent: int, memory_bytes: int) -> None:
    """Serve tasks until stdin closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then decides about us
    die_with_parent(parent)
    with contextlib.suppress(OSError):
        os.nice(5)  # answering devices goes before improving plans where both share cores
    # Solver libraries print to fd 1 from C; the answers therefore go to a private copy of it.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    function = _warm(entry)
    if memory_bytes > 0 and sys.platform == "linux":
        limit_memory(memory_bytes)
    tasks = sys.stdin.buffer
    write_frame(answers, b"ready")
    answers.flush()
    while True:
        header = read_frame(tasks)
        if header is None:
            return
        task = json.loads(header)
        bodies = [body for _ in range(1 + task["graphs"]) if (body := read_frame(tasks)) is not None]
        if len(bodies) < 1 + task["graphs"]:
            return
        reply, body = _answer(function, task, bodies)
        write_frame(answers, json.dumps(reply).encode())
        write_frame(answers, body)
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
