"""The jobs that make plans: a first one at once, while its device waits, and a better one after it."""

import asyncio
from typing import ClassVar

from sqlalchemy import and_, case, delete, exists, func, select

from hope_schema import Method
from planner_api.db.engine import WriteSession
from planner_api.db.tables import JobRow, ModelRow, PlanRow, PlanVersionRow
from planner_api.errors import unknown_profiles
from planner_api.jobs.kind import BehindError, JobError, Kind, Lease, Task
from planner_api.jobs.news import publish
from planner_api.jobs.wanted import Wanted, among, now, put
from planner_api.models import repository as models
from planner_api.plans import repository
from planner_api.plans.made import Made, PlanOrder, RestsOn
from planner_api.plans.stored import serialise
from planner_api.profiles import repository as profiles
from planner_api.profiles.jobs import FOLD, OUTDATED, key_of

FIRST, BETTER = "first", "better"
"""The kinds of jobs that make plans, whose keys are plans' ids."""
PLAN = "plan"
"""Topic: a plan has a new version, or failed for good."""
KEPT_VERSIONS = 20
"""Versions kept of a plan, the newest ones; one that is served or replaced by a release is kept beside them."""
STARTING_S = 5.0
"""A child may take so much longer than its budget."""

Prepared = tuple[Made, PlanVersionRow]


class _Solve(Kind):
    """What both kinds share."""

    function = "planner_api.plans.make:make"
    answers = Made

    async def load(self, lease: Lease) -> Task | None:
        async with self._database.read() as session:
            request = await repository.request_of(session, lease.key)
            if request is None:
                raise JobError(f"there is no plan {lease.key}", permanent=True)
            version = await session.scalar(select(PlanRow.version).where(PlanRow.id == lease.key)) or 0
            before = await repository.find(session, lease.key)
            if before is None or before.provisional:
                before = await repository.find_near(session, request) or before
            folds = [(FOLD, key_of(*pair)) for pair in request.profiles]
            coming = set(await session.scalars(select(JobRow.key).where(among(folds))))
            found = [await profiles.current(session, *pair) for pair in request.profiles]
            graphs = [await models.body(session, job.model_hash, ModelRow.graph_zstd) for job in request.jobs]
        lacking = [pair for pair, one in zip(request.profiles, found, strict=True) if one is None]
        if lacking:
            if coming.issuperset(key_of(*pair) for pair in lacking):  # it was put behind one of these folds alone
                raise BehindError((FOLD, key_of(*lacking[0])))
            raise JobError(str(unknown_profiles(*lacking)), permanent=True)
        known = [one for one in found if one is not None]
        if self.name == FIRST and version:
            return None
        is_quick = self.name == FIRST and not self._settings.embedded
        method: Method = "greedy" if is_quick else request.method
        budget_s = self._settings.provisional_budget_s if is_quick else self._settings.solve_budget_s
        order = PlanOrder(
            request=request.model_copy(update={"method": method}).model_dump_json().encode(),
            profiles=tuple(body for _, body in known),
            graphs=tuple(graph or b"" for graph in graphs),
            budget_s=budget_s,
            version=version,
            provisional=method != request.method,
            rests_on=tuple((pair, head.version) for pair, (head, _) in zip(request.profiles, known, strict=True)),
            before=b"" if before is None else before.body_zstd,
        )
        return Task(order, max(self._settings.solve_timeout_s, budget_s + STARTING_S))

    async def prepare(self, lease: Lease, task: Task, answer: Made) -> Prepared:
        """Make the bytes that are served; they count as the next version."""
        order: PlanOrder = task.order
        return answer, await asyncio.to_thread(serialise, order, answer, lease.key, order.version + 1)

    async def store(self, session: WriteSession, lease: Lease, task: Task, prepared: Prepared) -> bool:
        """Store the next version, and queue a better one after a provisional one."""
        made, stored = prepared
        row = select(PlanRow.version).where(PlanRow.id == lease.key)
        newest = await session.scalar(row.with_for_update())  # nobody else stores one until the transaction ends
        if newest is None:
            return False  # the plan is gone with its model
        version = newest + 1
        if version != stored.version:
            if self.name == FIRST:
                return False  # the better one was faster
            stored = serialise(task.order, made, lease.key, version)
        await _store_version(session, stored, task.order.rests_on, made.figures)
        if stored.provisional:
            await put(session, Wanted(BETTER, lease.key, priority=lease.priority, asked_by=lease.asked_by))
        for pair, used in task.order.rests_on:
            head = await profiles.head(session, *pair)
            if head is not None and head.version > used:  # figures may have moved meanwhile
                await put(session, Wanted(OUTDATED, key_of(*pair), again=True))
        await publish(session, PLAN, lease.key)
        return False

    async def failed(
        self, session: WriteSession, lease: Lease, task: Task | None, error: str, *, permanent: bool
    ) -> None:
        """Keep the cause, and until when it holds: what was refused stays so until a profile has a newer version than
        it was found with, and so does what its workers vanished at; what memory or time was short for passes. Who waits
        is told.
        """
        retry_at = None if permanent or task is None else now(session, repository.PASSES_S)
        await repository.store(session, lease.key, {"error": error[:2000], "retry_at": retry_at})
        for pair, used in () if task is None else task.order.rests_on:
            await repository.rest_on(session, lease.key, pair, checked_version=used)
        await publish(session, PLAN, lease.key)


class FirstPlan(_Solve):
    """The plan that its device waits for: the quickest there is, or, of an embedded planner, what was asked for."""

    name: ClassVar[str] = FIRST


class BetterPlan(_Solve):
    """The plan that was asked for, with all the time that it may take."""

    name: ClassVar[str] = BETTER


async def _store_version(
    session: WriteSession, stored: PlanVersionRow, rests_on: RestsOn, figures: bytes | None
) -> None:
    """Write a version of a plan into its row, which the caller holds locked, and beside those before it.

    Devices keep the version they get, if it is a finished one and the next ones of a model wait for a release. Where
    they do not wait, and no release is under way, devices get this one, whatever was held or taken back before.
    """
    this = PlanRow.id == stored.plan_id
    finished = PlanRow.version > 0, PlanRow.provisional.is_(False), PlanRow.served_version.is_(None)
    waits = repository.rolled_out("staged", "held")
    keeps, moves_on = and_(waits, *finished), and_(~waits, PlanRow.release_id.is_(None))
    served = case((keeps, PlanRow.version), (moves_on, None), else_=PlanRow.served_version)
    newest = {"version": stored.version, "provisional": stored.provisional, "solved_at": stored.created_at}
    solves = PlanRow.solves + (0 if stored.provisional else 1)
    values = {
        **newest,
        "served_version": served,
        "error": None,
        "retry_at": None,
        "solves": solves,
        "figures_zstd": figures,
    }
    await repository.store(session, stored.plan_id, values)
    for pair, version in rests_on:
        await repository.rest_on(session, stored.plan_id, pair, profile_version=version, checked_version=version)
    await session.merge(stored)  # a copy: a transaction that fails leaves it as it is for the next try
    await session.flush()
    kept = select(PlanRow.served_version).where(this).scalar_subquery()
    old = PlanVersionRow.plan_id == stored.plan_id, PlanVersionRow.version <= stored.version - KEPT_VERSIONS
    under_release = exists().where(this, PlanRow.release_id.is_not(None))
    doomed = delete(PlanVersionRow).where(*old, PlanVersionRow.version != func.coalesce(kept, 0), ~under_release)
    await session.execute(doomed)
