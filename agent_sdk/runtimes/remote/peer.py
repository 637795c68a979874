"""Another machine that speaks the Open Inference Protocol: deadlines, refusals, and the way over HTTP."""

import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from typing_extensions import override

from agent_sdk.errors import HostLate, OutOfMemory, ProcessorError, ProcessorLost, UnsupportedOp, printable
from agent_sdk.runtimes.remote.clock import Interval
from agent_sdk.runtimes.remote.line import GoneError, Line, request
from agent_sdk.runtimes.remote.settings import HostSettings
from agent_sdk.tables import faults
from hope_schema.base import Label

CONNECT_S: Final = 2.0
"""Longest time that connecting, or a short question, may take."""
RETRY_S: Final = 2.0
"""How long a host that failed is left alone: whoever asks meanwhile is told so at once."""
LATE_RUNS: Final = 4
"""How often in a row a host may be late before it counts as failed: two runs in flight are late together."""


class About(BaseModel):
    """What a server says of itself."""

    name: Label
    version: Label
    extensions: tuple[str, ...] = ()


_Said = TypeVar("_Said", bound=BaseModel)


class AbsentError(ProcessorLost):
    """The host has no such network, or has it no more."""


class Trying:
    """What a host is asked within: after ProcessorLost it is left alone for a while, which is raised at once meanwhile.

    HostLate is raised as it is, until the host, called ``name``, was late too often.

    Attributes:
        lost: how often the host has failed.
    """

    def __init__(self, name: str) -> None:
        self._name, self._why = name, ""
        self._down_until = 0.0
        self._late = 0  # how often in a row
        self.lost = 0

    @property
    def is_down(self) -> bool:
        """Whether the host failed a moment ago, and is left alone for a while."""
        return time.monotonic() < self._down_until

    def __enter__(self) -> None:
        if self.is_down:
            raise ProcessorLost(f"host '{self._name}' is left alone for a while: {self._why}")

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self._late = 0
        if not isinstance(error, ProcessorLost):
            return
        if isinstance(error, HostLate) and self._late + 1 < LATE_RUNS:
            self._late += 1
            return
        self._down_until, self._why, self._late = time.monotonic() + RETRY_S, str(error), 0
        self.lost += 1
        if isinstance(error, HostLate):
            raise ProcessorLost(f"{error}, for the {LATE_RUNS}th time in a row") from error


class Peer(ABC):
    """A machine that answers runs of networks, over any transport; may be used from any number of threads.

    Args:
        name: what it is called here.
        settings: where it is, and what it serves us for.

    Attributes:
        refusals: what statuses mean; others, that the host failed.
        extension: what a server must say that it has, so that tensors cross as bytes; "": nothing.
        shown: host and port, as a URL has them.
        trying: what each request is made within.

    Raises InputError for settings that are none.
    """

    refusals: ClassVar[Mapping[int, type[ProcessorError]]] = {
        400: UnsupportedOp,
        404: AbsentError,
        413: OutOfMemory,
        503: OutOfMemory,
    }
    extension: ClassVar[str] = ""

    def __init__(self, name: str, settings: HostSettings) -> None:
        self.name = name
        host, port, _ = settings.place
        self.shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.trying = Trying(name)
        self.closed = False

    def refused(self, status: int, why: str) -> ProcessorError:
        """What it means that the host refused, by the status that HTTP has for it."""
        kind = self.refusals.get(status, ProcessorLost)
        return kind(f"host '{self.name}' refuses with {status}: {printable(why)[:400] or 'no reason'}")

    def valid(self, kind: type[_Said], said: bytes, what: str) -> _Said:
        """What the host says of ``what``. Raises ProcessorLost where this agent knows no such thing."""
        try:
            return kind.model_validate_json(said)
        except ValidationError as error:
            why = printable(next(faults(error)))[:400]
            raise ProcessorLost(
                f"host '{self.name}' describes {what} otherwise than this agent knows it: {why}"
            ) from None

    def known(self) -> About:
        """What the server says of itself. Raises ProcessorError, also where it takes no tensors as bytes."""
        about = self.valid(About, self.about(), "itself")
        if self.extension not in ("", *about.extensions):
            raise ProcessorLost(
                f"host '{self.name}' ({about.name} {about.version}) takes no tensors as bytes over HTTP; "
                'it may take them over gRPC: address = "grpc://HOST:PORT"'
            )
        return about

    @abstractmethod
    def about(self) -> bytes:
        """What the server says of itself, in JSON. Raises ProcessorError."""

    @abstractmethod
    def described(self, network: str) -> bytes:
        """What it says of a network, in JSON. Raises ProcessorError."""

    @abstractmethod
    def run_request(self, name: str, said: Mapping[str, Any], tensors: int) -> bytes:
        """What stands before the tensors of every run of a network, so many bytes of them."""

    @abstractmethod
    def ask(
        self, parts: Sequence[bytes | memoryview], into: Sequence[memoryview], within_s: float
    ) -> tuple[str, bytes]:
        """Make a request, and read the tensors of its answer into the memory given.

        Returns the answer's Server-Timing, and what it says in JSON. Raises ProcessorLost where the host does not
        answer in time, or not as the protocol has it; what a refusal means, AbsentError among it.
        """

    def learn(  # plans are made only for links to those that lend processors
        self, timing: str, sent: int, received: int, asked: Interval
    ) -> Interval | None:
        """Take in how long a run took, from sending to the answer; when it was computed there, if the peer says so.

        All is by this machine's clock, seconds.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Close the connections. Idempotent."""


