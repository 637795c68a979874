"""The device: its processors, the threads of its lanes, and the one arbiter of their resources.

Make one per process and share it between sessions: exclusion holds among the runs of one device.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator
from time import monotonic, perf_counter_ns, sleep
from typing import Any

from agent_sdk import native
from agent_sdk.closing import Closes
from agent_sdk.engine.arbiter import CLOSED, Arbiter
from agent_sdk.engine.program import lane_of
from agent_sdk.engine.threads import LaneThreads
from agent_sdk.errors import DeviceClosedError, ExecutionError, InputError
from agent_sdk.forking import FORKED, Forks, watch_forks
from agent_sdk.runtimes.base import Processor
from hope_schema import HOST

PATIENCE_NS = 100_000_000
"""How long what goes on behind the answers lets later runs go first."""
JOIN_S = 10.0
"""How long ``close`` waits for a thread before it gives up on a runtime that hangs."""


class Device(Closes, Forks):
    """The processors of this machine, ready to run programs.

    Args:
        processors: with distinct ids; the device closes them when it is closed.

    Attributes:
        processors: by id.
        arbiter: who holds which of their resources.
        cores: the CPUs on which they compute.
        threads: what walks the lanes of plans; None where plans run in sequence, for want of the native library.
        forked: whether this is a child of the process that opened the device: threads and locks stayed behind there.
    """

    def __init__(self, processors: Iterable[Processor]) -> None:
        self.processors: dict[str, Processor] = {}
        for processor in processors:
            if processor.id in self.processors:
                raise InputError(f"processor '{processor.id}' stands twice in the device")
            self.processors[processor.id] = processor
        self.forked = False
        watch_forks(self)
        library = native.library()
        self.arbiter = Arbiter(library)
        for one in self.processors.values():
            for resource in one.spec.resources:
                self.arbiter.divide(resource, one.at_once)
            for core in one.caller_cores if one.on_caller_thread else ():
                self.arbiter.is_core(lane_of(one), core)
        self.cores = frozenset[int]().union(*(processor.caller_cores for processor in self.processors.values()))
        # The cores of the processor that has most of them: a lane's thread serves all that share its first resource.
        most = sorted(self.processors.values(), key=lambda one: len(one.caller_cores))
        self.threads = library and LaneThreads({lane_of(one): one.caller_cores for one in most}, library)
        self._lock = threading.Lock()
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closed = False
        self._ended = False

    def register(self, user: Closes) -> None:
        """Have ``user`` closed before the processors are."""
        self.refuse_when_forked()
        with self._lock:
            if self._closed:
                raise DeviceClosedError(CLOSED)
            self._users.add(user)

    @contextlib.contextmanager
    def held(self, *processors: Processor, key: int | None = None, timeout_s: float = -1.0) -> Iterator[None]:
        """Hold all resources of some processors for the body, as a segment does: for what runs outside of plans.

        Raises what ``Arbiter.held`` raises, and DeviceClosedError in a forked child.
        """
        self.refuse_when_forked()
        resources = {resource for processor in processors for resource in processor.spec.resources}
        with self.arbiter.held(sorted(resources), key=key, timeout_s=timeout_s):
            yield

    def held_by_whole(self, key: int | None = None) -> contextlib.AbstractContextManager[None]:
        """Hold every core that a network may run on as a whole: a runtime's own threads go where they like."""
        host = [own for own in self.processors.values() if own.spec.memory == HOST]
        return self.held(*host, key=key) if host and not self.forked else contextlib.nullcontext()

    def held_behind(self) -> contextlib.AbstractContextManager[None]:
        """Hold everything for a step of what goes on behind the answers, which then has the machine to itself.

        Runs that come within ``PATIENCE_NS`` go first.
        """
        return self.held(*self.processors.values(), key=perf_counter_ns() + PATIENCE_NS)

    def in_child(self) -> None:
        """Everything is refused from now on."""
        self.forked = True

    def refuse_when_forked(self) -> None:
        """Raises DeviceClosedError; to be called before a lock is touched, which nobody may be left to release."""
        if self.forked:
            raise DeviceClosedError(FORKED)

    def close(self) -> None:
        """Refuse new runs, end the running ones, close sessions, threads and processors. Idempotent.

        Raises DeviceClosedError when a runtime hangs, or somebody is at work on a processor for too long: then the
        processors are left alone, and closing may be tried again. Does nothing in a forked child.
        """
        if self.forked:
            return
        with self._lock:
            self._closed = True
            users = list(self._users)
        if self._ended:
            return
        for user in users:
            # A session that hangs is freed by its thread, should that come back in time; if not, it is reported below.
            with contextlib.suppress(ExecutionError):
                user.close()
        self.arbiter.close()
        if self.threads and (hanging := self.threads.close(JOIN_S)):
            raise DeviceClosedError(f"the runtime on {', '.join(hanging)} hangs; its thread could not be joined")
        end = monotonic() + JOIN_S
        while busy := self.arbiter.busy:
            if monotonic() > end:
                raise DeviceClosedError(f"a run or a call is still at work on {', '.join(busy)}")
            sleep(0.001)
        for user in users:
            try:
                user.close()
            except ExecutionError as error:
                raise DeviceClosedError(str(error)) from error
        for processor in self.processors.values():
            processor.close()
        self._ended = True
