"""One server: networks of an agent over HTTP and gRPC, until it is stopped."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from agent_sdk.closing import Closes
from agent_sdk.server.access import Access, Address, Tls
from agent_sdk.server.admission import Admission
from agent_sdk.server.http import Http
from agent_sdk.server.lending import Lending
from agent_sdk.server.listener import Listener
from agent_sdk.server.metrics import Metrics
from agent_sdk.server.models import Models, Served
from agent_sdk.server.rpc import Grpc

GRACE_S: Final = 30.0
"""How long requests under way may take once the server is to stop."""
GIVEN_UP_S: Final = 1.0
"""How long after that they may take to notice that nobody waits for their answers any more."""


@dataclass(frozen=True)
class Settings:
    """What a server is set to.

    Attributes:
        http, grpc: where to listen; without ``grpc`` there is none.
        memory: bytes that requests may hold at once.
        requests: how many may be under way at once.
        tls: certificate and key of both.
        grace_s: how long requests under way may take once it is to stop.
    """

    http: Address
    grpc: Address | None
    memory: int
    requests: int
    tls: Tls | None = None
    grace_s: float = GRACE_S


class Server(Closes):
    """Serves from the moment it is made; ``close`` drains it.

    Args:
        served: the networks that are there as long as it is.
        lending: what others may use of this machine.

    Attributes:
        hangs: whether requests were still under way when it was closed, which nothing ended.

    Raises InputError for an address that cannot be had, or that others reach where nobody needs a token.
    """

    def __init__(
        self, served: Sequence[Served], access: Access, settings: Settings, lending: Lending | None = None
    ) -> None:
        self._settings = settings
        for address in filter(None, (settings.http, settings.grpc)):
            access.refuse_open(address)
        context = settings.tls.context() if settings.tls else None
        self._admission = admission = Admission(memory=settings.memory, requests=settings.requests)
        metrics = Metrics()
        models = Models(served, metrics, lending)
        self._listener = listener = Listener(settings.http, context, Http(models, admission, access, metrics))
        metrics.gauge("requests", "Requests under way.", lambda: admission.requests)
        metrics.gauge("memory_bytes", "Bytes that requests under way hold.", lambda: admission.held)
        metrics.gauge("connections", "Clients connected over HTTP.", lambda: listener.connections)
        if lending:
            metrics.gauge("held_tensors", "Tensors of agents elsewhere that stand here.", lambda: lending.held.count)
        with ExitStack() as opened:
            opened.callback(listener.stop, lambda: None)
            self._grpc = settings.grpc and Grpc(models, admission, access, settings.grpc, settings.tls)
            opened.pop_all()
        self._closed = self.hangs = False
        self._listener.start()
        if self._grpc:
            self._grpc.start()

    @property
    def urls(self) -> list[str]:
        secure = "s" if self._settings.tls else ""
        return [
            f"http{secure}://{self._listener.address}",
            *([f"grpc{secure}://{self._grpc.address}"] if self._grpc else []),
        ]

    def close(self) -> None:
        """Take no further request, let those under way end for a while, and end. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._listener.stop(lambda: self._admission.drain(self._settings.grace_s))
        if self._grpc:
            self._grpc.stop(GIVEN_UP_S)
        self.hangs = not self._admission.drain(GIVEN_UP_S)
