"""The device: its processors, one thread per lane, and the one arbiter of their resources.

Make one per process and share it between sessions: exclusion holds among the runs of one device.

Arbitration. A run asks for all its resources at once and joins the queue of each in one step, so every queue has
the same order: the order of arrival. A lane of a run starts when the run heads the queues of all resources that
this lane's segments occupy, and a resource passes on as soon as the run's last lane on it is finished, so the next
run may start on free cores while this one still ends. The oldest run always heads its queues and inside a run the
program's order is acyclic: nobody waits for ever, and nobody overtakes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Protocol, TypeVar

from agent_sdk.device.cores import bind_to, bound_to
from agent_sdk.engine.errors import DeviceClosedError
from agent_sdk.engine.interrupt import DeferredInterrupts
from agent_sdk.engine.program import lane_of
from agent_sdk.errors import ExecutionError, InputError, UnknownNameError
from agent_sdk.runtimes.base import Processor, ProcessorLost

T = TypeVar("T")

JOIN_S = 10.0
"""How long ``close`` waits for a thread before it gives up on a runtime that hangs."""

CLOSED = "the device is closed; open a new one"
FORKED = "this process was forked from the one that opened the device, and has none of its threads; open a new one"


class Closable(Protocol):
    """What a device closes before its processors."""

    def close(self) -> None:
        """Free everything."""


class Ticket:
    """A run's place in the queues.

    ``start`` and ``refuse`` are called with the device's lock held, so that a thread that ends finds every job it was
    given: they hand on and return.

    Attributes:
        resources: per lane what it occupies; empty once given back.
        users: how many lanes still occupy each resource.
        start: per lane what is called once it may go, for those that enter the queues without knowing that all is free.
        refuse: called with the lanes that will never go, and why, if the device turns them away.
        granted: per lane whether it may go.
        hangs: what to say to those who come while a runtime hangs in this run; empty otherwise.
    """

    __slots__ = ("granted", "hangs", "refuse", "resources", "start", "users")

    refuse: Callable[[Sequence[int], str], None]

    def __init__(self, resources: Sequence[Sequence[str]]) -> None:
        self.resources = list(resources)
        self.users: dict[str, int] = {}
        for own in resources:
            for resource in own:
                self.users[resource] = self.users.get(resource, 0) + 1
        self.start: list[Callable[[], None]] = []
        self.granted = [False] * len(resources)
        self.hangs = ""


class Lane:
    """The thread of one leading resource. It ends with the device."""

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


class Device:
    """The processors of this machine, ready to run programs.

    Args:
        processors: with distinct ids; the device closes them when it is closed.
    """

    def __init__(self, processors: Iterable[Processor]) -> None:
        self.processors: dict[str, Processor] = {}
        for processor in processors:
            if processor.id in self.processors:
                raise InputError(f"processor '{processor.id}' stands twice in the device")
            self.processors[processor.id] = processor
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Ticket]] = {
            resource: deque() for processor in self.processors.values() for resource in processor.spec.resources
        }
        self._lanes = {
            lane_of(processor): Lane(lane_of(processor), processor.caller_cores)
            for processor in sorted(self.processors.values(), key=lambda p: len(p.caller_cores), reverse=True)
        }
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closed = False
        self._ended = False

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def processor(self, processor_id: str) -> Processor:
        """Return a processor by id. Raises UnknownNameError with the closest names."""
        if processor_id not in self.processors:
            raise UnknownNameError("processor", processor_id, self.processors)
        return self.processors[processor_id]

    def lane(self, name: str) -> Lane:
        """The lane of a leading resource."""
        return self._lanes[name]

    def call(self, processor_id: str, work: Callable[[], T]) -> T:
        """Run ``work`` alone on a processor: on its thread, bound to its cores, its resources held.

        For measuring. Raises what ``work`` raises; KeyboardInterrupt once ``work`` has ended or can no longer begin.
        """
        self.refuse_when_forked()
        processor = self.processor(processor_id)
        lane = self._lanes[lane_of(processor)]
        finished = threading.Event()
        result: list[T] = []
        failure: list[BaseException] = []

        def job() -> None:
            try:
                with bound_to(processor.caller_cores or lane.cores):
                    result.append(work())
            except BaseException as error:  # noqa: BLE001  re-raised in the caller's thread
                failure.append(error)
            finally:
                self.leave(ticket, 0)
                finished.set()

        def refuse(_: Sequence[int], why: str) -> None:
            failure.append(DeviceClosedError(why))
            finished.set()

        ticket = Ticket([processor.spec.resources])
        ticket.start.append(partial(lane.submit, job))
        ticket.refuse = refuse
        lane.start()
        with DeferredInterrupts() as interrupts:
            self.enter(ticket)
            try:
                interrupts.listen()
                finished.wait()
            except BaseException:
                # A second Ctrl-C must not leave the ticket in the queues; work that has begun leaves them itself.
                interrupts.raising = False
                if self.withdraw(ticket):
                    interrupts.raising = True
                    finished.wait()
                raise
            finally:
                interrupts.raising = False
        if failure:
            raise failure[0]
        return result[0]

    def call_here(self, processor_id: str, work: Callable[[], T]) -> T:
        """As ``call``, but in the calling thread, bound to the processor's cores meanwhile."""
        processor = self.processor(processor_id)
        ticket = Ticket([processor.spec.resources])
        with DeferredInterrupts() as interrupts:
            try:
                if not self.enter_if_free(ticket):
                    self.wait_for(ticket, interrupts)
                with bound_to(processor.caller_cores):
                    return work()
            finally:
                self.leave(ticket, 0)

    def register(self, user: Closable) -> None:
        """Have ``user`` closed before the processors are."""
        self.refuse_when_forked()
        with self._lock:
            self._refuse_when_closed()
            self._users.add(user)

    def enter(self, ticket: Ticket) -> None:
        """Join the queues; ``ticket.start[i]`` is called, here or by whoever leaves, when lane i may go.

        ``ticket.refuse`` is called instead where the device is closed, or a run ahead hangs, before that.
        """
        with self._lock:
            self._refuse_when_closed()
            queues = [self._queues[resource] for resource in ticket.users]
            for queue in queues:
                if queue and queue[0].hangs:
                    raise DeviceClosedError(queue[0].hangs)
            for queue in queues:
                queue.append(ticket)
            for start in self._granted((ticket,)):
                start()

    def enter_if_free(self, ticket: Ticket) -> bool:
        """Join the queues if nobody stands there, so that all lanes may go; nothing is called."""
        with self._lock:
            self._refuse_when_closed()
            for resource in ticket.users:
                if self._queues[resource]:
                    return False
            for resource in ticket.users:
                self._queues[resource].append(ticket)
            ticket.granted = [True] * len(ticket.granted)
        return True

    def wait_for(self, ticket: Ticket, interrupts: DeferredInterrupts) -> None:
        """Join the queues with a ticket of one lane and wait until it may go; ``leave`` even if this raises.

        Raises DeviceClosedError where it never may.
        """
        gate = threading.Lock()
        gate.acquire()
        refused: list[str] = []

        def refuse(_: Sequence[int], why: str) -> None:
            refused.append(why)
            gate.release()

        ticket.start.append(gate.release)
        ticket.refuse = refuse
        self.enter(ticket)
        interrupts.wait(gate)
        if refused:
            raise DeviceClosedError(refused[0])

    def hang(self, ticket: Ticket, why: str) -> None:
        """A runtime hangs in this run: whoever waits behind it, or comes until it has ended, is refused."""
        with self._lock:
            ticket.hangs = why
            behind = [other for queue in self._queues.values() if ticket in queue for other in queue]
            for call in self._turned_away(behind, why):
                call()

    def withdraw(self, ticket: Ticket) -> list[int]:
        """Take out of the queues the lanes that have not started; return those that have."""
        with self._lock:
            started = [lane for lane, granted in enumerate(ticket.granted) if granted]
            heirs = [heir for lane, on in enumerate(ticket.granted) if not on for heir in self._heirs(ticket, lane)]
            for start in self._granted(heirs):
                start()
        return started

    def leave(self, ticket: Ticket, lane: int) -> None:
        """Give back what one lane occupies. Doing it twice does no harm."""
        with self._lock:
            heirs = self._heirs(ticket, lane)
            for start in self._granted(heirs) if heirs else ():
                start()

    def _heirs(self, ticket: Ticket, lane: int) -> list[Ticket]:
        """Who is next at the resources that this lane gives back, as the last one of its run. With the lock held."""
        heirs = []
        for resource in ticket.resources[lane]:
            ticket.users[resource] -= 1
            queue = self._queues[resource]
            if not ticket.users[resource] and ticket in queue:  # it is in none if it was refused
                queue.remove(ticket)
                if queue:
                    heirs.append(queue[0])
        ticket.resources[lane] = ()
        return heirs

    def _granted(self, tickets: Iterable[Ticket]) -> list[Callable[[], None]]:
        """The lanes of these tickets that may go now and have not been told. Called with the lock held."""
        starts = []
        for ticket in tickets:
            for lane, resources in enumerate(ticket.resources):
                if not resources or ticket.granted[lane]:
                    continue
                if all(self._queues[resource][0] is ticket for resource in resources):
                    ticket.granted[lane] = True
                    starts.append(ticket.start[lane])
        return starts

    def _turned_away(self, tickets: Iterable[Ticket], why: str) -> list[Callable[[], None]]:
        """Take out of the queues what has not started of these; returns whom to tell. Called with the lock held."""
        waiting = {
            ticket: lanes
            for ticket in tickets
            if (
                lanes := [lane for lane, granted in enumerate(ticket.granted) if ticket.resources[lane] and not granted]
            )
        }
        heirs = [heir for ticket, lanes in waiting.items() for lane in lanes for heir in self._heirs(ticket, lane)]
        refusals = [partial(ticket.refuse, lanes, why) for ticket, lanes in waiting.items()]
        return [*refusals, *self._granted(heirs)]

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that opened the device: threads and locks stayed behind there."""
        return self._process != os.getpid()

    def refuse_when_forked(self) -> None:
        """Raises DeviceClosedError; to be called before a lock is touched, which nobody may be left to release."""
        if self.forked:
            raise DeviceClosedError(FORKED)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise DeviceClosedError(CLOSED)

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
        with self._lock:
            for call in self._turned_away((ticket for queue in self._queues.values() for ticket in queue), CLOSED):
                call()
        hanging = [lane.name for lane in self._lanes.values() if not lane.stop(JOIN_S)]
        if hanging:
            raise DeviceClosedError(f"the runtime on {', '.join(hanging)} hangs; its thread could not be joined")
        end = monotonic() + JOIN_S
        while busy := [resource for resource, queue in self._queues.items() if queue]:
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
