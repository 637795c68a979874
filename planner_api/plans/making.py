"""The two ways a plan comes to be: at once, in the call (embedded), or first a quick one and a better one later."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from hope_schema import Method, PlanRequest
from planner_api.db.engine import Database, ReadSession, WriteSession
from planner_api.devices import repository as devices
from planner_api.devices.quota import Quotas
from planner_api.jobs.queue import SolveQueue
from planner_api.locks import Turns
from planner_api.models.figures import Figures
from planner_api.models.service import load_figures
from planner_api.plans import repository
from planner_api.plans.loading import MOST_PRICES, PRICES_AT_ONCE
from planner_api.profiles import repository as profile_rows
from planner_api.profiles.known import Known, differ
from planner_api.profiles.service import Profiles
from planner_api.settings import Settings
from planner_api.web.principal import Principal

DEVICE_WAITS = 1000
"""Priority of the first solve a device asks for, one less for each that waits or is at work; planning ahead has 0."""
FIRST_PLANS = 2
"""First plans that are made for devices at once, no two of them for the same device."""
CHECKED_AT_ONCE = 200
"""Plans compared with a newer profile per round."""


class Making(ABC):
    """What the two ways differ in."""

    prices_at_once = MOST_PRICES
    """Of larger problems no plan is made in the call."""

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

    @asynccontextmanager
    async def turn(self, caller: Principal) -> AsyncIterator[None]:
        """Wait until a plan may be made for this caller, and hold its turn."""
        yield

    @abstractmethod
    async def charge(self, caller: Principal) -> None:
        """Count a plan that is about to be made against what its caller may ask for."""

    async def waiting(self, session: WriteSession, caller: Principal) -> int:
        """How many plans of a caller's wait or are being solved; more of them wait until the transaction ends."""
        return 0

    @abstractmethod
    async def improve(self, session: WriteSession, plan_id: str, waiting: int, *, fresh: bool) -> None:
        """See to a better plan than the provisional one that this transaction stores; ``fresh``: its row is new.

        ``waiting`` is how many of its caller's waited before it, as counted in this transaction.
        """

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
        figures = [await load_figures(session, model_hash) for model_hash in {job.model_hash for job in request.jobs}]
        return not await asyncio.to_thread(_differ, old, new, figures, request, self._settings.replan_threshold)


def _differ(old: bytes, new: bytes, figures: Sequence[Figures], request: PlanRequest, threshold: float) -> bool:
    before, after = Known.read(old), Known.read(new)
    return any(differ(before, after, each, request.processors, threshold) for each in figures)


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

    async def charge(self, caller: Principal) -> None:
        """Nothing: its one caller is trusted."""

    async def improve(self, session: WriteSession, plan_id: str, waiting: int, *, fresh: bool) -> None:
        """Nothing: it is not provisional."""


class Queued(Making):
    """A first plan at once, a better one from the queue, and another one when a figure moved: a planner of a fleet."""

    prices_at_once = PRICES_AT_ONCE

    def __init__(
        self, database: Database, settings: Settings, profiles: Profiles, queue: SolveQueue, quotas: Quotas
    ) -> None:
        super().__init__(database, settings, profiles)
        self._queue = queue
        self._quotas = quotas
        self._turns = Turns(
            "first_plans", slots=FIRST_PLANS, each=1, waiting=settings.queued_solves, refused=quotas.refused
        )

    @asynccontextmanager
    async def turn(self, caller: Principal) -> AsyncIterator[None]:
        """Devices take turns, so that one with a hundred keys delays another's first by one plan at most."""
        if caller.device_id is None:
            yield
            return
        async with self._turns.turn(caller.name):
            yield

    async def charge(self, caller: Principal) -> None:
        """Count a new key. Raises TooOftenError for a device with too many today, or too many that wait."""
        if caller.device_id is None:
            return
        async with self._database.write() as session:
            most = self._settings.queued_solves
            if await self.waiting(session, caller) >= most:
                raise self._quotas.exceeded("queued_solves", f"{most} that wait", retry_after_s=30)
            await self._quotas.spend(session, caller, plan_keys=1)

    async def holds(self, plan_id: str) -> bool:
        """Always: what no longer holds is served until something better is there."""
        return True

    def first(self, request: PlanRequest) -> tuple[Method, float]:
        """The quickest there is."""
        return "greedy", self._settings.provisional_budget_s

    async def waiting(self, session: WriteSession, caller: Principal) -> int:
        """Counted on one replica at a time: of two keys of a device that come at once, one waits behind the other."""
        if caller.device_id is None:
            return 0
        await devices.lock(session, caller.device_id)
        return await repository.count_queued(session, caller.name)

    async def improve(self, session: WriteSession, plan_id: str, waiting: int, *, fresh: bool) -> None:
        """Queue it; a row that planning ahead put there is on its way and overtakes the others.

        A device's hundredth key waits behind every other device's first.
        """
        priority = max(1, DEVICE_WAITS - waiting)
        await (self._queue.enqueue if fresh else self._queue.hasten)(session, plan_id, priority=priority)

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
            await repository.rest_on(session, plan_id, checked_version=version)
            return not close and await self._queue.enqueue(session, plan_id)
