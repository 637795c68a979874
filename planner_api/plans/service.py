"""The rules for plans: answered from what is stored, first found at once, then improved behind the device's back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from hope_schema import ModelGraph, Plan, PlanRequest, Profile
from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import PlanVersionRow
from planner_api.errors import InvalidError, UnavailableError, plan_unknown
from planner_api.jobs.events import Events
from planner_api.plans import repository
from planner_api.plans.cache import PlanCache
from planner_api.plans.key import normalised, plan_id
from planner_api.plans.loading import MOST_PRICES, TooLargeError, load_problem
from planner_api.plans.making import Making
from planner_api.plans.stored import StoredPlan, serialise
from planner_api.plans.waits import Waits
from planner_api.profiles.service import Profiles
from planner_api.shared import SharedCalls
from planner_api.web.principal import ANONYMOUS, Principal

MADE_S = 5.0
"""After this one may ask again for what a worker makes; short enough for an agent to wait for within a call."""


@dataclass(frozen=True)
class Served:
    """A plan, and whether it was there already (``hit``) or had to be found (``miss``)."""

    stored: StoredPlan
    hit: bool


Choose = Callable[[str, str | None], Awaitable[int | None]]
"""The version of a plan (its id) that a device (its id, where it says one) gets; None: the one that all get."""


async def same_for_all(_plan_id: str, _device_id: str | None) -> None:
    """Every device gets the version that is served."""


class Plans:
    """Plans of all keys. ``choose`` says which version a device gets while a release is under way."""

    def __init__(
        self,
        database: Database,
        profiles: Profiles,
        cache: PlanCache,
        events: Events,
        making: Making,
        choose: Choose = same_for_all,
    ) -> None:
        self._database = database
        self._profiles = profiles
        self._cache = cache
        self._events = events
        self._making = making
        self.choose = choose
        self.waits = Waits(events, self._newest)
        self._made: SharedCalls[Served] = SharedCalls()
        self._read: SharedCalls[StoredPlan | None] = SharedCalls()
        self.hits: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()

    async def get(self, wanted: str, device_id: str | None = None) -> StoredPlan:
        """Return the version of a plan that a device gets. Raises NotFoundError when nobody asked for it yet."""
        stored = await self._served(wanted, device_id)
        if stored is None:
            raise plan_unknown(wanted)
        if not await self._making.holds(wanted):
            async with self._database.read() as session:
                request = await repository.request_of(session, wanted)
            assert request is not None
            return (await self.plan(request)).stored
        self.hits[wanted] += 1
        return stored

    async def plan(self, request: PlanRequest, caller: Principal = ANONYMOUS, device_id: str | None = None) -> Served:
        """Return the plan under the request's key, finding a first one when there is none.

        ``device_id`` is the device that it is for, where it says so.

        Raises:
            NotFoundError: an unknown model or SoC.
            InvalidError: no plan exists.
            TooOftenError: a device beyond a quota.
        """
        request = normalised(request)
        wanted = plan_id(request)
        stored = await self._served(wanted, device_id)
        if stored is None or not await self._making.holds(wanted):
            return await self._made.get((wanted, caller.name), lambda: self._make(request, wanted, caller))
        self.hits[wanted] += 1
        return Served(stored, hit=True)

    async def _make(self, request: PlanRequest, wanted: str, caller: Principal) -> Served:
        """Make the plan, unless another request did so meanwhile."""
        async with self._making.turn(caller):
            before = await self._newest(wanted)
            if before is not None and await self._making.holds(wanted):
                return Served(before, hit=True)
            self.misses[wanted] += 1
            await self._profiles.fold(request.soc, request.frequency)
            method, budget_s = self._making.first(request)
            first = request.model_copy(update={"method": method})
            most = self._making.prices_at_once
            try:
                graphs, profile = await load_problem(self._database, self._profiles.predictions, first, most)
            except TooLargeError as error:
                if error.prices > MOST_PRICES:
                    raise
                await self._leave_to_the_queue(request, wanted, caller)
                detail = "a plan of this size is made by a worker, not in the call; ask for it again"
                raise UnavailableError(detail, retry_after_s=MADE_S) from None
            await self._making.charge(caller)
            found, solve_us = await asyncio.to_thread(_solve, graphs, profile, first, budget_s)
        version = 1 if before is None else before.version + 1
        provisional = method != request.method
        # Made before the transaction, which must not wait for a thread that other plans keep busy.
        stored = await asyncio.to_thread(
            serialise, found, plan_id=wanted, version=version, provisional=provisional, solve_us=solve_us
        )
        async with self._database.write() as session:
            waiting = await self._making.waiting(session, caller)
            fresh = await repository.insert(session, wanted, request, datetime.now(UTC), asked_by=caller.name)
            if await repository.next_version(session, wanted) != version:
                newest = await repository.find(session, wanted)  # another replica was faster, and saw to the rest
                assert newest is not None
                return Served(newest, hit=True)
            # A row that planning ahead put there is the queue's: a worker may hold its lease at this very moment.
            status = None if not fresh else "queued" if provisional else "done"
            await store_version(session, stored, found, solve_us, status=status)
            if provisional:
                await self._making.improve(session, wanted, waiting, fresh=fresh)
            await self._events.publish(session, wanted, version)
        self._cache.forget(wanted, version)
        return Served(stored, hit=False)

    async def _leave_to_the_queue(self, request: PlanRequest, wanted: str, caller: Principal) -> None:
        """Have a plan made by a worker alone. Raises InvalidError where one found that there is none."""
        async with self._database.read() as session:
            status, error = await repository.standing(session, wanted)
        if status == "failed":
            raise InvalidError("unplannable", f"no plan exists: {error}"[:2000])
        if status is None:
            await self._making.charge(caller)
        async with self._database.write() as session:
            waiting = await self._making.waiting(session, caller)
            fresh = await repository.insert(session, wanted, request, datetime.now(UTC), asked_by=caller.name)
            await self._making.improve(session, wanted, waiting, fresh=fresh)

    async def flush_counts(self) -> None:
        """Add hits and misses since the last call to the plans' rows; they count on when that fails."""
        hits, misses, self.hits, self.misses = self.hits, self.misses, Counter(), Counter()
        if not hits and not misses:
            return
        try:
            async with self._database.write() as session:
                await repository.add_hits(session, hits, misses)
        except BaseException:
            self.hits.update(hits)
            self.misses.update(misses)
            raise

    async def _served(self, wanted: str, device_id: str | None) -> StoredPlan | None:
        """The version that a device gets."""
        return await self._stored(wanted, await self.choose(wanted, device_id))

    async def _newest(self, wanted: str) -> StoredPlan | None:
        """The version that is served."""
        return await self._stored(wanted, None)

    async def _stored(self, wanted: str, version: int | None) -> StoredPlan | None:
        """Find a plan that many requests may want at once (a release, a version they waited for) with one query."""
        generation = self._cache.generation
        if (cached := self._cache.get(wanted, version)) is not None:
            return cached
        # Not together with a query that began before the last news: it may bring what the news superseded.
        return await self._read.get((wanted, version, generation), lambda: self._find(wanted, version, generation))

    async def _find(self, wanted: str, version: int | None, generation: int) -> StoredPlan | None:
        async with self._database.read() as session:
            if version is None:
                stored = await repository.find(session, wanted)
            else:
                stored = await repository.find_version(session, wanted, version)
        if stored is not None:
            self._cache.put(stored, generation, version)
        return stored


