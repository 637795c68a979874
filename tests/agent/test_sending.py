"""Bytes that stand in several places, sent as one message."""

from __future__ import annotations

import socket
import threading

from agent_sdk.sending import send_parts


def test_more_parts_than_one_call_takes_arrive_in_order() -> None:
    """The system takes 1 024 parts at a time; of large parts it takes but a piece."""
    parts = [bytes([place % 251]) * (1 + place % 7) for place in range(3000)] + [bytes(range(256)) * 8192]
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sending = threading.Thread(target=send_parts, args=(sender, parts))
        sending.start()
        with receiver.makefile("rb") as arriving:
            assert arriving.read(sum(map(len, parts))) == b"".join(parts)
        sending.join()
