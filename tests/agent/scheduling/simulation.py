"""A mix under a policy in simulated time: the scheduler that an agent drives, on processors that only wait.

A run in pieces claims its resources for each of them by its key, as at a device's arbiter; on a single core it is on
whichever of its equals is free.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from agent_sdk.scheduling.mixes import Mix, Stream
from agent_sdk.scheduling.network import NEVER, Network
from agent_sdk.scheduling.outcome import Ended
from agent_sdk.scheduling.request import Request
from agent_sdk.scheduling.scheduler import Dispatch, Policy, Scheduler

AGAIN_NS: Final = 1_000_000
"""How long a closed loop waits after a run that was dropped."""
Takes = Callable[[Dispatch], int]
"""How long a subgraph really takes, nanoseconds."""


def expected(dispatch: Dispatch) -> int:
    """What is expected is what it takes."""
    return dispatch.request.network.expected(dispatch.first, dispatch.last, dispatch.processor)


def simulate(
    mix: Mix,
    networks: Mapping[str, Network],
    masks: Sequence[int],
    policy: Policy,
    *,
    takes: Takes = expected,
    seed: int = 0,
    told: Callable[[int, Sequence[Dispatch], Sequence[Request]], object] = lambda *_: None,
) -> list[Ended]:
    """What becomes of every run of a mix.

    Args:
        mix: what is asked for.
        networks: by model, as the streams name it.
        masks: per processor the resources it takes.
        policy: who decides.
        takes: how long subgraphs take.
        seed: of what is left to chance.
        told: hears every decision: when, what started, and what was dropped.
    """
    return _Simulation(mix, networks, Scheduler(policy, masks), takes, seed, told).run()


@dataclass(eq=False, slots=True)
class _Claim:
    """A subgraph at the arbiter, of which so many nanoseconds are left.

    One of the masks will do, and is what it has while it computes.
    """

    dispatch: Dispatch
    masks: list[int]
    left_ns: int
    mask: int = 0


class _Simulation:
    def __init__(
        self,
        mix: Mix,
        networks: Mapping[str, Network],
        scheduler: Scheduler,
        takes: Takes,
        seed: int,
        told: Callable[[int, Sequence[Dispatch], Sequence[Request]], object],
    ) -> None:
        self.mix, self.networks, self.scheduler = mix, networks, scheduler
        self.takes, self.told = takes, told
        self.draw = random.Random(seed)
        self.end_ns = round(mix.seconds * 1e9)
        self.order = count()
        self.events: list[tuple[int, int, Stream | _Claim | None]] = []
        self.claims: list[_Claim] = []
        self.held = 0
        self.streams: dict[Request, Stream] = {}
        self.began: dict[Request, tuple[float, int]] = {}
        self.ended: list[Ended] = []
        for stream in mix.streams:
            for at in stream.releases(mix.seconds, seed):
                self._at(round(at * 1e6), stream)
            if stream.arrival == "closed":
                self._at(0, stream)

    def _at(self, ns: int, what: Stream | _Claim | None) -> None:
        heapq.heappush(self.events, (ns, next(self.order), what))

    def run(self) -> list[Ended]:
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                self._happens(now, heapq.heappop(self.events)[2])
            started, dropped = self.scheduler.decide(now)
            self.told(now, started, dropped)
            if self.scheduler.look_ns < NEVER:
                self._at(self.scheduler.look_ns, None)
            for dispatch in started:
                self.began.setdefault(dispatch.request, (now / 1e6, dispatch.processor))
                self.claims.append(_Claim(dispatch, self._masks(dispatch), self.takes(dispatch)))
            for request in dropped:
                self._over(request, now, dropped=True)
            self._grant(now)
        return self.ended

    def _masks(self, dispatch: Dispatch) -> list[int]:
        where = dispatch.processor
        alike = dispatch.request.network.alike.get(where, [where])
        single = self.scheduler.masks[where].bit_count() == 1
        return [self.scheduler.masks[one] for one in ([where, *sorted({*alike} - {where})] if single else [where])]

    def _grant(self, now: int) -> None:
        """Whoever can has what it claims until its next border; the first that cannot reserves what it wants."""
        taken, waiting = self.held, list[_Claim]()
        for claim in sorted(self.claims, key=lambda one: one.dispatch.key):
            claim.mask = next((mask for mask in claim.masks if not taken & mask), 0)
            if not claim.mask:
                waiting.append(claim)
            else:
                self.held |= claim.mask
                piece = min(claim.dispatch.border_ns or claim.left_ns, claim.left_ns)
                claim.left_ns -= piece
                self._at(now + piece, claim)
            for mask in [claim.mask] if claim.mask else claim.masks:
                taken |= mask
        self.claims = waiting

    def _happens(self, now: int, what: Stream | _Claim | None) -> None:
        if what is None:
            return
        if isinstance(what, _Claim):
            self.held &= ~what.mask
            if what.left_ns:
                self.claims.append(what)
            elif self.scheduler.finished(what.dispatch, self.takes(what.dispatch)):
                self._over(what.dispatch.request, now, dropped=False)
            return
        due = what.due_ms
        request = self.scheduler.submit(
            self.networks[what.model],
            now,
            deadline_ns=None if due is None else now + round(due * 1e6),
            priority=what.priority,
            on_late=what.on_late,
        )
        self.streams[request] = what

    def _over(self, request: Request, now: int, *, dropped: bool) -> None:
        stream = self.streams.pop(request)
        start, where = self.began.pop(request, (None, -1))
        self.ended.append(
            Ended(
                stream.name,
                request.release_ns / 1e6,
                start_ms=start,
                end_ms=None if dropped else now / 1e6,
                deadline_ms=None if request.deadline_ns is None else request.deadline_ns / 1e6,
                dropped=dropped,
                where=str(where) if where >= 0 else "",
            )
        )
        following = [stream] if stream.arrival == "closed" else []
        if not dropped:
            following += [
                one
                for one in self.mix.followers(stream.name)
                if one.after is not None and self.draw.random() < one.after.probability
            ]
        for one in following if now < self.end_ns else ():
            self._at(now + (AGAIN_NS if dropped else 0), one)