async def store_version(
    session: WriteSession, stored: StoredPlan, found: Plan, solve_us: float, *, status: str | None = None
) -> None:
    """Write a version of a plan into its row, which the caller holds locked, and beside those before it."""
    now = datetime.now(UTC)
    newest = {"version": stored.version, "provisional": stored.provisional, "solved_at": now}
    with_status = {} if status is None else {"status": status}
    await repository.hold_back(session, stored.plan_id)
    await repository.store(session, stored.plan_id, {**newest, **with_status})
    version = found.profile_version
    await repository.rest_on(session, stored.plan_id, profile_version=version, checked_version=version)
    await repository.keep_version(
        session,
        PlanVersionRow(
            plan_id=stored.plan_id,
            version=stored.version,
            provisional=stored.provisional,
            etag=stored.etag,
            body_zstd=stored.body_zstd,
            profile_version=version,
            makespan_us=found.makespan_us,
            lower_bound_us=found.lower_bound_us,
            gap=found.gap,
            found_by=found.method,
            solve_us=solve_us,
            created_at=now,
        ),
    )


def _solve(
    graphs: tuple[ModelGraph, ...], profile: Profile, request: PlanRequest, budget_s: float
) -> tuple[Plan, float]:
    """Plan in this process (in a thread); return the plan and the microseconds it took."""
    # NOTE: imported here, because planning loads numba and HiGHS, which a process that only serves plans never needs.
    from planner_api.jobs.solver import solve
    from planner_api.planning import PlanningError

    started = time.perf_counter()
    try:
        found = solve(graphs, profile, request, budget_s)
    except (PlanningError, ValidationError, ArithmeticError) as error:
        # Figures may add up to what no plan can say, whoever said them; that is no fault of the planner's.
        raise InvalidError("unplannable", f"no plan exists: {error}"[:2000]) from error
    return found, (time.perf_counter() - started) * 1e6
