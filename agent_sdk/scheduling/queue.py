"""Requests that wait for a decision, by network: what a decision looks at does not grow with what waits."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from agent_sdk.scheduling.network import Network
from agent_sdk.scheduling.request import Request

_Place = tuple[int, bool, int, Request]
"""By priority, the highest first; whether it has not waited for too long; its number."""


class Queue:
    """Requests that wait. Of each network only those are looked at that may begin.

    Attributes:
        begun: what has begun and waits for its next subgraph; the latest to wait first.
    """

    def __init__(self) -> None:
        self.begun: list[Request] = []
        self._lines: dict[Network, list[_Place]] = {}
        self._places: dict[Request, _Place] = {}
        self._patient: list[tuple[int, int, Request]] = []
        """Who has not waited for too long yet, by when that will be."""

    def __contains__(self, request: Request) -> bool:
        return request in self._places or request in self.begun

    def __bool__(self) -> bool:
        return bool(self._places or self.begun)

    def add(self, request: Request) -> None:
        """What has begun waits before all others, the others in the order of their numbers."""
        if request.unit:
            self.begun.insert(0, request)
        else:
            self._stand(request, patient=True)
            insort(self._patient, (request.patient_ns, request.number, request))

    def remove(self, request: Request) -> None:
        """Take out a request that waits."""
        if request.unit:
            self.begun.remove(request)
        elif self._leave(request):
            del self._patient[bisect_left(self._patient, (request.patient_ns, request.number, request))]

    def groups(self, now_ns: int, under_way: Iterable[Request]) -> list[tuple[bool, list[Request]]]:
        """Who may start something: requests of one priority, the highest first; of equal ones those that have waited
        for too long come before. Whether they have, and they in the order of arrival, behind what has begun.

        Of each network no more than may be under way beside those that are.
        """
        while self._patient and self._patient[0][0] <= now_ns:
            _, _, request = self._patient.pop(0)
            self._leave(request)
            self._stand(request, patient=False)
        running = [request.network for request in under_way]
        later: list[_Place] = []
        for network, line in self._lines.items():
            later += line[: max(0, network.in_flight - running.count(network))]
        later.sort()
        groups: dict[tuple[int, bool], list[Request]] = {}
        for request in self.begun:
            groups.setdefault((-request.priority, request.patient_ns > now_ns), []).append(request)
        for priority, patient, _, request in later:
            groups.setdefault((priority, patient), []).append(request)
        return [(not patient, groups[priority, patient]) for priority, patient in sorted(groups)]

    def _stand(self, request: Request, *, patient: bool) -> None:
        place = self._places[request] = (-request.priority, patient, request.number, request)
        insort(self._lines.setdefault(request.network, []), place)

    def _leave(self, request: Request) -> bool:
        """Whether it has not waited for too long."""
        place, line = self._places.pop(request), self._lines[request.network]
        del line[bisect_left(line, place)]
        if not line:
            del self._lines[request.network]
        return place[1]
