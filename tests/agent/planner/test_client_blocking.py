"""The client for ordinary code: results and errors come through, and Ctrl-C never waits for a planner that hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agent_sdk.errors import AuthenticationError
from agent_sdk.planner.blocking import BlockingPlanner
from agent_sdk.planner.client import PlannerClient
from tests.agent.planner.planner_double import REQUEST, ScriptedTransport, plan_answer, problem, small_plan


def loops() -> list[threading.Thread]:
    """Return the event-loop threads that are alive."""
    return [thread for thread in threading.enumerate() if "hope-planner-client" in thread.name]


def ctrl_c_in(seconds: float) -> threading.Timer:
    """Return a timer that sends this process what Ctrl-C sends."""
    return threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))


def test_results_and_errors_come_through() -> None:
    """A call returns what the coroutine returns and raises what it raises, and the thread ends with the block."""
    transport = ScriptedTransport(plan_answer(small_plan()), problem(401))
    with BlockingPlanner(PlannerClient("http://planner", transport=transport)) as planner:
        assert planner.call(lambda client: client.plan(REQUEST)).reply.plan == small_plan()
        with pytest.raises(AuthenticationError):
            planner.call(lambda client: client.plan(REQUEST))
    assert loops() == []


@asynccontextmanager
async def never_opening() -> AsyncIterator[PlannerClient]:
    """A client whose planner never starts."""
    await asyncio.Event().wait()
    yield PlannerClient("http://planner")


def test_ctrl_c_while_opening_ends_at_once() -> None:
    """Ctrl-C while the planner starts cancels the start and leaves no thread behind."""
    timer = ctrl_c_in(0.2)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        BlockingPlanner(never_opening())
    timer.join()
    assert loops() == []


def test_ctrl_c_while_waiting_ends_at_once() -> None:
    """Ctrl-C while a call waits cancels the call."""

    async def hang(client: PlannerClient) -> None:
        await asyncio.Event().wait()

    timer = ctrl_c_in(0.2)

    def wait() -> None:
        with BlockingPlanner(PlannerClient("http://planner", transport=ScriptedTransport())) as planner:
            timer.start()
            planner.call(hang)

    with pytest.raises(KeyboardInterrupt):
        wait()
    timer.join()
    assert loops() == []


def test_ctrl_c_does_not_sit_out_a_retry() -> None:
    """Ctrl-C during the wait that a busy planner asked for ends the call, and closing afterwards waits for nothing."""
    busy = ScriptedTransport(problem(503, Retry_After="25"))
    planner = BlockingPlanner(PlannerClient("http://planner", transport=busy, deadline_s=60.0))
    timer = ctrl_c_in(0.2)
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        planner.call(lambda client: client.plan(REQUEST))
    planner.close()
    timer.join()
    assert time.monotonic() - started < 10
    assert loops() == []
