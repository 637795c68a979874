"""Processor time of the processes that serve a fleet: the API's, and PostgreSQL's where it runs on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks.service.stage import Server, Stage


@dataclass(frozen=True)
class Cost:
    """Processor seconds; of a database on another machine 0."""

    api_s: float = 0.0
    database_s: float = 0.0

    @property
    def whole_s(self) -> float:
        """Both."""
        return self.api_s + self.database_s

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.api_s - other.api_s, self.database_s - other.database_s)

    def __truediv__(self, calls: float) -> Cost:
        return Cost(self.api_s / calls, self.database_s / calls)

    def __mul__(self, times: float) -> Cost:
        return Cost(self.api_s * times, self.database_s * times)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.api_s + other.api_s, self.database_s + other.database_s)


class Meter:
    """What servers and their database used so far."""

    def __init__(self, servers: Sequence[Server], postmaster: psutil.Process | None) -> None:
        self._servers = servers
        self._postmaster = postmaster

    @classmethod
    async def on(cls, stage: Stage, servers: Sequence[Server]) -> Meter:
        """Find the database's processes."""
        backend = await stage.number("SELECT pg_backend_pid()")
        try:
            found = psutil.Process(backend)
            return cls(servers, found.parent() if found.name().startswith("postgres") else None)
        except psutil.Error:
            return cls(servers, None)

    def read(self) -> Cost:
        """Processor time until now; what a process that ended used counts as its parent's."""
        api_s = sum(server.cpu_s() for server in self._servers)
        if self._postmaster is None:
            return Cost(api_s)
        own = self._postmaster.cpu_times()
        used = own.user + own.system + own.children_user + own.children_system
        for child in self._postmaster.children():
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            used += times.user + times.system
        return Cost(api_s, used)
