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
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Any

from agent_sdk import native
from agent_sdk.closing import Closes
from agent_sdk.engine.errors import DeviceClosedError
from agent_sdk.engine.program import lane_of
from agent_sdk.engine.queue import CLOSED, Queue
from agent_sdk.engine.wait import Turn
from agent_sdk.errors import ExecutionError, InputError
from agent_sdk.forking import FORKED, Forks, watch_forks
from agent_sdk.runtimes.base import Processor

JOIN_S = 10.0
"""How long ``close`` waits for a thread before it gives up on a runtime that hangs."""


class Ticket:
    """A run's place in the queues.

    ``start`` and ``refuse`` are called with the device's lock held, so that a thread that ends finds every job it was
    given: they hand on and return.

    Attributes:
        resources: per lane what it occupies; empty once given back.
        users: how many lanes still occupy each resource.
        start: per lane what is called once it may go, if that is not when it enters the queues.
        refuse: called with the lanes that will never go, and why, if the device turns them away.
        granted: per lane whether it may go.
        hangs: what to say to those who come while a runtime hangs in this run; empty otherwise.
        queues: those of its resources, of a ticket from ``Device.lasting_ticket``.
    """

    __slots__ = ("granted", "hangs", "queues", "refuse", "resources", "start", "users")

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
        self.queues: list[deque[Ticket]] = []


class Device(Closes, Forks):
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
        self.forked = False
        """Whether this is a child of the process that opened the device: threads and locks stayed behind there."""
        watch_forks(self)
        self.lock = threading.Lock()
        self._queues: defaultdict[str, deque[Ticket]] = defaultdict(deque)
        self.library = native.library()
        """With what its lanes run outside the interpreter; None where they run inside it."""
        self._lanes = {
            lane_of(processor): Queue(lane_of(processor), processor.caller_cores, self.library)
            for processor in sorted(self.processors.values(), key=lambda p: len(p.caller_cores), reverse=True)
        }
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closed = False
        self._ended = False

    def queue(self, name: str) -> Queue:
        """The queue of a leading resource, or of what carries tensors, which is there from now on."""
        with self.lock:
            self._refuse_when_closed()
            if name not in self._lanes:
                self._lanes[name] = Queue(name, frozenset(), self.library)
            return self._lanes[name]

    def register(self, user: Closes) -> None:
        """Have ``user`` closed before the processors are."""
        self.refuse_when_forked()
        with self.lock:
            self._refuse_when_closed()
            self._users.add(user)

    def enter(self, ticket: Ticket) -> list[int]:
        """Join the queues and return the lanes that may go at once; whoever leaves calls ``start`` for another.

        ``ticket.refuse`` is called instead where the device is closed, or a run ahead hangs, before that.
        """
        with self.lock:
            self._refuse_when_closed()
            queues = [self._queues[resource] for resource in ticket.users]
            for queue in queues:
                if queue and queue[0].hangs:
                    raise DeviceClosedError(queue[0].hangs)
            for queue in queues:
                queue.append(ticket)
            self._granted((ticket,))
            return [lane for lane, granted in enumerate(ticket.granted) if granted]

    def lasting_ticket(self, resources: Sequence[str]) -> Ticket:
        """A ticket of one lane for ``enter_now``, over and over."""
        ticket = Ticket([resources])
        ticket.granted[0] = True
        with self.lock:
            ticket.queues = [self._queues[resource] for resource in resources]
        return ticket

    def enter_now(self, ticket: Ticket, turn: Turn) -> bool:
        """Take a turn, join the queues and have the ticket's one lane go; False where ``enter`` would wait, or refuse.

        The turn is guarded by this device's lock: both are taken and given back in one step.
        """
        if self.forked:  # the lock may be held by nobody who is left
            return False
        with self.lock:
            if turn.taken or self._closed or any(ticket.queues):
                return False
            for queue in ticket.queues:
                queue.append(ticket)
            turn.taken = True
            return True

    def leave_now(self, ticket: Ticket, turn: Turn) -> None:
        """Leave the queues that ``enter_now`` joined, and pass the turn on; the ticket can be used again."""
        with self.lock:
            turn.pass_on()
            for queue in ticket.queues:
                queue.popleft()
                if queue:
                    for start in self._granted((queue[0],)):
                        start()

    def hang(self, ticket: Ticket, why: str) -> None:
        """A runtime hangs in this run: whoever waits behind it, or comes until it has ended, is refused."""
        with self.lock:
            ticket.hangs = why
            behind = [other for queue in self._queues.values() if ticket in queue for other in queue]
            for call in self._turned_away(behind, why):
                call()

    def withdraw(self, ticket: Ticket) -> list[int]:
        """Take out of the queues the lanes that have not started; return those that have."""
        with self.lock:
            started = [lane for lane, granted in enumerate(ticket.granted) if granted]
            heirs = [heir for lane, on in enumerate(ticket.granted) if not on for heir in self._heirs(ticket, lane)]
            for start in self._granted(heirs):
                start()
        return started

    def leave(self, ticket: Ticket, *lanes: int) -> None:
        """Give back what lanes occupy. Doing it twice does no harm."""
        with self.lock:
            heirs = [heir for lane in lanes for heir in self._heirs(ticket, lane)]
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

    def in_child(self) -> None:
        """Everything is refused from now on."""
        self.forked = True

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
        with self.lock:
            self._closed = True
            users = list(self._users)
        if self._ended:
            return
        for user in users:
            # A session that hangs is freed by its thread, should that come back in time; if not, it is reported below.
            with contextlib.suppress(ExecutionError):
                user.close()
        with self.lock:
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
