"""The rules for plans: answered from what is stored; what is missing is queued, and waited for."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import func, select

from hope_schema import PlanRequest
from hope_schema.base import MAX_OPS
from hope_schema.periods import runs
from planner_api.concurrency import SharedCalls
from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import JobRow, PlanRow, PlanVersionRow
from planner_api.db.upsert import add_all
from planner_api.devices import repository as devices
from planner_api.devices.quota import Quotas
from planner_api.errors import InvalidError, UnavailableError, unknown, unknown_profiles
from planner_api.jobs.queue import Queue
from planner_api.jobs.wanted import URGENT, Wanted, put
from planner_api.models import repository as models
from planner_api.plans import repository
from planner_api.plans.solve import BETTER, FIRST, PLAN
from planner_api.plans.stored import PlanCache
from planner_api.profiles import repository as profiles
from planner_api.profiles.jobs import FOLD, OUTDATED, key_of
from planner_api.settings import EMBEDDED_WAIT_S, Settings
from planner_api.web.principal import ANONYMOUS, Principal

DEVICE_WAITS, EACH_WAITING = 7200, 60
"""Priority of what a device asks for, in seconds, and how much less it has for each plan of the device's that waits:
so a device's hundredth key waits behind every other's first. Planning ahead has 0."""
LOOK_S = 2.0
"""A look-out that hears nothing looks by itself this often."""
MADE_S = 2.0
"""After this one may ask again for what a worker makes; short enough for an agent to wait for within a call."""


Receive = Callable[[], Awaitable[Any]]
Choose = Callable[[str, str | None], Awaitable[int | None]]
"""The version of a plan (its id) that a device (its id, where it says one) gets; None: the one that all get."""


async def same_for_all(_plan_id: str, _device_id: str | None) -> None:
    """Every device gets the version that is served."""


class Plans:
    """Plans of all keys. ``choose`` says which version a device gets while a release is under way."""

    def __init__(self, database: Database, settings: Settings, cache: PlanCache, queue: Queue, quotas: Quotas) -> None:
        self._database = database
        self._settings = settings
        self._cache = cache
        self._queue = queue
        self._quotas = quotas
        self.choose: Choose = same_for_all
        self._lookouts: SharedCalls[PlanVersionRow | None] = SharedCalls()
        self._asked: SharedCalls[None] = SharedCalls()
        self._read: SharedCalls[PlanVersionRow | None] = SharedCalls()
        self.hits: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()

    async def get(self, wanted: str, device_id: str | None = None, version: int | None = None) -> PlanVersionRow:
        """Return a version of a plan (None: the one that a device gets).

        Raises:
            NotFoundError: nobody asked for the plan yet, or the version is not kept.
        """
        if version is not None:
            if (kept := await self._stored(wanted, version)) is None:
                raise unknown("version of plan", wanted, version)
            return kept
        if (stored := await self._served(wanted, device_id)) is None:
            raise unknown("plan", wanted)
        return stored

    async def plan(
        self,
        request: PlanRequest,
        wanted: str,
        caller: Principal = ANONYMOUS,
        device_id: str | None = None,
        wait_s: float = 0.0,
    ) -> tuple[PlanVersionRow, bool]:
        """Return the plan under a key (see ``keyed``), and whether it was there already.

        Where there is none a first one is made, and waited for.

        ``device_id`` is the device that it is for, which ``caller`` may say; ``wait_s`` counts if it is longer than the
        settings' wait.

        Raises:
            NotFoundError: an unknown model or SoC.
            InvalidError: no plan exists.
            TooOftenError: a device beyond a quota.
            UnavailableError: it takes longer than the wait; it is made all the same.
        """
        if (stored := await self._served(wanted, device_id)) is not None:
            return stored, True
        self.misses[wanted] += 1
        await self._asked.get((wanted, caller.name), lambda: self._ask(request, wanted, caller))
        most_s = EMBEDDED_WAIT_S if self._settings.embedded else max(self._settings.first_wait_s, wait_s)
        stored = await self._first(wanted, most_s)
        if stored is None:
            await self._explain(request, wanted)
            raise UnavailableError("this plan is still being made; ask for it again", retry_after_s=MADE_S)
        return stored, False

    async def better(self, stored: PlanVersionRow, wait_s: float, receive: Receive) -> PlanVersionRow:
        """Wait for the version after ``stored`` if that is provisional; return the newest there is then.

        ``receive`` is that of a request whose body has come: a client that hangs up ends its wait.
        """
        if wait_s <= 0 or not stored.provisional:
            return stored
        key = (stored.plan_id, stored.version)
        better = asyncio.create_task(self._lookouts.get(key, lambda: self._look_out(*key)))
        gone = asyncio.create_task(_hung_up(receive))
        try:
            await asyncio.wait((better, gone), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            found = better.result() if better.done() else await self._stored(stored.plan_id)
        finally:
            better.cancel()
            gone.cancel()
        return found or stored

    async def _first(self, plan_id: str, wait_s: float) -> PlanVersionRow | None:
        """Wait for a plan that is being made; None: it failed, or takes longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                return await self._lookouts.get((plan_id, 0), lambda: self._look_out(plan_id, 0))
        return None

    async def _look_out(self, plan_id: str, version: int) -> PlanVersionRow | None:
        """Wait until the plan has a version above ``version`` or will get none; return what there is then."""
        with self._queue.news.watching(PLAN, plan_id) as changed:
            while True:
                changed.clear()
                found = await self._stored(plan_id)
                if (found is not None and found.version > version) or self._queue.news.stopping.is_set():
                    return found
                if not await self._pending(plan_id):
                    return await self._stored(plan_id)  # it may have come between the two looks
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_S)

    async def _ask(self, request: PlanRequest, wanted: str, caller: Principal) -> None:
        """Queue the first plan of a key, after what waits to be folded into its profile."""
        hashes = [job.model_hash for job in request.jobs]
        often = runs([job.period_us for job in request.jobs])
        async with self._database.read() as session:
            ops = await models.super_ops(session, hashes)
            # In this order: an upload that is folded between the two reads is in the head that the second one finds.
            to_fold = [pair for pair in request.profiles if await profiles.waits(session, *pair)]
            heads = [await profiles.head(session, *pair) for pair in request.profiles]
            before = await repository.standing(session, wanted)
        for model_hash in hashes:
            if model_hash not in ops:
                raise unknown("model", model_hash)
        if (total := sum(ops[model_hash] * count for model_hash, count in zip(hashes, often, strict=True))) > MAX_OPS:
            raise InvalidError("unplannable", f"a plan holds {MAX_OPS} ops, these networks have {total}")
        versions = {pair: head.version if head else 0 for pair, head in zip(request.profiles, heads, strict=True)}
        if lacking := [pair for pair, version in versions.items() if not version and pair not in to_fold]:
            raise unknown_profiles(*lacking)
        if before is not None and before.lasts and not to_fold and before.checked == versions:
            return  # nothing has changed since it failed
        async with self._database.write() as session:
            waiting = await self._waiting(session, caller)
            known = tuple(versions.values())
            if await repository.insert(session, wanted, request, profile_versions=known):
                if waiting >= (most := self._settings.queued_solves):
                    raise self._quotas.exceeded("queued_solves", f"{most} that wait", retry_after_s=30)
                await self._quotas.spend(session, caller, plan_keys=1)
            last: int | None = None
            for pair in to_fold:
                fold = Wanted(FOLD, key_of(*pair), priority=URGENT, after=last)
                last = (await put(session, fold))[fold.kind, fold.key]
            first = Wanted(
                FIRST,
                wanted,
                priority=max(1, DEVICE_WAITS - EACH_WAITING * waiting),
                after=last,
                asked_by=caller.name if caller.device_id is not None else None,
            )
            await put(session, first)

    async def _waiting(self, session: WriteSession, caller: Principal) -> int:
        """How many plans of a device's wait, counted on one replica at a time; more wait until the transaction ends."""
        if caller.device_id is None:
            return 0
        await devices.lock(session, caller.device_id)
        asked = select(func.count(JobRow.key.distinct())).where(JobRow.asked_by == caller.name)
        return await session.scalar(asked) or 0

    async def _explain(self, request: PlanRequest, wanted: str) -> None:
        async with self._database.read() as session:
            standing = await repository.standing(session, wanted)
            known = {pair: await profiles.head(session, *pair) for pair in request.profiles}
        if standing is None or standing.status != "failed":
            if self._settings.embedded and (cause := self._queue.no_child):
                raise UnavailableError(f"no plan can be made: the planner starts no process ({cause})")
            return
        if lacking := [pair for pair, head in known.items() if head is None or not head.version]:
            raise unknown_profiles(*lacking)
        if standing.retry_in_s is not None:
            detail = f"no plan could be made for now: {standing.error}"[:2000]
            raise UnavailableError(detail, retry_after_s=max(MADE_S, standing.retry_in_s))
        raise InvalidError("unplannable", f"no plan exists: {standing.error}"[:2000])

    async def _settle(self, wanted: str) -> None:
        """Wait until nothing is under way that a plan rests on: its one caller wants it by the newest figures."""
        async with self._database.read() as session:
            request = await repository.request_of(session, wanted)
        if request is None:
            return
        resting = [(kind, key_of(*pair)) for pair in request.profiles for kind in (FOLD, OUTDATED)]
        await self._queue.ended(*resting, (FIRST, wanted), (BETTER, wanted), timeout_s=EMBEDDED_WAIT_S)

    async def _pending(self, wanted: str) -> bool:
        async with self._database.read() as session:
            standing = await repository.standing(session, wanted)
        if standing is not None and standing.status == "queued":
            return not (self._settings.embedded and self._queue.stands_still)  # in a fleet another worker comes
        return standing is not None and standing.status == "solving"

    async def flush_counts(self) -> None:
        """Add hits and misses since the last call to the plans' rows; they count on when that fails."""
        hits, misses, self.hits, self.misses = self.hits, self.misses, Counter(), Counter()
        if not hits and not misses:
            return
        try:
            counts = [{"id": each, "hits": hits[each], "misses": misses[each]} for each in {*hits, *misses}]
            async with self._database.write() as session:
                await (await session.connection()).run_sync(add_all, PlanRow, counts, key=("id",))
        except BaseException:
            self.hits.update(hits)
            self.misses.update(misses)
            raise

    async def _served(self, wanted: str, device_id: str | None) -> PlanVersionRow | None:
        """The version that a device gets; None: there is none yet."""
        if self._settings.embedded:
            await self._settle(wanted)
        if (stored := await self._stored(wanted, await self.choose(wanted, device_id))) is not None:
            self.hits[wanted] += 1
        return stored

    async def _stored(self, wanted: str, version: int | None = None) -> PlanVersionRow | None:
        """Find a version (None: the one that is served) that many requests may want at once, with one query."""
        generation = self._cache.generation
        if (cached := self._cache.get((wanted, version))) is not None:
            return cached
        # Not together with a query that began before the last news: it may bring what the news superseded.
        return await self._read.get((wanted, version, generation), lambda: self._find(wanted, version, generation))

    async def _find(self, wanted: str, version: int | None, generation: int) -> PlanVersionRow | None:
        async with self._database.read() as session:
            if version is None:
                stored = await repository.find(session, wanted)
            else:
                stored = await session.get(PlanVersionRow, (wanted, version))
        if stored is not None:
            self._cache.put((wanted, version), stored, generation)
        return stored


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
