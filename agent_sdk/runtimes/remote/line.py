"""A kept connection to a host: requests that stand ready as bytes, answers that arrive where they stay."""

import socket
import ssl
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import httptools

from agent_sdk.errors import HostLate, ProcessorLost
from agent_sdk.sockets import ReadAhead, send_parts

MOST_HEAD: Final = 64 * 1024
"""Most bytes that are read of an answer before it is known how long it is."""
MOST_SAID: Final = 64 * 2**20
"""Most bytes of an answer that is JSON."""
SENT_AGAIN: Final = 100
SENT: Final = 136
"""Where Linux counts segments in ``struct tcp_info``: those that were sent again, and all that were sent."""


class GoneError(ProcessorLost):
    """The host closed the connection before it answered anything: perhaps only because it was idle."""


class Reply:
    """The head of an answer; ``timing`` is its Server-Timing."""

    def __init__(self, head: bytes) -> None:
        self._fields: dict[str, str] = {}
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(head)
        self.status = parser.get_status_code()
        self.goes_on = parser.should_keep_alive()
        self.timing = self._fields.get("server-timing", "")
        self.length = int(self._fields["content-length"])
        self.said = int(self._fields.get("inference-header-content-length", self.length))
        if not 0 <= self.said <= self.length:
            raise ValueError("lengths that contradict each other")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a field."""
        self._fields[name.decode("latin-1").lower()] = value.decode("latin-1")


class Line:
    """One connection, used by one thread at a time.

    Raises ProcessorLost, from every method, where the host does not answer in time, or not as the protocol has it; the
    connection is closed then.

    Args:
        address: host and port.
        context: what it is wrapped in.
        name: the host's, for messages.
        within_s: how long connecting may take.
    """

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext | None, name: str, within_s: float) -> None:
        self._name = name
        self._ahead = ReadAhead(MOST_HEAD)
        self.used = self.closed = False
        try:
            self._socket = socket.create_connection(address, within_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=address[0])
        except ssl.SSLCertVerificationError as error:
            raise ProcessorLost(
                f"host '{name}' is not trusted: {error.verify_message}; "
                'a certificate that no authority signed is named in the file of hosts: certificate = "FILE.pem"'
            ) from error
        except OSError as error:
            raise ProcessorLost(f"host '{name}' cannot be reached: {error}") from error

    def ask(
        self, parts: Sequence[bytes | memoryview], into: Sequence[memoryview], within_s: float
    ) -> tuple[int, str, bytes]:
        """Send a request and read its answer: what it says, and the tensors behind that into the memory given.

        Returns the status, the answer's Server-Timing, and what it says. Where it is an error, or says nothing of
        tensors, nothing is written.
        """
        until = time.monotonic() + within_s
        reply = None
        self._ahead.clear()  # nothing that came unasked is an answer
        try:
            self._socket.settimeout(within_s)
            send_parts(self._socket, parts)
            head = self._ahead.head(self._socket, until)
            if not head:
                raise ConnectionError("it ended in the middle of an answer" if self._ahead.filled else "it was closed")
            reply = Reply(head)
            if reply.said > MOST_SAID:
                raise ValueError(f"{reply.said} bytes of JSON")
            said = bytearray(reply.said)
            self._fill(memoryview(said), until)
            if reply.status == 200 and reply.length != reply.said:
                if reply.length - reply.said != sum(map(len, into)):
                    raise ValueError(f"{reply.length - reply.said} bytes of tensors instead of {sum(map(len, into))}")
                for part in into:
                    self._fill(part, until)
            elif reply.length != reply.said or (into and reply.status == 200):
                raise ValueError("an answer without the tensors that were asked for")
        except OSError as error:
            self.close()
            late = isinstance(error, TimeoutError)
            what = f"did not answer within {within_s:.3g} s" if late else f"broke the connection: {error}"
            gone = self.used and not late and reply is None and not self._ahead.filled
            lost = HostLate if late else GoneError if gone else ProcessorLost
            raise lost(f"host '{self._name}' {what}") from error
        except (ValueError, KeyError, httptools.HttpParserError) as error:
            self.close()
            raise ProcessorLost(f"host '{self._name}' answers what the protocol does not allow: {error}") from error
        except BaseException:
            self.close()
            raise
        self.used = True
        if not reply.goes_on:
            self.close()
        return reply.status, reply.timing, bytes(said)

    def sent_again(self) -> tuple[int, int]:
        """How many segments were sent again, and how many in all; none where the system does not say."""
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SENT + 4)
            return struct.unpack_from("I", info, SENT_AGAIN)[0], struct.unpack_from("I", info, SENT)[0]
        except (OSError, AttributeError, struct.error):
            return 0, 0

    def close(self) -> None:
        """End it. Idempotent."""
        self.closed = True
        with suppress(OSError):
            self._socket.close()

    def _fill(self, into: memoryview, until: float) -> None:
        if self._ahead.fill(self._socket, into, until) < len(into):
            raise TimeoutError if time.monotonic() > until else ConnectionError("it ended in the middle of an answer")


def request(method: str, path: str, fields: Mapping[str, str | int], length: int) -> bytes:
    """The head of a request."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}content-length: {length}\r\n\r\n".encode("latin-1")
