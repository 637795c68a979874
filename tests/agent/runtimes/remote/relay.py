"""A link between two hosts that can be made slow, silent, torn or lying while it is used."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

Spoil = Callable[[bytes], bytes | None]
"""Makes of what the host sent what arrives: other bytes, or None, and the connection is torn."""


class Relay:
    """Passes on what a client and a server on this machine say to each other, through real sockets.

    Attributes:
        port: where clients connect.
        spoil: what becomes of answers.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.spoil: Spoil = bytes
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def tear(self) -> None:
        """Break every connection that is open."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take no further connection, and break those that are open."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._listening.close()
        self.tear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._ends += (client, server)
                for source, target, answers in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass, args=(source, target, answers), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while said := source.recv(1 << 20):
                passed = self.spoil(said) if answers else said
                if passed is None:
                    break
                target.sendall(passed)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
