"""How many connections a server holds, of all and of one address, before anybody has shown a token."""

import resource
from collections import Counter
from collections.abc import Container

import structlog

from planner_api.web.logs import Seldom
from planner_api.web.rate import keys_of

log = structlog.get_logger(__name__)

NETWORK = 8
"""How many times as many as one address all of a network may hold: a /24 of devices may be one site."""
RESERVED_FILES = 256
"""Open files that connections leave to the database, to children and to what is received on disk."""
MOST_FILES = 2**16
"""Open files that are asked for, where the system allows any number."""


class Connections:
    """The open connections of a process.

    Args:
        most: of all addresses together.
        each: of one address, and of its network (/24, /64) ``NETWORK`` times as many; 0: as many as there may be.
        exempt: addresses that stand for many, a proxy's.
    """

    def __init__(self, most: int, each: int, exempt: Container[str] = ()) -> None:
        self._most = most
        self._each = each
        self._exempt = exempt
        self._open: Counter[str] = Counter()
        self._total = 0
        self._seldom = Seldom()

    def enter(self, address: str) -> bool:
        """Count a connection, which leaves later; False where there are too many, and it is not counted."""
        one, network = _keys(address)
        crowded = self._open[one] >= self._each or self._open[network] >= NETWORK * self._each
        if (crowded and self._each and address not in self._exempt) or self._total >= self._most:
            cure = "a proxy belongs into FORWARDED_ALLOW_IPS; HOPE_CONNECTIONS_PER_ADDRESS allows others more"
            self._seldom.say(log.warning, "connections_refused", address=address, open=self._total, cure=cure)
            return False
        self._open.update({one, network})
        self._total += 1
        return True

    def leave(self, address: str) -> None:
        self._total -= 1
        for key in set(_keys(address)):
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


def _keys(address: str) -> tuple[str, str]:
    """What connections of an address and of its network are counted under; of IPv6 any device has several addresses."""
    one, network = keys_of(address)
    return (address if one == network else one), network


def open_files() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else max(soft, min(hard, MOST_FILES))
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
