"""The rules for plans: answered from what is stored, first found at once, then improved behind the device's back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hope_schema import Method, ModelGraph, Plan, PlanRequest, Profile
from planner_api.compression import unzstd
from planner_api.db.engine import Database, ReadSession, WriteSession
from planner_api.errors import ApiError, model_unknown, plan_unknown, profile_unknown
from planner_api.locks import KeyedLock
from planner_api.models import repository as models
from planner_api.models.service import load_figures
from planner_api.plans import repository
from planner_api.plans.cache import PlanCache
from planner_api.plans.key import normalised, plan_id
from planner_api.plans.stored import StoredPlan, serialise
from planner_api.plans.waits import Waits
from planner_api.profiles import repository as profile_rows
from planner_api.profiles.known import Known, differ
from planner_api.profiles.service import Profiles
from planner_api.settings import Settings

if TYPE_CHECKING:
    from planner_api.solving.events import Events
    from planner_api.solving.queue import SolveQueue

DEVICE_WAITS = 10
"""Priority of a solve that a device asked for; a release's fan-out has less."""
CHECKED_AT_ONCE = 200
"""Plans compared with a newer profile per round."""


@dataclass(frozen=True)
class Served:
    """A plan, and whether it was there already (``hit``) or had to be found (``miss``)."""

    stored: StoredPlan
    hit: bool


class Plans:
    """Plans of all keys.

    Args:
        database: where they are stored.
        settings: budgets and thresholds.
        profiles: folds what was uploaded before a plan is made of it.
        cache: the plans served from memory; told when a version is superseded.
        queue: where improvements are queued; None solves in the call (embedded mode).
        events: how the news of a version travels; None where nobody else listens (embedded mode).
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        profiles: Profiles,
        cache: PlanCache,
        queue: SolveQueue | None = None,
        events: Events | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._profiles = profiles
        self._cache = cache
        self._queue = queue
        self._events = events
        self.waits = None if events is None else Waits(events, self._newest, longest_s=settings.max_wait_s)
        self._making = KeyedLock()
        self._reads: dict[tuple[str, int], asyncio.Task[StoredPlan | None]] = {}
        self.misses: Counter[str] = Counter()

    async def get(self, wanted: str) -> StoredPlan:
        """Return the newest version of a plan. Raises ApiError 404 when nobody asked for it yet."""
        stored = await self._newest(wanted)
        if stored is None:
            raise plan_unknown(wanted)
        if self._queue is None:
            async with self._database.read() as session:
                request = await repository.request_of(session, wanted)
            return stored if request is None else (await self.plan(request)).stored
        return stored

    async def plan(self, request: PlanRequest) -> Served:
        """Return the plan under the request's key, finding a first one when there is none.

        Raises:
            ApiError: 404 for an unknown model or SoC, 422 when no plan exists.
        """
        if request.jobs is not None and [job.model_hash for job in request.jobs] != [request.model_hash]:
            raise ApiError(422, "jobs-reserved", "jobs is reserved for planning several networks; leave it out")
        request = normalised(request)
        wanted = plan_id(request)
        stored = await self._newest(wanted)
        if stored is not None and (self._queue is not None or await self._is_current(request, wanted)):
            return Served(stored, hit=True)
        # One request of this process at a time makes a plan; the others then find it made.
        async with self._making.alone(wanted):
            return await self._made(request, wanted)

    async def _made(self, request: PlanRequest, wanted: str) -> Served:
        """Return the plan that another request made meanwhile, or make it."""
        stored = await self._find(wanted)
        if stored is not None and (self._queue is not None or await self._is_current(request, wanted)):
            return Served(stored, hit=True)
        self.misses[wanted] += 1
        if not await self._model_exists(request.model_hash):
            raise model_unknown(request.model_hash)
        await self._profiles.fold(request.soc, request.frequency)
        graph, profile = await load_problem(self._database, request)
        at_once = self._queue is not None
        method: Method = "greedy" if at_once else request.method
        budget_s = self._settings.provisional_budget_s if at_once else self._settings.solve_budget_s
        found, solve_us = await asyncio.to_thread(_solve, graph, profile, request, method, budget_s)
        return Served(await self._stored(request, wanted, found, solve_us, provisional=method != request.method), False)

    async def _stored(
        self, request: PlanRequest, wanted: str, found: Plan, solve_us: float, *, provisional: bool
    ) -> StoredPlan:
        """Store a plan made in this call, and queue the better one in the same transaction."""

        def bytes_of(version: int) -> StoredPlan:
            return serialise(found, plan_id=wanted, version=version, provisional=provisional, solve_us=solve_us)

        # Made before the transaction, which must not wait for a thread that other plans keep busy.
        stored = await asyncio.to_thread(bytes_of, 1)
        async with self._database.write() as session:
            claimed = await repository.insert(session, wanted, request, datetime.now(UTC))
            version = await repository.next_version(session, wanted)
            assert version is not None
            if self._queue is not None and version > 1:
                newest = await repository.find(session, wanted)  # another replica was faster, and it queued the solve
                assert newest is not None
                return newest
            if version > 1:
                stored = bytes_of(version)
            # A row that a release put there is the queue's: a worker may hold its lease at this very moment.
            status = None if not claimed and self._queue is not None else "queued" if provisional else "done"
            await store_version(session, stored, found, solve_us, status=status)
            if self._queue is not None and provisional:
                queue = self._queue.enqueue if claimed else self._queue.hasten
                await queue(session, wanted, priority=DEVICE_WAITS)
            if self._events is not None:
                await self._events.publish(session, wanted, version)
        self._cache.forget(wanted, version)
        return stored

    async def resolve_outdated(self) -> int:
        """Compare plans with the newest version of their profile; queue those that rest on moved figures.

        Returns how many were queued.
        """
        if self._queue is None:
            return 0
        queued, after = 0, ""
        while True:
            async with self._database.read() as session:
                outdated = await repository.outdated(session, after, CHECKED_AT_ONCE)
            for wanted, version in outdated:
                queued += await self._resolve(wanted, version)
            if len(outdated) < CHECKED_AT_ONCE:
                return queued
            after = outdated[-1][0]

    async def _resolve(self, wanted: str, version: int) -> bool:
        """Queue a plan unless it holds with this version of its profile too; return whether it was queued."""
        assert self._queue is not None
        async with self._database.read() as session:
            request = await repository.request_of(session, wanted)
            if request is None:
                return False
            close = await self._still_holds(session, request, wanted)
        async with self._database.write() as session:
            await repository.store(session, wanted, {"checked_version": version})
            return not close and await self._queue.enqueue(session, wanted)

    async def flush_counts(self) -> None:
        """Add hits and misses since the last call to the plans' rows; they count on when that fails."""
        hits, misses, self.misses = self._cache.take_hits(), self.misses, Counter()
        if not hits and not misses:
            return
        try:
            async with self._database.write() as session:
                await repository.add_hits(session, hits, misses)
        except BaseException:
            self._cache.hits.update(hits)
            self.misses.update(misses)
            raise

    async def _find(self, wanted: str) -> StoredPlan | None:
        generation = self._cache.generation
        if (cached := self._cache.get(wanted)) is not None:
            return cached
        async with self._database.read() as session:
            stored = await repository.find(session, wanted)
        if stored is not None:
            self._cache.put(stored, generation)
        return stored

    async def _newest(self, wanted: str) -> StoredPlan | None:
        """Find a plan that many requests may want at once (a release, a version they waited for) with one query."""
        if (cached := self._cache.get(wanted)) is not None:
            return cached
        # Not together with a query that began before the last news: it may bring what the news superseded.
        key = (wanted, self._cache.generation)
        reading = self._reads.get(key)
        if reading is None:
            reading = self._reads[key] = asyncio.create_task(self._find(wanted))
            reading.add_done_callback(lambda _done: self._reads.pop(key, None))
        return await asyncio.shield(reading)

    async def _model_exists(self, model_hash: str) -> bool:
        async with self._database.read() as session:
            return await models.exists(session, model_hash)

    async def _is_current(self, request: PlanRequest, wanted: str) -> bool:
        """Fold what was uploaded, then say whether the stored plan still holds."""
        await self._profiles.fold(request.soc, request.frequency)
        async with self._database.read() as session:
            return await self._still_holds(session, request, wanted)

    async def _still_holds(self, session: ReadSession, request: PlanRequest, wanted: str) -> bool:
        """Whether no figure that the plan rests on moved beyond the threshold since it was made."""
        version = await repository.basis(session, wanted)
        head = await profile_rows.head(session, request.soc, request.frequency)
        if version is None or head is None or version == head.version:
            return head is not None and version == head.version
        old = await profile_rows.snapshot(session, head.id, version)
        new = await profile_rows.snapshot(session, head.id, head.version)
        if old is None or new is None:
            return False
        figures = await load_figures(session, request.model_hash)
        return not differ(
            Known.read(old), Known.read(new), figures, request.processors, self._settings.replan_threshold
        )


