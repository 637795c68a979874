"""Bytes to and from several places of memory, with few calls of the system."""

import socket
import ssl
from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Final

MOST_PARTS: Final = 1024
"""Parts of one call: POSIX's IOV_MAX, as Linux and macOS have it."""
GATHERED: Final = 128 * 1024
"""Bytes that are waited for at once: over a slow link they come packet by packet, and being woken for each takes four
times as much of a core as all else that receiving does. More would let the sender wait for room here."""
AT_ONCE: Final = 16 * 1024
"""A message of so few bytes comes in a few packets."""
HELD: Final = 32 * 1024
"""Bytes that TLS may have taken from the system and not given out: of a record, which has 16 KB at most."""
END: Final = b"\r\n\r\n"


class ReadAhead:
    """What was read of a connection and not taken yet: where a head ends is known once it is there.

    Args:
        most: bytes that it holds.
    """

    def __init__(self, most: int) -> None:
        self._memory = bytearray(most)
        self._view = memoryview(self._memory)
        self._start = self._end = 0

    @property
    def filled(self) -> int:
        """Bytes that it has."""
        return self._end - self._start

    def head(self, connection: socket.socket, until: float = inf, begun_s: float = inf) -> bytes:
        """Take out what comes up to a blank line, and that; empty where the other side ended before it.

        Args:
            connection: its timeout is the longest silence.
            until: when it is late, by `time.monotonic`, seconds.
            begun_s: how long it may take from the first bytes that come.

        Raises ValueError where it is longer than what is held, TimeoutError where it is late, OSError.
        """
        searched = 0
        while (end := self._memory.find(END, self._start + max(0, searched - len(END) + 1), self._end)) < 0:
            searched = self.filled
            if self._end == len(self._memory):
                self._to_front()
            count = connection.recv_into(self._view[self._end :])
            if not count:
                return b""
            self._end += count
            now = monotonic()
            until = min(until, now + begun_s)
            if now > until:
                raise TimeoutError
        return bytes(self._taken(end + len(END) - self._start))

    def clear(self) -> None:
        """Forget what was read."""
        self._start = self._end = 0

    def fill(self, connection: socket.socket, into: memoryview, until: float) -> int:
        """As ``receive``, beginning with what was read already."""
        have = min(len(into), self.filled)
        into[:have] = self._taken(have)
        return have if have == len(into) else have + receive(connection, into[have:], until)

    def _taken(self, count: int) -> memoryview:
        """The first so many bytes, which stand there until more is read."""
        start = self._start
        self._start += count
        if self._start == self._end:
            self.clear()
        return self._view[start : start + count]

    def _to_front(self) -> None:
        """Make room behind what is held. Raises ValueError where there is none."""
        if not self._start:
            raise ValueError("the head is too long")
        left = self.filled
        self._view[:left] = self._view[self._start : self._end]
        self._start, self._end = 0, left


def send_parts(connection: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    """Send all of them; over TLS, which has no such call, one after the other. Raises OSError."""
    gathers = not isinstance(connection, ssl.SSLSocket)
    for start in range(0, len(parts), MOST_PARTS):
        some = parts[start : start + MOST_PARTS]
        sent = connection.sendmsg(some) if gathers else 0
        for part in some:
            if sent < len(part):
                connection.sendall(memoryview(part)[sent:])
            sent = max(0, sent - len(part))


def receive(connection: socket.socket, into: memoryview, until: float) -> int:
    """Fill memory with what comes, and return how much is filled: not all where the other side ended, or it got late.

    Args:
        connection: its timeout is the longest silence.
        into: the memory.
        until: when it is late, by `time.monotonic`, seconds.

    Raises OSError, TimeoutError among it after too long a silence.
    """
    have, size, silence_s = 0, len(into), connection.gettimeout()
    held = HELD if isinstance(connection, ssl.SSLSocket) else 0
    gathers = False  # what is there already is taken without
    while have < size:
        if gathers:
            wanted = max(1, min(size - have - held, GATHERED))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            left_s = max(until - monotonic(), 1e-3)
            connection.settimeout(left_s if silence_s is None else min(left_s, silence_s))
        try:
            count = connection.recv_into(into[have:])
        except TimeoutError:
            if monotonic() < until:
                raise
            break
        have += count
        if not count or (have < size and monotonic() > until):
            break
        gathers = gathers or size - have > held + AT_ONCE
    if gathers:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        connection.settimeout(silence_s)
    return have
