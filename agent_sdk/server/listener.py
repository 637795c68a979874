"""The socket that HTTP clients connect to, and their connections."""

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from agent_sdk.server.access import Address
from agent_sdk.server.connection import Connection, Exchange

MOST_CONNECTIONS: Final = 4096
"""Most clients at once; each has a thread, and 16 KB."""
BACKLOG: Final = 4096
FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
PAUSE_S: Final = 0.1
"""How long it waits where the system has no file or thread left for a client."""


class Listener:
    """Serves HTTP at one address from ``start`` until ``stop``.

    Raises InputError where that address cannot be had.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None, handle: Callable[[Exchange], None]) -> None:
        self._tls, self._handle = tls, handle
        self._connections: dict[int, Connection] = {}
        self._lock = threading.Lock()
        self._stopped = False
        self._socket = address.listening(BACKLOG)
        self._poll = select.epoll()
        self._poll.register(self._socket, select.EPOLLIN)
        self.address = Address(address.host, self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="hope-http", daemon=True)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def start(self) -> None:
        self._thread.start()

    def stop(self, drained: Callable[[], object]) -> None:
        """Take no further client or request, wait for ``drained``, and end what is left."""
        self._stopped = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        if self._thread.is_alive():
            self._thread.join()
        self._poll.close()
        self._socket.close()
        for connection in self._all():
            connection.end()
        drained()
        for connection in self._all():
            connection.close()

    def _all(self) -> list[Connection]:
        with self._lock:
            return list(self._connections.values())

    def _accept(self) -> None:
        while not self._stopped:
            try:
                self._wait()
                taken, _ = self._socket.accept()
            except OSError:
                if not self._stopped:
                    time.sleep(PAUSE_S)  # too many files are open
                continue
            self._take(taken)

    def _wait(self) -> None:
        """Until a client comes; of those that close meanwhile the system tells, so that no request pays for it."""
        numbers = set[int]()
        while self._socket.fileno() not in numbers:
            numbers = {number for number, _ in self._poll.poll()}
            for number in numbers:
                self._look_at(number)

    def _look_at(self, number: int) -> None:
        connection = self._connections.get(number)
        if connection is not None:
            connection.look()

    def _take(self, taken: socket.socket) -> None:
        connection = Connection(taken, self._tls)
        with self._lock:
            full = len(self._connections) >= MOST_CONNECTIONS
            if not full:
                self._connections[connection.number] = connection
        try:
            if not full:
                self._poll.register(taken, select.EPOLLRDHUP | select.EPOLLET)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except (RuntimeError, OSError):  # the system has no thread or memory left
            full = True
        if full:
            with suppress(OSError):
                taken.setblocking(False)
                taken.send(FULL)
            self._gone(connection)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve(self._handle)
        finally:
            self._gone(connection)

    def _gone(self, connection: Connection) -> None:
        connection.close()
        with self._lock:
            if self._connections.get(connection.number) is connection:  # else the system gave another its number
                del self._connections[connection.number]
