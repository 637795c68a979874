"""What runs inside the killable solver process: read a task, plan, answer."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec

from hope_schema import ModelGraph, Plan, PlanRequest, Profile
from planner_api.jobs.child import serve

ENTRY = "planner_api.jobs.solver:solve"
"""The function a child runs (``module:function``); tests name hostile ones."""
Solve = Callable[[tuple[ModelGraph, ...], Profile, PlanRequest, float], Plan]
"""An entry: (a graph per job, profile, request, budget in seconds) -> plan."""


class Task(msgspec.Struct):
    """A problem as JSON, a graph per job, and the budget of its solve."""

    request: bytes
    profile: bytes
    graphs: tuple[bytes, ...]
    budget_s: float


class Answer(msgspec.Struct):
    """A plan as JSON and how long it took, or the error; ``permanent``: trying again cannot help."""

    plan: bytes = b""
    solve_us: float = 0.0
    error: str = ""
    permanent: bool = False
    out_of_memory: bool = False


def solve(graphs: tuple[ModelGraph, ...], profile: Profile, request: PlanRequest, budget_s: float) -> Plan:
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
    )


def _warm(entry: str) -> Solve:
    """Load the entry, and pay for loading (or compiling) the numba kernels before the first task's clock runs."""
    module, _, name = entry.partition(":")
    function: Solve = getattr(importlib.import_module(module), name)
    if entry == ENTRY:  # not by identity: the child runs this module under another name
        # NOTE: imported here, because a worker shares this module with its child but never plans by itself.
        from planner_api.planning import Budget, optimise
        from planner_api.planning.bound import lower_bound
        from planner_api.planning.warming import tiny, warm

        warm()
        optimise(tiny(), "auto", Budget(rounds=1))  # what it needs beside kernels is loaded too
        lower_bound(tiny(), Budget(rounds=1))
    return function


def _answer(function: Solve, task: Task) -> Answer:
    from planner_api.planning.problem import PlanningError

    started = time.perf_counter()
    try:
        found = function(
            tuple(ModelGraph.model_validate_json(graph) for graph in task.graphs),
            Profile.model_validate_json(task.profile),
            PlanRequest.model_validate_json(task.request),
            task.budget_s,
        )
    except MemoryError:
        return Answer(error="the solver ran out of its memory limit", out_of_memory=True)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: every failure becomes a stored cause
        return Answer(error=f"{type(error).__name__}: {error}"[:2000], permanent=isinstance(error, PlanningError))
    solve_us = (time.perf_counter() - started) * 1e6
    return Answer(found.model_dump_json().encode(), solve_us)


def _load(entry: str) -> Callable[[bytes], bytes]:
    function = _warm(entry)
    return lambda task: msgspec.msgpack.encode(_answer(function, msgspec.msgpack.decode(task, type=Task)))


if __name__ == "__main__":
    parent, memory_bytes, entry = sys.argv[1:]
    serve(int(parent), int(memory_bytes), partial(_load, entry))
