"""How many connections a server holds, of all and of one address, before anybody has shown a token."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Container

import structlog

log = structlog.get_logger(__name__)

RESERVED_FILES = 256
"""Open files that connections leave to the database, to children and to what is received on disk."""
MOST_FILES = 2**16
"""Open files that are asked for, where the system allows any number."""
SAY_AGAIN_S = 10.0
"""Refused connections are said in the log once in so many seconds."""


class Connections:
    """The open connections of a process.

    Args:
        most: of all addresses together.
        each: of one address; 0: as many as there may be.
        exempt: addresses that stand for many, a proxy's.
    """

    def __init__(self, most: int, each: int, exempt: Container[str] = ()) -> None:
        self._most = most
        self._each = each
        self._exempt = exempt
        self._open: Counter[str] = Counter()
        self._total = 0
        self._refused = 0
        self._said_at = -SAY_AGAIN_S

    def enter(self, address: str) -> bool:
        """Count a connection, which leaves later; False where there are too many, and it is not counted."""
        crowded = bool(self._each) and self._open[address] >= self._each and address not in self._exempt
        if crowded or self._total >= self._most:
            self._refuse(address)
            return False
        self._open[address] += 1
        self._total += 1
        return True

    def leave(self, address: str) -> None:
        """Count one less."""
        self._total -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def _refuse(self, address: str) -> None:
        self._refused += 1
        now = time.monotonic()
        if now - self._said_at >= SAY_AGAIN_S:
            log.warning(
                "connections_refused",
                address=address,
                refused=self._refused,
                open=self._total,
                cure="a proxy belongs into FORWARDED_ALLOW_IPS; HOPE_CONNECTIONS_PER_ADDRESS allows others more",
            )
            self._refused, self._said_at = 0, now


def open_files() -> int:
    """Raise the soft limit of open files to the hard one; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else max(soft, min(hard, MOST_FILES))
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
