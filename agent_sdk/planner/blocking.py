"""The planner for ordinary code: the async client, on an event loop in a thread of its own."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from typing import Any, Self, TypeVar

from anyio.from_thread import start_blocking_portal

from agent_sdk.errors import PlannerUnavailableError
from agent_sdk.planner.client import PlannerClient

Result = TypeVar("Result")


class BlockingPlanner:
    """Opens a client and keeps it on one event loop; every call blocks the caller, none blocks the loop.

    Use as ``with BlockingPlanner(PlannerClient(url)) as planner: planner.call(lambda client: client.plan(request))``.
    """

    def __init__(self, opening: AbstractAsyncContextManager[PlannerClient]) -> None:
        self._stack = ExitStack()
        try:
            self._portal = self._stack.enter_context(start_blocking_portal("asyncio", name="hope-planner-client"))
            self.client = self._stack.enter_context(self._portal.wrap_async_context_manager(opening))
        except BaseException:
            # NOTE: told of the error, the portal cancels what still runs there; without, it would wait for it for ever.
            self._stack.__exit__(*sys.exc_info())
            raise
        # NOTE: a planner that nobody closed must end before the interpreter does: the portal, finalised as late as
        # that, waits for ever for a daemon thread that runs no more.
        weakref.finalize(self, _abandon, self._stack, os.getpid())

    def call(self, verb: Callable[[PlannerClient], Awaitable[Result]]) -> Result:
        """Run one coroutine of the client to its end and return what it returns."""
        running = self._portal.start_task_soon(verb, self.client)
        try:
            return running.result()
        except BaseException:
            # NOTE: Ctrl-C ends the wait, not the call; left running, it would hold up ``close``.
            running.cancel()
            raise

    def close(self) -> None:
        """Close the client and end the loop's thread."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)


def _abandon(stack: ExitStack, process: int) -> None:
    """End a planner that nobody closed, cancelling what still runs there; in a forked child there is nothing to end."""
    if process != os.getpid():
        return
    gone = PlannerUnavailableError("nobody closed the planner")
    # At exit thread pools are shut already, so an embedded planner fails at its end, in whatever part of it is next;
    # nobody is left to be told, and what it answered is in its database.
    with suppress(Exception):
        stack.__exit__(type(gone), gone, None)
