"""Rate limits per caller in this process (GCRA: one number per caller, no thread, no window edges).

NOTE: the ``limits`` package costs 22 µs a hit in memory and keeps a timer thread busy, more than half of what serving
a cached plan costs; this is under one microsecond and bounded in memory.
"""

import ipaddress
import time
from collections.abc import Callable
from functools import lru_cache

MAX_CALLERS = 200_000
"""Callers remembered at once; beyond it the idle ones are forgotten first."""
NETWORK = 2
"""How many times what one address may do all addresses of its network may do together."""


class RateLimit:
    """Allows ``rate`` requests a second per key, and ``burst`` at once after a pause.

    Args:
        rate: sustained requests per second; 0 means no limit.
        burst: requests that may come at once.
        clock: seconds, monotonic.
    """

    def __init__(self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        if rate < 0 or burst < 1:
            raise ValueError("a rate limit needs rate >= 0 and burst >= 1")
        self._interval = 1.0 / rate if rate else 0.0
        self._tolerance = self._interval * (burst - 1)
        self._clock = clock
        self._next: dict[str, float] = {}

    def hit(self, key: str) -> float:
        """Count one request; 0 when it is allowed, else the seconds until it would be, and it is not counted."""
        if wait_s := self.wait(key):
            return wait_s
        self.count(key, 1)
        return 0.0

    def count(self, key: str, requests: float) -> None:
        if not self._interval:
            return
        now = self._clock()
        if len(self._next) >= MAX_CALLERS and key not in self._next:
            self._next = {key: due for key, due in self._next.items() if due > now}
            if len(self._next) >= MAX_CALLERS:
                self._next.clear()
        self._next[key] = max(self._next.get(key, now), now) + requests * self._interval

    def wait(self, key: str) -> float:
        """Seconds until a request would be allowed, 0 for now; counts nothing."""
        now = self._clock()
        return max(0.0, self._next.get(key, now) - now - self._tolerance)


class AddressLimit(RateLimit):
    """Limits an address and its network alike: who has one address of a /24 often has many, and of a /64 has all.

    Keys are addresses; those of a network may make ``NETWORK`` times as many requests as one.
    """

    def __init__(self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(rate, burst, clock=clock)
        self._networks = RateLimit(NETWORK * rate, NETWORK * burst, clock=clock)

    def count(self, key: str, requests: float) -> None:
        one, network = keys_of(key)
        super().count(one, requests)
        self._networks.count(network, requests)

    def wait(self, key: str) -> float:
        one, network = keys_of(key)
        return max(super().wait(one), self._networks.wait(network))


@lru_cache(4096)
def keys_of(address: str) -> tuple[str, str]:
    """What an address and its network are counted under. Of IPv6 the /64 is both: any one has all its addresses."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # a socket in the file system, or a client that is not on a network at all
        return address[:64], address[:64]
    mapped = found.ipv4_mapped if found.version == 6 else None
    if found.version == 6 and mapped is None:
        network = str(ipaddress.ip_network((found, 64), strict=False))
        return network, network
    return str(mapped or found), str(ipaddress.ip_network((mapped or found, 24), strict=False))
