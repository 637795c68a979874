"""What runs and what waits on the processors of one device. Pure: no thread, and no clock but an argument.

An agent drives it with real runs, a simulation with simulated ones. Whatever happens is told to it (``submit``,
``finished``, ``cancel``); ``decide`` then has the policy choose what starts. Processors that share a resource exclude
each other, but a run that is in pieces gives way at its next border to whoever has a smaller key. What a policy gives
to a processor that is busy otherwise waits there, first in, first out.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from agent_sdk.scheduling.network import NEVER, Network
from agent_sdk.scheduling.queue import Queue
from agent_sdk.scheduling.request import Late, Request
from agent_sdk.scheduling.sequence import Choice, Shortest

log = logging.getLogger(__name__)

PROBED: Final = 16
"""Runs of a network that are dropped in a row before one is run to see."""


@dataclass(eq=False, slots=True)
class Dispatch:
    """A subgraph of a request that starts, or waits for its processor.

    Attributes:
        request: whose.
        first: its first unit.
        last: its last one.
        processor: where.
        end_ns: when it is expected to end; later, once another steps in.
        key: where it stands at the arbiter.
        border_ns: the longest time from one of its borders to the next; 0 where it runs in one go.
    """

    request: Request
    first: int
    last: int
    processor: int
    end_ns: int
    key: int
    border_ns: int = 0


class View(NamedTuple):
    """The processors as they are for one request, which may step in where what runs gives way to it.

    Where somebody else has stepped in who goes before it, it may wait at the arbiter behind that one: else who gave way
    would go on until a border in between.

    Attributes:
        busy: per processor whether nothing that it starts there now would come before what runs; empty where nobody
            gives way, for then all find the same resources taken.
        free_ns: per processor when it is expected to be free: who gives way is halfway to its border, on average.
        latest_ns: likewise, where every border is as far away as it can be.
        over: per processor the resources that nobody else computes on while it runs there, as bits.
        spare_ns: per processor how long all can wait that give way there, and still make their deadlines.
    """

    busy: list[bool]
    free_ns: array[int]
    latest_ns: array[int]
    over: list[int]
    spare_ns: array[int]


class PlannedRun(NamedTuple):
    """One run of a network in a joint plan; times are nanoseconds from the begin of a round.

    Attributes:
        release_ns: when it is asked for.
        start_ns: when it begins.
        finish_ns: when it ends.
        processor: where.
    """

    release_ns: int
    start_ns: int
    finish_ns: int
    processor: int


JointPlan = Mapping[Network, Sequence[PlannedRun]]
"""By network its runs within a round, in the order of their releases."""


class Policy(ABC):
    """Decides who goes first, and where.

    Attributes:
        name: what it is called.
        by_start: whether what is left of a run counts in its key, so that each segment's is later by its planned start.
        joint: whether it follows a joint plan.
    """

    name: str
    by_start = False
    joint = False

    def follow(self, plan: JointPlan, late_ns: int) -> None:  # noqa: B027  most policies need no plan
        """There is a joint plan from now on; ``late_ns`` is how far apart its networks may be asked for."""

    def arrived(self, request: Request) -> None:  # noqa: B027  most policies look at who waits, not at who comes
        """A run was asked for."""

    def key(self, request: Request, tail_ns: int) -> int:
        """Where a subgraph stands at the arbiter; ``tail_ns`` is what is left of its run, its own time included, and 0
        unless that counts.
        """
        return request.ranked(request.due_ns - (tail_ns if self.by_start else 0))

    @abstractmethod
    def choose(self, state: Scheduler, group: list[Request]) -> None:
        """Give processors to some requests of equal priority, which stand in the order of arrival."""


class Scheduler:
    """The state of a device, and its policy.

    Args:
        policy: who goes first, and where.
        masks: per processor the resources it takes, as bits.
        instead: decides from then on where the policy raises; None: what it raises is raised.

    Attributes:
        masks: likewise.
        every: all of their resources.
        overlaps: per processor those that share a resource with it, itself among them.
        queue: what waits for a decision.
        running: what was started.
        committed: what a policy gave to a processor that is busy, in that order.
        now_ns: when the decision is taken.
        look_ns: when to decide again even if nothing happens until then; ``NEVER`` where nobody waits for a time.
        free_ns: per processor when all that runs there or was committed to it is expected to have ended.
        active: by network the latest deadline that was asked of it, from the release on, when, and at which priority.
    """

    def __init__(self, policy: Policy, masks: Sequence[int], instead: Policy | None = None) -> None:
        self.policy, self._instead = policy, instead
        self.masks = list(masks)
        self.every = reduce(or_, self.masks)
        self.overlaps = [[q for q, other in enumerate(self.masks) if other & mask] for mask in self.masks]
        self.queue = Queue()
        self.running: list[Dispatch] = []
        self.committed: list[Dispatch] = []
        self.active: dict[Network, tuple[int, int, int]] = {}
        self.now_ns = 0
        self.look_ns = NEVER
        self.free_ns = array("q", [0]) * len(self.masks)
        self._nobody = array("q", [0]) * len(self.masks)
        self._endless = array("q", [NEVER]) * len(self.masks)
        self._shortest = Shortest()
        self._busy = self._blocked = 0
        self._number = 0
        self._views: dict[Request, View] = {}
        self._in_pieces = False
        self._started: list[Dispatch] = []
        self._dropped: list[Request] = []

    # What happens

    def submit(
        self,
        network: Network,
        now_ns: int,
        *,
        deadline_ns: int | None = None,
        priority: int = 0,
        on_late: Late = "late",
        fits: bool = True,
    ) -> Request:
        """A run is asked for."""
        self._number += 1
        request = Request(network, self._number, now_ns, deadline_ns, priority, on_late, fits)
        self.policy.arrived(request)
        if deadline_ns is not None:
            self.active[network] = (deadline_ns - now_ns, now_ns, priority)
        self.queue.add(request)
        return request

    def cancel(self, request: Request) -> bool:
        """Take a request out; False where a part of it runs, which ends by itself."""
        self.committed = [one for one in self.committed if one.request is not request]
        if request in self.queue:
            self.queue.remove(request)
        return all(one.request is not request for one in self.running)

    def wait_again(self, request: Request, network: Network) -> None:
        """A request that was taken out, or whose run came to nothing, waits in its old place for this network."""
        request.network, request.epoch_ns, request.unit, request.then = network, None, 0, None
        self.queue.add(request)

    def finished(self, dispatch: Dispatch, took_ns: int | None, *, failed: bool = False) -> bool:
        """A subgraph has ended; whether its request has.

        ``took_ns`` is what it took where that is evidence. What has more units to run waits before all others.
        """
        self.running.remove(dispatch)
        request = dispatch.request
        if took_ns is not None:
            request.network.learn(dispatch.first, dispatch.last, dispatch.processor, took_ns)
        request.network.dropped = 0
        request.unit = dispatch.last + 1
        over = failed or request.unit >= request.network.units
        if not over:
            self.queue.add(request)
        return over

    def decide(self, now_ns: int) -> tuple[list[Dispatch], list[Request]]:
        """What starts now, and what is dropped."""
        self.look_ns = NEVER
        if not self.queue and not self.committed:
            return [], []
        self.now_ns = now_ns
        self._busy = self._blocked = 0
        self._in_pieces = False
        self._started, self._dropped = [], []
        self.free_ns = array("q", [now_ns]) * len(self.masks)
        self._views.clear()
        for one in self.running:
            self._busy |= self.masks[one.processor]
            self._occupy(self.free_ns, one.processor, one.end_ns)
            self._in_pieces |= one.border_ns > 0
        waiting, self.committed = self.committed, []
        for one in waiting:
            ns = one.request.network.expected(one.first, one.last, one.processor)
            one.end_ns = self._free(one.request)[one.processor] + ns
            self._place(one)
        offered: set[Request] = set()
        dropped = -1
        while dropped < len(self._dropped):  # who is dropped makes room for later runs of the same network
            dropped = len(self._dropped)
            for aged, first in self.queue.groups(now_ns, self.under_way()):
                group = [request for request in first if request not in offered] if offered else first
                if group:
                    offered.update(group)
                    self._choose(group)
                for request in group if aged else ():
                    if request in self.queue:
                        self.block(self.alone(request.network, request.unit).processor)
        return self._started, self._dropped

    def _choose(self, group: list[Request]) -> None:
        try:
            self.policy.choose(self, list(group))
        except Exception:
            if self._instead is None:
                raise
            log.exception("the policy %s fails, and %s decides instead", self.policy, self._instead)
            self.policy = self._instead
            self.policy.choose(self, [request for request in group if request in self.queue])

    # What policies ask and say

    def view(self, request: Request) -> View:
        """The processors as they are for a request."""
        if not self._in_pieces:
            return View([], self.free_ns, self.free_ns, self.masks, self._endless)
        if request not in self._views:
            key = self._key(request)
            free, over = array("q", [self.now_ns]) * len(self.masks), list(self.masks)
            latest = free[:]
            spare = self._endless[:]
            staying, yielding = list[int](), list[int]()
            for one in self.running:
                mask = self.masks[one.processor]
                if one.border_ns and one.key > key and one.request.network is not request.network:
                    yielding.append(mask)
                    self._occupy(free, one.processor, self.now_ns + one.border_ns // 2)
                    self._occupy(latest, one.processor, self.now_ns + one.border_ns)
                    deadline = one.request.deadline_ns
                    waits = NEVER if deadline is None or deadline < one.end_ns else deadline - one.end_ns
                    for other in self.overlaps[one.processor]:
                        over[other] |= mask
                        spare[other] = min(spare[other], waits)
                else:
                    self._occupy(free, one.processor, one.end_ns)
                    staying.append(mask)
            for one in self.committed:
                self._occupy(free, one.processor, one.end_ns)
            latest = array("q", map(max, free, latest))
            beneath = [any(mask & ~other == 0 for other in yielding) for mask in self.masks]
            busy = [
                any(mask & other and (mask & ~other or not under) for other in staying)
                for mask, under in zip(self.masks, beneath, strict=True)
            ]
            self._views[request] = View(busy, free, latest, over, spare)
        return self._views[request]

    def idle(self, request: Request, processor: int) -> bool:
        """Whether a request can start on a processor now."""
        mask = self.masks[processor]
        busy = self.view(request).busy[processor] if self._in_pieces else self._busy & mask
        return not (busy or self._blocked & mask)

    def under_way(self) -> list[Request]:
        """What has begun and not ended, and what waits for the processor that it was given."""
        return [*self.queue.begun, *[one.request for one in self.running], *[one.request for one in self.committed]]

    def any_idle(self) -> bool:
        """Whether something may be able to start anywhere."""
        taken = self._blocked if self._in_pieces else self._busy | self._blocked
        return any(not taken & mask for mask in self.masks)

    def shortest(self, request: Request, free_ns: array[int] | None = None) -> Choice:
        """The way on that ends a request soonest."""
        free = self._free(request) if free_ns is None else free_ns
        return self._shortest(request.network, request.unit, free, self.now_ns)

    def alone(self, network: Network, unit: int = 0) -> Choice:
        """The way on that would end soonest if nobody else were there; its end is what is left."""
        return self._shortest(network, unit, self._nobody, 0)

    def take(self, request: Request, choice: Choice) -> None:
        """Give a request its processor: it starts there, or waits for it."""
        network, where = request.network, choice.processor
        self.queue.remove(request)
        end = self._free(request)[where] + network.expected(request.unit, choice.last, where)
        border = network.border_ns.get(where, 0)
        self._place(Dispatch(request, request.unit, choice.last, where, end, self._key(request), border))

    def look_again(self, ns: int) -> None:
        """Decide again then: somebody waits for no run's end."""
        self.look_ns = min(self.look_ns, ns)

    def block(self, processor: int) -> None:
        """Let nobody else start on a processor in this decision."""
        self._blocked |= self.masks[processor]

    def reserve(self, request: Request, choice: Choice) -> None:
        """Give a request its processor, or keep that for it where it is not idle; neither where ``kept`` drops it."""
        kept = self.kept(request, choice)
        if kept is not None and self.idle(request, kept.processor):
            self.take(request, kept)
        elif kept is not None:
            self.block(kept.processor)

    def kept(self, request: Request, choice: Choice) -> Choice | None:
        """The choice itself where a request can make its deadline by it; else what ``on_late`` says.

        None where the request is dropped; the choice of its cheaper network where it is degraded to that, or None while
        as many runs of that are under way as may be. After many drops in a row one runs all the same: what is expected
        may rest on a disturbance that is over.
        """
        if request.deadline_ns is None or choice.end_ns <= request.deadline_ns or request.unit:
            return choice
        if request.on_late == "drop" and self.probes(request):
            request.network.doubt(choice.processor)
            return choice
        if request.on_late == "drop":
            if not request.network.dropped:
                request.network.vain_ns = request.release_ns
            request.network.dropped += 1
            self.queue.remove(request)
            self._dropped.append(request)
            return None
        if request.on_late == "degrade" and (cheaper := request.network.cheaper) is not None:
            self.queue.remove(request)
            request.network, request.epoch_ns = cheaper, None
            self._views.pop(request, None)
            self.queue.add(request)
            full = sum(other.network is cheaper for other in self.under_way()) >= cheaper.in_flight
            return None if full else self.kept(request, self.shortest(request))
        return choice

    def probes(self, request: Request) -> bool:
        """Whether a request that would be dropped is to find out whether its network still takes so long."""
        return request.on_late == "drop" and request.network.dropped >= PROBED

    def _free(self, request: Request) -> array[int]:
        """When each processor is expected to be free for a request."""
        return self.view(request).free_ns if self._in_pieces else self.free_ns

    def _key(self, request: Request) -> int:
        """Where a request stands at the arbiter with what is left of it."""
        left = self.alone(request.network, request.unit).end_ns if self.policy.by_start else 0
        return self.policy.key(request, left)

    def _place(self, dispatch: Dispatch) -> None:
        mask = self.masks[dispatch.processor]
        if not self.idle(dispatch.request, dispatch.processor):
            self.committed.append(dispatch)
            self._blocked |= mask
        else:
            for one in self.running if self._in_pieces else ():
                if self.masks[one.processor] & mask and one.key > dispatch.key:
                    one.end_ns += dispatch.request.network.expected(dispatch.first, dispatch.last, dispatch.processor)
                    self._occupy(self.free_ns, one.processor, one.end_ns)
            self.running.append(dispatch)
            self._started.append(dispatch)
            self._busy |= mask
        self._in_pieces |= dispatch.border_ns > 0
        self._views.clear()
        self._occupy(self.free_ns, dispatch.processor, dispatch.end_ns)

    def _occupy(self, free: array[int], processor: int, until_ns: int) -> None:
        for other in self.overlaps[processor]:
            if free[other] < until_ns:
                free[other] = until_ns
