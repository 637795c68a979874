"""A thread for what goes on behind the answers: nobody waits for it, least of all a program that ends.

What it does runs under a ``Cancel``. A call into a runtime that cannot be stopped, a compile say, may go on after
``close`` and ends by itself; where the program ends meanwhile, it does so without tearing down that runtime under it.
"""

import atexit
import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from agent_sdk.cancel import Cancel
from agent_sdk.closing import Closes
from agent_sdk.forking import Forks, watch_forks
from agent_sdk.pool import begin_thread

Result = TypeVar("Result")

ENDING_S: Final = 0.1
"""How long the end of a session, or of the program, waits for what was cancelled to notice."""

_Task = tuple[Cancel, Future[Any], Callable[[], Any]]


class Worker(Closes, Forks):
    """Does one piece of work after another, on a thread of its own that is started when it is first needed."""

    def __init__(self, cancel: Cancel) -> None:
        self._cancel = cancel
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._futures: list[Future[Any]] = []
        self._started = self._closed = False
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, self._queue.put, None)
        watch_forks(self)

    def in_child(self) -> None:
        super().in_child()
        self._futures, self._closed = [], True

    def submit(self, work: Callable[[], Result], cancel: Cancel | None = None) -> Future[Result]:
        """Have work done, as a part of what ``cancel`` cancels; the future is cancelled where this is closed.

        Raises ProcessorLost where no thread can be started.
        """
        future: Future[Result] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            if not self._started:
                # NOTE: no executor, whose threads a program waits for at its end.
                begin_thread(partial(_work, self._queue), "hope-behind")
                self._started = True
            self._futures = [each for each in self._futures if not each.done()] + [future]
            self._queue.put((cancel or self._cancel, future, work))
        _WORKERS.add(self)
        return future

    def idle(self, timeout_s: float) -> bool:
        """Wait for everything to be done; whether it is."""
        with self._lock:
            futures = [*self._futures]
        return not wait(futures, timeout_s).not_done

    def close(self) -> None:
        """Cancel what is under way and what waits, and wait for ``ENDING_S`` at most. Idempotent."""
        with self._lock:
            self._closed = True
        self._cancel.cancel()
        self._end()
        self.idle(ENDING_S)


def _work(queue: SimpleQueue[_Task | None]) -> None:
    while (task := queue.get()) is not None:
        _do(*task)
        del task  # what it held is freed before the next one comes


def _do(cancel: Cancel, future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        with cancel.current():
            cancel.check()
            future.set_result(work())
    except BaseException as error:  # noqa: BLE001  it is raised where the result is asked for
        future.set_exception(error)


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _end_with_the_program() -> None:
    """Cancel what is still done; where a runtime does not let go of it, end the process without its destructors.

    What the program holds goes with the process: to look for cycles among what a planner within it has loaded (200 000
    objects) took 0.6 s.
    """
    gc.freeze()
    workers = list(_WORKERS)
    until = time.monotonic() + ENDING_S
    for worker in workers:
        worker._cancel.cancel()
    if all(worker.idle(max(0.0, until - time.monotonic())) for worker in workers):
        return
    # NOTE: these would take the runtime's memory from under the thread that is inside it. The handler that was
    # registered last comes first, and glibc hands it the exit status.
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)
