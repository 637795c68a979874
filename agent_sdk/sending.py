"""Bytes that stand in several places, sent as one message without putting them together first."""

import socket
import ssl
from collections.abc import Sequence
from typing import Final

MOST_PARTS: Final = 1024
"""Parts of one call: POSIX's IOV_MAX, as Linux and macOS have it."""


def send_parts(connection: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    """Send all of them; over TLS, which has no such call, one after the other. Raises OSError."""
    at_once = 1 if isinstance(connection, ssl.SSLSocket) else MOST_PARTS
    for start in range(0, len(parts), at_once):
        some = parts[start : start + at_once]
        sent = connection.sendmsg(some) if at_once > 1 else 0
        for part in some:
            if sent < len(part):
                connection.sendall(memoryview(part)[sent:])
            sent = max(0, sent - len(part))
