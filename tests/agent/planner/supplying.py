"""Obtaining a plan from a planner that answers by a script, through a disk cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest

from agent_sdk import Agent
from agent_sdk.model import read_model
from agent_sdk.planner.client import PlannerClient
from agent_sdk.planner.supplier import Obtained, PlanSupplier
from hope_schema import Missing, Observations, Plan, Processor
from hope_schema.profile import LatencyColumns
from tests.agent.planner.planner_double import ScriptedTransport, plan_answer, small_model, small_plan

MODEL = read_model(small_model())
CPU = Processor(id="ort@0", runtime="ort", version="1", threads=1, core_class="core", resources=("cpu0",))
NOTHING_MISSING = {"profile_version": 1, "latencies": [], "transfers": [], "elsewhere": 0}
ONE_MISSING = {**NOTHING_MISSING, "latencies": [{"signature": "Relu:1", "kind": CPU.kind}]}
NOTHING = httpx.Response(200, json=NOTHING_MISSING)
CURRENT = (plan_answer(small_plan()), NOTHING)
"""The planner has a plan, and misses no figures."""
MISSING_TWICE = (httpx.Response(200, json=ONE_MISSING),) * 2
"""What is missing is asked once more when nobody else measures: another process may just have done it."""
ASKED_TWICE = ("POST /profiles/missing",) * 2
RECEIPT = httpx.Response(202, json={"upload_id": "upload", "rows": 1, "duplicate": False})
GONE = httpx.ConnectError("gone")


def observed(missing: Missing) -> Observations:
    """Pretend to have measured what is missing."""
    rows = missing.latencies
    return Observations(
        soc="soc",
        frequency="any",
        processors=(CPU,),
        latencies=LatencyColumns(
            signature=tuple(row.signature for row in rows),
            kind=tuple(row.kind for row in rows),
            us=(3.0,) * len(rows),
            spread_us=(0.1,) * len(rows),
            count=(5,) * len(rows),
        ),
        device_id="device",
        upload_id="upload",
    )


FIGURES = observed(Missing.model_validate(ONE_MISSING, strict=False))


def never(missing: Missing) -> None:
    """Fail: nothing had to be measured."""
    pytest.fail("something was measured again")


def anything(plan: Plan) -> None:
    """Take every plan for one that can be carried out."""


def supplier(directory: Path, transport: ScriptedTransport) -> PlanSupplier:
    """Return a supplier whose planner is the script."""
    client = PlannerClient("http://planner", transport=transport, attempts=1)
    return PlanSupplier(lambda: client, "http://planner", directory)


def obtain(
    directory: Path,
    *script,
    measure: Callable[[Missing], Observations | None] = observed,
    check: Callable[[Plan], object] | None = anything,
    wait_s: float | None = None,
    renew: bool = False,
    at_once: bool = False,
    attempts: int = 1,
) -> tuple[Obtained, list[str]]:
    """Obtain the plan from a scripted planner; return it and the paths that were asked."""
    transport = ScriptedTransport(*script)
    scripted = partial(PlannerClient, transport=transport, attempts=attempts)
    with ExitStack() as patched:
        patched.enter_context(patch("agent_sdk.planner.recognise.PlannerClient", scripted))
        patched.enter_context(
            patch("agent_sdk.first.bench.profile", lambda model, processors, missing, **_: measure(missing))
        )
        if check is not None:
            patched.enter_context(patch("agent_sdk.journey.services.build_program", lambda plan, *_: check(plan)))
        agent = patched.enter_context(
            Agent("http://planner", processors="ort@0", soc="soc", frequency="any", wait_s=wait_s, cache=directory)
        )
        obtained = agent.obtain(MODEL, renew=renew, at_once=at_once)
    assert not transport.script, "the planner was asked less often than expected"
    return obtained, [f"{request.method} {request.url.path}" for request in transport.requests]
