"""Bytes that stand in several places, sent as one message without putting them together first."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

MOST_PARTS: Final = 1024
"""Parts of one call: POSIX's IOV_MAX, as Linux and macOS have it."""


def send_parts(connection: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    """Send all of them, over a connection that is not wrapped in TLS, which has no such call. Raises OSError."""
    for start in range(0, len(parts), MOST_PARTS):
        some = parts[start : start + MOST_PARTS]
        sent = connection.sendmsg(some)
        for part in some:
            if sent < len(part):
                connection.sendall(memoryview(part)[sent:])
            sent = max(0, sent - len(part))
