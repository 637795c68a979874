"""What children run in tests: solvers that are honest, slow, greedy for memory, suicidal, noisy; readers of bodies."""

from __future__ import annotations

import os
import signal
import time

import msgspec

from hope_schema import Cause, ModelGraph, Plan, PlannedJob, PlanRequest, Profile, Step
from planner_api.planning.problem import PlanningError

Graphs = tuple[ModelGraph, ...]


def honest(graphs: Graphs, profile: Profile, request: PlanRequest, budget_s: float) -> Plan:
    """All ops on the first processor, one after the other."""
    processor = profile.processors[0].id
    steps = tuple(
        Step(id=i, ops=(op.id,), dtype="float32", processor=processor, start_us=i, finish_us=i + 1, cause=Cause.FASTER)
        for i, op in enumerate(graphs[0].ops)
    )
    return Plan(
        jobs=(PlannedJob(model_hash=request.model_hash, finish_us=float(len(steps))),),
        soc=request.soc,
        frequency=request.frequency,
        processors=(processor,),
        steps=steps,
        order=tuple(range(len(steps))),
        makespan_us=float(len(steps)),
        lower_bound_us=float(len(steps)),
        gap=0.0,
        method="test",
        bound_method="test",
        profile_version=profile.version,
    )


def noisy(graphs: Graphs, profile: Profile, request: PlanRequest, budget_s: float) -> Plan:
    """Writes to fd 1 as C libraries do; the answer must not suffer."""
    os.write(1, b"HiGHS 1.12 says hello\n" * 100)
    return honest(graphs, profile, request, budget_s)


def slow(graphs: Graphs, profile: Profile, request: PlanRequest, budget_s: float) -> Plan:
    """Takes a second and a half."""
    time.sleep(1.5)
    return honest(graphs, profile, request, budget_s)


def endless(graphs: Graphs, profile: Profile, request: PlanRequest, budget_s: float) -> Plan:
    """Never returns and ignores polite requests."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1.0)


def hungry(graphs: Graphs, profile: Profile, request: PlanRequest, budget_s: float) -> Plan:
    """Wants all the memory there is."""
    hoard = []
    while True:
        hoard.append(bytearray(16 * 1024 * 1024))


def suicidal(graphs: Graphs, profile: Profile, request: PlanRequest, budget_s: float) -> Plan:
    """Dies as from a fault in C."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def refusing(graphs: Graphs, profile: Profile, request: PlanRequest, budget_s: float) -> Plan:
    """Says that the problem itself cannot be planned."""
    raise PlanningError("no processor supports op 'conv_1'")


def faulty(graphs: Graphs, profile: Profile, request: PlanRequest, budget_s: float) -> Plan:
    """Has a bug."""
    raise ZeroDivisionError("division by zero")


class Length(msgspec.Struct):
    """What a body is read as."""

    count: int


def kept_waiting(text: bytes | bytearray) -> Length:
    """Read as on a machine that has other things to do."""
    time.sleep(0.4)
    return Length(len(text))


def read_for_ever(text: bytes | bytearray) -> Length:
    """Read without an end."""
    while True:
        pass
