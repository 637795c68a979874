"""Bytes that stand in several places, sent as one message without putting them together first."""

from __future__ import annotations

import socket
from collections.abc import Sequence


def send_parts(connection: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    """Send all of them, over a connection that is not wrapped in TLS, which has no such call. Raises OSError."""
    sent = connection.sendmsg(parts)
    for part in parts:
        if sent < len(part):
            connection.sendall(memoryview(part)[sent:])
        sent = max(0, sent - len(part))
