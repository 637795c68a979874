"""A queue of work: a lane of cores, a copy engine, a link. What it has finished is an event others may wait for."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from agent_sdk.device.cores import bind_to
from agent_sdk.engine.errors import DeviceClosedError
from agent_sdk.runtimes.base import ProcessorLost

CLOSED = "the device is closed; open a new one"


class Queue:
    """What is submitted is done one after the other, by a thread of its own, which ends with the device."""

    def __init__(self, name: str, cores: frozenset[int]) -> None:
        self.name = name
        self.cores = cores
        self._jobs: deque[Callable[[], None] | None] = deque()
        self._idle = threading.Lock()
        self._idle.acquire()
        self._asleep: list[bool] = []
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = False

    def start(self) -> None:
        """Have a thread ready for jobs; for those who will submit some, before others may wait for them.

        Raises ProcessorLost where this process may start no more threads, DeviceClosedError once it was stopped.
        """
        if self._thread is not None:
            return
        with self._starting:
            if self._ended:
                raise DeviceClosedError(CLOSED)
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name=f"hope-{self.name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise ProcessorLost(f"no thread could be started for {self.name}: {error}") from error
                self._thread = thread

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job``, which must not raise, on this lane's thread, which has been started, after earlier ones."""
        self._jobs.append(job)
        self._wake()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its last job; False when it did not end in time."""
        with self._starting:
            self._ended = True
        thread = self._thread
        if thread is None:
            return True
        self._jobs.append(None)
        self._wake()
        thread.join(timeout_s)
        return not thread.is_alive()

    def _wake(self) -> None:
        try:
            self._asleep.pop()
        except IndexError:
            return
        self._idle.release()

    def _serve(self) -> None:
        # Where that fails, a core is gone; the runs that need it say so when they bind themselves.
        with contextlib.suppress(ProcessorLost):
            bind_to(self.cores)
        jobs = self._jobs
        while True:
            if not jobs:
                self._asleep.append(True)
                # A job that came before the line above found nobody to wake.
                if jobs:
                    try:
                        self._asleep.pop()
                    except IndexError:
                        self._idle.acquire()
                else:
                    self._idle.acquire()
                continue
            job = jobs.popleft()
            if job is None:
                return
            job()
            # A reference kept while idle would keep a closed session's memory alive.
            del job
