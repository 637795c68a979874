"""Waiting for a planner ends when nobody wants to wait; what the planner has begun, it ends all the same."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from agent_sdk.cancel import Cancel
from agent_sdk.errors import AuthenticationError, NotWantedError, PlannerUnavailableError
from agent_sdk.planner.client import PlannerClient
from agent_sdk.planner.embedded import Door
from tests.agent.planner.planner_double import REQUEST, ScriptedTransport, plan_answer, problem, small_plan
from tests.agent.threads import no_thread_left


def loops() -> list[threading.Thread]:
    """Return the event-loop threads that are alive."""
    return [thread for thread in threading.enumerate() if thread.name == "hope-planner"]


def ctrl_c() -> None:
    """Send this process what Ctrl-C sends."""
    os.kill(os.getpid(), signal.SIGINT)


def once(begun: threading.Event, act: Callable[[], None]) -> threading.Thread:
    """A thread that acts a moment after something has begun."""
    thread = threading.Thread(target=lambda: begun.wait(60) and (time.sleep(0.05), act()))
    thread.start()
    return thread


class App:
    """An ASGI app that takes as long for a plan as it is told, and notes how that ended."""

    def __init__(self, starts: bool = True) -> None:
        self.begun, self.go_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.cancelled = self.stopped_after_it = False
        self._starts = starts
        self.planner = SimpleNamespace(start=self.start, stop=self.stop)

    async def start(self) -> None:
        """Start, or never."""
        if not self._starts:
            self.begun.set()
            await asyncio.Event().wait()

    async def stop(self) -> None:
        """Note what was under way."""
        self.stopped_after_it = self.cancelled

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a plan, once it may."""
        try:
            while scope["method"] == "POST" and not self.go_on.is_set():
                self.begun.set()
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        answer = plan_answer(small_plan())
        headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer.content})
        if scope["method"] == "POST":
            self.ended.set()


def test_results_and_errors_come_through() -> None:
    """A call returns the answer or raises what it says, from the app in this process as from anywhere."""
    with PlannerClient(
        "http://planner", transport=ScriptedTransport(plan_answer(small_plan()), problem(401))
    ) as planner:
        assert planner.plan(REQUEST).reply.plan == small_plan()
        with pytest.raises(AuthenticationError):
            planner.plan(REQUEST)
    app = App()
    app.go_on.set()
    with PlannerClient("http://planner", transport=Door(app)) as planner:
        assert planner.plan(REQUEST).reply.plan == small_plan()
    assert loops() == []


@pytest.mark.parametrize("how", ["cancelled", "deadline", "ctrl-c"])
def test_who_waits_no_more_cancels_nothing_in_the_planner(how: str) -> None:
    """The call ends at once; the app goes on undisturbed, and ends what it has begun."""
    app, cancel = App(), Cancel()
    deadline_s = 0.2 if how == "deadline" else None
    with PlannerClient("http://planner", transport=Door(app), attempts=1, deadline_s=deadline_s) as planner:
        ends: dict[str, tuple[Callable[[], None], type[BaseException]]] = {
            "cancelled": (cancel.cancel, NotWantedError),
            "deadline": (lambda: None, PlannerUnavailableError),
            "ctrl-c": (ctrl_c, KeyboardInterrupt),
        }
        act, error = ends[how]
        acting = once(app.begun, act)
        with cancel.current(), pytest.raises(error):
            planner.plan(REQUEST)
        assert app.begun.wait(60)
        assert not app.ended.is_set()
        app.go_on.set()
        assert app.ended.wait(30)
        assert not app.cancelled
        acting.join()
    assert loops() == []


def test_without_a_thread_left_the_planner_cannot_answer() -> None:
    """That is what its callers know how to do without: the plan on disk answers, or a single processor."""
    with (
        PlannerClient("http://planner", transport=ScriptedTransport(plan_answer(small_plan()))) as planner,
        no_thread_left("hope-planner-call"),
        pytest.raises(PlannerUnavailableError, match="no thread could be started"),
    ):
        planner.plan(REQUEST)


def test_ctrl_c_while_opening_ends_at_once() -> None:
    """Ctrl-C while the planner starts cancels the start and leaves no thread behind."""
    app = App(starts=False)
    acting = once(app.begun, ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        Door(app)
    acting.join()
    assert loops() == []


def test_closing_ends_what_is_under_way() -> None:
    """A planner that is closed ends its requests, and then itself; who waits for an answer hears that it is gone."""
    app = App()
    planner = PlannerClient("http://planner", transport=Door(app), attempts=1, deadline_s=None)
    closer = threading.Thread(target=lambda: app.begun.wait() and planner.close())
    closer.start()
    with pytest.raises(BaseException, match=r"^$|closed|portal"):
        planner.plan(REQUEST)
    closer.join()
    assert app.stopped_after_it
    assert loops() == []


def test_ctrl_c_does_not_sit_out_a_retry() -> None:
    """Ctrl-C during the wait that a busy planner asked for ends the call, and closing afterwards waits for nothing."""
    asked = threading.Event()

    def busy(_: httpx.Request) -> httpx.Response:
        asked.set()
        return problem(503, Retry_After="2500")

    planner = PlannerClient("http://planner", transport=ScriptedTransport(busy), deadline_s=6000.0)
    acting = once(asked, ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        planner.plan(REQUEST)
    planner.close()
    acting.join()


def test_calls_of_many_threads_share_a_client() -> None:
    """Each gets its own answer, however they overlap."""

    def answer(request: httpx.Request) -> httpx.Response:
        return plan_answer(small_plan(), etag=f'"{request.headers["Prefer"]}"')

    found: dict[int, str] = {}
    with PlannerClient("http://planner", transport=ScriptedTransport(*[answer] * 16)) as planner:

        def ask(index: int) -> None:
            found[index] = planner.plan(REQUEST, wait_s=index).etag

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {index: f'"wait={index}"' for index in range(16)}
