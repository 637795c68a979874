"""The two ways a plan comes to be: at once, in the call (embedded), or first a quick one and a better one later."""

from __future__ import annotations

from abc import ABC, abstractmethod

from hope_schema import Method, PlanRequest
from planner_api.db.engine import Database, ReadSession, WriteSession
from planner_api.models.service import load_figures
from planner_api.plans import repository
from planner_api.profiles import repository as profile_rows
from planner_api.profiles.known import Known, differ
from planner_api.profiles.service import Profiles
from planner_api.settings import Settings
from planner_api.solving.queue import SolveQueue

DEVICE_WAITS = 10
"""Priority of a solve that a device asked for; a release's fan-out has less."""
CHECKED_AT_ONCE = 200
"""Plans compared with a newer profile per round."""


class Making(ABC):
    """What the two ways differ in."""

    def __init__(self, database: Database, settings: Settings, profiles: Profiles) -> None:
        self._database = database
        self._settings = settings
        self._profiles = profiles

    @abstractmethod
    async def holds(self, plan_id: str) -> bool:
        """Whether a stored plan may be served as it is."""

    @abstractmethod
    def first(self, request: PlanRequest) -> tuple[Method, float]:
        """The method, and its budget in seconds, of the plan that is made while its device waits."""

    @abstractmethod
    async def improve(self, session: WriteSession, plan_id: str, *, fresh: bool) -> None:
        """See to a better plan than the provisional one that this transaction stores; ``fresh``: its row is new."""

    async def still_holds(self, session: ReadSession, request: PlanRequest, plan_id: str) -> bool:
        """Whether no figure that the plan rests on moved beyond the threshold since it was made."""
        version = await repository.basis(session, plan_id)
        head = await profile_rows.head(session, request.soc, request.frequency)
        if version is None or head is None or version == head.version:
            return head is not None and version == head.version
        old = await profile_rows.snapshot(session, head.id, version)
        new = await profile_rows.snapshot(session, head.id, head.version)
        if old is None or new is None:
            return False
        before, after, threshold = Known.read(old), Known.read(new), self._settings.replan_threshold
        for model_hash in {job.model_hash for job in request.jobs}:
            if differ(before, after, await load_figures(session, model_hash), request.processors, threshold):
                return False
        return True


class InCall(Making):
    """The plan itself, in the call, made anew when a figure moved: an agent's own planner."""

    async def holds(self, plan_id: str) -> bool:
        """Fold what was uploaded, then compare."""
        async with self._database.read() as session:
            request = await repository.request_of(session, plan_id)
        if request is None:
            return True
        await self._profiles.fold(request.soc, request.frequency)
        async with self._database.read() as session:
            return await self.still_holds(session, request, plan_id)

    def first(self, request: PlanRequest) -> tuple[Method, float]:
        """What was asked for."""
        return request.method, self._settings.solve_budget_s

    async def improve(self, session: WriteSession, plan_id: str, *, fresh: bool) -> None:
        """Nothing: it is not provisional."""


class Queued(Making):
    """A first plan at once, a better one from the queue, and another one when a figure moved: a planner of a fleet."""

    def __init__(self, database: Database, settings: Settings, profiles: Profiles, queue: SolveQueue) -> None:
        super().__init__(database, settings, profiles)
        self._queue = queue

    async def holds(self, plan_id: str) -> bool:
        """Always: what no longer holds is served until something better is there."""
        return True

    def first(self, request: PlanRequest) -> tuple[Method, float]:
        """The quickest there is."""
        return "greedy", self._settings.provisional_budget_s

    async def improve(self, session: WriteSession, plan_id: str, *, fresh: bool) -> None:
        """Queue it; a row that a release put there is on its way and overtakes the others."""
        await (self._queue.enqueue if fresh else self._queue.hasten)(session, plan_id, priority=DEVICE_WAITS)

    async def resolve_outdated(self) -> int:
        """Compare plans with the newest version of their profile; queue those that rest on moved figures.

        Returns how many were queued.
        """
        queued, after = 0, ""
        while True:
            async with self._database.read() as session:
                outdated = await repository.outdated(session, after, CHECKED_AT_ONCE)
            for plan_id, version in outdated:
                queued += await self._resolve(plan_id, version)
            if len(outdated) < CHECKED_AT_ONCE:
                return queued
            after = outdated[-1][0]

    async def _resolve(self, plan_id: str, version: int) -> bool:
        """Queue a plan unless it holds with this version of its profile too; return whether it was queued."""
        async with self._database.read() as session:
            request = await repository.request_of(session, plan_id)
            if request is None:
                return False
            close = await self.still_holds(session, request, plan_id)
        async with self._database.write() as session:
            await repository.store(session, plan_id, {"checked_version": version})
            return not close and await self._queue.enqueue(session, plan_id)
