"""Calls that may be left to themselves: each has a thread, and its caller waits only as long as the caller wants to."""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar

from agent_sdk.cancel import Cancel, cancelling, check

Result = TypeVar("Result")


def waited_for(call: Callable[[threading.Event], Result], most_s: float | None, closed: Cancel) -> Result:
    """Wait for a call, which is handed an event that is set once nobody waits any more.

    Raises what it raises, TimeoutError after ``most_s`` seconds, NotWantedError where what this thread works under is
    cancelled, or CancelledError where ``closed`` is.
    """
    future: Future[Result] = Future()
    over = threading.Event()

    def run() -> None:
        with suppress(InvalidStateError):  # nobody waits any more
            try:
                future.set_result(call(over))
            except BaseException as error:  # noqa: BLE001  it is raised where the answer is waited for
                future.set_exception(error)

    threading.Thread(target=run, name="hope-planner-call", daemon=True).start()
    try:
        with cancelling(future.cancel), closed.calling(future.cancel):
            return future.result(most_s)
    except CancelledError:
        check()
        raise
    finally:
        over.set()
        future.cancel()
