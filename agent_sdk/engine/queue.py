"""A queue of work: a lane of cores, a copy engine, a link. What it has finished is an event others may wait for."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import weakref
from collections.abc import Callable

from agent_sdk.device.cores import bind_to
from agent_sdk.engine.errors import DeviceClosedError
from agent_sdk.runtimes.base import ProcessorLost

CLOSED = "the device is closed; open a new one"


class Queue:
    """What is submitted is done one after the other, by a thread of its own, which ends with the device.

    Attributes:
        name: what it is called.
        cores: where its thread is bound.
        rest: where the thread rests outside the interpreter, to be called for lanes; None without the native library.
    """

    def __init__(self, name: str, cores: frozenset[int], library: ctypes.CDLL | None) -> None:
        self.name = name
        self.cores = cores
        self.rest: int | None = None
        self._library = library
        if self._library is not None:
            self.rest = self._library.hope_make_rest()
            if not self.rest:
                raise MemoryError(f"no memory for the thread of {name}")
            weakref.finalize(self, self._library.hope_free_rest, self.rest).atexit = False
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
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

    def submit(self, job: Callable[[], None] | None) -> None:
        """Run ``job``, which must not raise, on this lane's thread, which has been started, after earlier ones.

        None ends the thread.
        """
        self.follow(job)
        if self._library is not None:
            self._library.hope_call(self.rest)

    def follow(self, job: Callable[[], None] | None) -> None:
        """Run ``job`` once the thread comes back from a lane for which it is called next where it rests."""
        self._jobs.put(job)

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its last job; False when it did not end in time."""
        with self._starting:
            self._ended = True
        thread = self._thread
        if thread is None:
            return True
        self.submit(None)
        thread.join(timeout_s)
        return not thread.is_alive()

    def _serve(self) -> None:
        # Where that fails, a core is gone; the runs that need it say so when they bind themselves.
        with contextlib.suppress(ProcessorLost):
            bind_to(self.cores)
        while True:
            if self._library is not None:
                self._library.hope_rest(self.rest)
            if not self._worked():
                return

    def _worked(self) -> bool:
        """Do the next job; False for the end.

        In a frame of its own: a reference kept while idle would keep a closed session's memory alive.
        """
        job = self._jobs.get()
        if job is not None:
            job()
        return job is not None