async def store_version(
    session: WriteSession, stored: StoredPlan, found: Plan, solve_us: float, *, status: str | None = None
) -> None:
    """Write a version of a plan into its row, which the caller holds locked."""
    values = {
        "version": stored.version,
        "provisional": stored.provisional,
        "etag": stored.etag,
        "body_zstd": stored.body_zstd,
        "body_gzip": stored.body_gzip,
        "profile_version": found.profile_version,
        "checked_version": found.profile_version,
        "makespan_us": found.makespan_us,
        "lower_bound_us": found.lower_bound_us,
        "gap": found.gap,
        "found_by": found.method,
        "solve_us": solve_us,
        "solved_at": datetime.now(UTC),
    }
    await repository.store(session, stored.plan_id, values if status is None else {**values, "status": status})


async def load_problem(database: Database, request: PlanRequest) -> tuple[ModelGraph, Profile]:
    """Return what a plan is made of. Raises ApiError 404 for an unknown model or SoC."""
    async with database.read() as session:
        graph = await models.graph(session, request.model_hash)
        found = await profile_rows.current(session, request.soc, request.frequency)
    if graph is None:
        raise model_unknown(request.model_hash)
    if found is None:
        raise profile_unknown(request.soc, request.frequency)
    return await asyncio.to_thread(_parse, graph, found[1])


def _parse(graph: bytes, profile: bytes) -> tuple[ModelGraph, Profile]:
    return ModelGraph.model_validate_json(unzstd(graph)), Profile.model_validate_json(unzstd(profile))


def _solve(
    graph: ModelGraph, profile: Profile, request: PlanRequest, method: Method, budget_s: float
) -> tuple[Plan, float]:
    """Plan in this process (in a thread); return the plan and the microseconds it took."""
    # NOTE: imported here, because planning loads numba and HiGHS, which a process that only serves plans never needs.
    from planner_api.planning import PlanningError, plan

    started = time.perf_counter()
    try:
        found = plan(
            graph,
            profile,
            processors=request.processors,
            method=method,
            transfer_mode=request.transfer_mode,
            budget_s=budget_s,
        )
    except PlanningError as error:
        raise ApiError(422, "unplannable", f"no plan exists: {error}"[:2000]) from error
    return found, (time.perf_counter() - started) * 1e6
