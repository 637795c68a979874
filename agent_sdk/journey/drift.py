"""Plans made anew when the ways to other hosts change: a link that slows down, a host that goes, one that comes back.

A thread looks at them now and then. What crosses a link anyway tells how fast it is; over one that nothing crossed
since, a little is sent. A plan whose hosts or links have left the band that it was made for is asked for anew, and
taken up between runs, once it has been tried.
"""

import logging
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from agent_sdk.cancel import Cancel
from agent_sdk.errors import DeviceClosedError, HopeError
from agent_sdk.journey.hosts import Hosts
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.preparing import Preparing
from agent_sdk.journey.trial import PLAN
from agent_sdk.pool import begin_thread
from hope_schema import Link, Plan

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
"""How often hosts are looked at, give or take a half."""
BAND: Final = 1.25
"""By what factor the time of a message has to change for a plan to be made anew."""
MESSAGE: Final = 2**16
"""Bytes of that message."""


class Drift:
    """Looks at the hosts of an agent for as long as that is there."""

    def __init__(
        self,
        hosts: Hosts,
        networks: Callable[[], Iterable[Preparing]],
        cancel: Cancel,
    ) -> None:
        self._hosts, self._networks = hosts, networks
        self._tried: weakref.WeakKeyDictionary[Prepared, tuple[object, int]] = weakref.WeakKeyDictionary()
        if hosts.reached:
            # It holds nothing: an agent that nobody closes is freed all the same.
            looking = partial(_look_for_ever, weakref.ref(self), cancel)
            begin_thread(looking, "hope-drift")

    def look(self) -> None:
        """Look once, and have plans made anew that are not made for what there is now. Raises like ``refresh``."""
        for host in self._hosts.reached:
            host.look()
        hosts, links = self._hosts.asked()
        state = (hosts, links, tuple(host.trying.lost for host in self._hosts.reached if not host.trying.is_down))
        for network, prepared in self._ready():
            plan = prepared.obtained.plan
            dropped = PLAN not in prepared.contenders
            fixed = prepared.obtained.source == "file"  # nobody is asked where a plan came along
            if plan is None or fixed or not (dropped or _left_band(plan, [host.name for host in hosts], links)):
                continue
            before, times = self._tried.get(prepared, (None, 0))
            times = times + 1 if before == state else 1
            self._tried[prepared] = state, times
            if times & (times - 1) == 0:  # ever more rarely, where the plan stays: what kept it may have passed
                taken = network.renew(prepared)
                what = "another plan answers" if taken else "the plan stays"
                log.info("%s: hosts or links have changed: %s", prepared.model.name, what)

    def _ready(self) -> Iterator[tuple[Preparing, Prepared]]:
        for network in self._networks():
            with suppress(DeviceClosedError):  # what is closed meanwhile has nothing
                yield from ((network, prepared) for prepared in network.plans.ready())


def _look_for_ever(of: weakref.ref[Drift], cancel: Cancel) -> None:
    ended = threading.Event()
    with cancel.calling(ended.set):
        while not ended.wait(LOOK_S * random.uniform(0.5, 1.5)) and (drift := of()) is not None:
            try:
                with cancel.current():
                    drift.look()
            except (HopeError, MemoryError) as error:  # the next look may find more
                log.info("plans stay as they are: %s", error)
            del drift


def _left_band(plan: Plan, hosts: Iterable[str], links: Iterable[Link]) -> bool:
    """Whether a plan was made for other hosts than there are, or for links that a message takes another time on."""
    if {host.name for host in plan.hosts} != set(hosts):
        return True
    planned = {(link.source, link.target): _us(link) for link in plan.links}
    ratios = [_us(link) / planned[link.source, link.target] for link in links if (link.source, link.target) in planned]
    return any(not 1 / BAND < ratio < BAND for ratio in ratios)


def _us(link: Link) -> float:
    return max(1.0, link.fixed_us + MESSAGE * link.us_per_byte)
