"""Other machines in a plan: which there are, what is known of them, and the ways there."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent_sdk.errors import ExecutionError, PlannerError
from agent_sdk.model import Model
from agent_sdk.planner.supplier import PlanSupplier
from agent_sdk.runtimes.remote.foreign import host_at
from agent_sdk.runtimes.remote.host import RemoteHost
from agent_sdk.runtimes.remote.processor import RemoteProcessor
from agent_sdk.runtimes.remote.served import ServedNetworks, server_at
from agent_sdk.runtimes.remote.settings import read_hosts
from hope_schema import Host, Link, MissingRequest

log = logging.getLogger(__name__)

MEASURING_S: Final = 20.0
"""Seconds that a host is asked to measure for, where the planner lacks figures of it."""


@dataclass(frozen=True)
class Hosts:
    """The hosts that were reached; their processors close them.

    Attributes:
        servers: those that serve whole networks of their own.
        cores: this machine's, where their answers are waited for.
        notes: which were not reached, and why.
        unknown: names of those that could not be measured when that was tried last.
    """

    reached: tuple[RemoteHost, ...] = ()
    servers: tuple[ServedNetworks, ...] = ()
    cores: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    unknown: set[str] = field(default_factory=set)

    @classmethod
    def named(cls, file: Path | None, cores: Iterable[int]) -> Hosts:
        """Those that a file names. Raises InputError for a file that names none."""
        own = frozenset(cores)
        reached: list[RemoteHost] = []
        servers: list[ServedNetworks] = []
        notes = []
        for name, settings in (read_hosts(file) if file is not None else {}).items():
            unused = "is not used"
            try:
                if settings.serves:
                    servers.append(ServedNetworks(server_at(name, settings), settings.serves, own))
                    unused = "is used for its own networks alone"
                if settings.lends:
                    reached.append(host_at(name, settings))
            except ExecutionError as error:
                notes.append(f"{error}; it {unused}")
                log.warning("%s", notes[-1])
        return cls(tuple(reached), tuple(servers), own, tuple(notes))

    def processors(self) -> list[RemoteProcessor | ServedNetworks]:
        """What they lend, and what serves whole networks."""
        lent = [RemoteProcessor(host, one, self.cores) for host in self.reached for one in host.offer.processors]
        return [*lent, *self.servers]

    def asked(self) -> tuple[tuple[Host, ...], tuple[Link, ...]]:
        """The hosts that answer and of which enough is known, and the ways there, as a plan's request names them."""
        up = [host for host in self.reached if not host.trying.is_down and host.name not in self.unknown]
        hosts = (
            Host(
                name=host.name,
                soc=host.offer.soc,
                frequency=host.offer.frequency,
                processors=tuple(lent.id for lent in host.offer.processors),
            )
            for host in up
        )
        return tuple(hosts), tuple(link for host in up for link in host.way.links())

    def measure(self, model: Model, supplier: PlanSupplier, device_id: str) -> list[str]:
        """Have each host measure what the planner lacks of it, and send that; sentences about what went wrong."""
        notes = []
        for host in self.reached:
            try:
                self._measure(host, model, supplier, device_id)
                self.unknown.discard(host.name)
            except (ExecutionError, PlannerError) as error:
                self.unknown.add(host.name)
                notes.append(f"host '{host.name}' was not measured: {error}")
        return notes

    def _measure(self, host: RemoteHost, model: Model, supplier: PlanSupplier, device_id: str) -> None:
        wanted = MissingRequest(
            model_hash=model.graph.model_hash,
            soc=host.offer.soc,
            frequency=host.offer.frequency,
            device_id=device_id,
            processors=host.offer.processors,
        )
        missing = supplier.lacking(model.graph, wanted)
        if not missing.latencies and not missing.transfers:
            return
        found = host.measure(model, missing, MEASURING_S)
        alike = (other.offer for other in self.reached if _kind(other) == _kind(host))
        lent = {one.id: one for offer in alike for one in offer.processors} | {one.id: one for one in found.processors}
        told = {"device_id": device_id, "soc": host.offer.soc, "processors": tuple(lent.values())}
        supplier.send(found.model_copy(update=told))  # what a device lists last counts: so it lists all that are alike


def _kind(host: RemoteHost) -> tuple[str, str]:
    return host.offer.soc, host.offer.frequency