class HttpPeer(Peer):
    """A machine that is asked over HTTP/1.1, on connections that are kept."""

    extension = "binary_tensor_data"

    def __init__(self, name: str, settings: HostSettings) -> None:
        super().__init__(name, settings)
        self._address, self._context = settings.place[:2], settings.context()
        self._fields: dict[str, str | int] = {"host": self.shown}
        if settings.token:
            self._fields["authorization"] = f"Bearer {settings.token}"
        self._idle: deque[Line] = deque()

    def say(self, method: str, path: str, body: bytes = b"", within_s: float = CONNECT_S) -> bytes:
        """Ask something whose answer is JSON. Raises ProcessorLost, or what the host's refusal means."""
        return self.ask([request(method, path, self._fields, len(body)), body], [], within_s)[1]

    @override
    def about(self) -> bytes:
        return self.say("GET", "/v2")

    @override
    def described(self, network: str) -> bytes:
        return self.say("GET", f"/v2/models/{quote(network, safe='')}")

    @override
    def ask(
        self, parts: Sequence[bytes | memoryview], into: Sequence[memoryview], within_s: float
    ) -> tuple[str, bytes]:
        until = time.monotonic() + within_s
        answer = None
        with self.trying:
            while answer is None:
                line = self._line(within_s)
                try:
                    answer = line.ask(parts, into, max(0.001, until - time.monotonic()))
                except GoneError:  # it was idle for too long; what was asked changes nothing there, so ask again
                    continue
                finally:
                    self._keep(line)
        status, timing, said = answer
        if status != 200:
            try:
                why = str(json.loads(said)["error"])
            except (ValueError, KeyError, TypeError, RecursionError):
                why = ""
            raise self.refused(status, why)
        return timing, said

    def _line(self, within_s: float) -> Line:
        try:
            return self._idle.pop()
        except IndexError:
            return Line(self._address, self._context, self.name, min(within_s, CONNECT_S))

    def _keep(self, line: Line) -> None:
        if self.closed:
            line.close()
        elif not line.closed:
            self._idle.append(line)

    @property
    def loss(self) -> float:
        """The part of what was sent there that was lost on the way, over the connections that are idle."""
        counts = [line.sent_again() for line in self._idle.copy()]
        return sum(again for again, _ in counts) / max(1, sum(sent for _, sent in counts))

    @override
    def run_request(self, name: str, said: Mapping[str, Any], tensors: int) -> bytes:
        head = json.dumps(said).encode()
        fields = self._fields | {"inference-header-content-length": len(head)}
        return request("POST", f"/v2/models/{quote(name, safe='')}/infer", fields, len(head) + tensors) + head

    @override
    def close(self) -> None:
        self.closed = True
        while self._idle:
            self._idle.pop().close()
