"""The job that compares plans with a new version of their profile, and has those made anew whose figures moved."""

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.paging import chunks
from planner_api.db.tables import ModelRow, PlanRestsOnRow, PlanRow
from planner_api.jobs.kind import Kind, Lease, Task
from planner_api.jobs.wanted import Wanted, put
from planner_api.models import repository as models
from planner_api.plans.compare import CompareOrder, Resting
from planner_api.plans.solve import BETTER
from planner_api.profiles import repository as profiles
from planner_api.profiles.jobs import OUTDATED, pair_of

COMPARED_AT_ONCE = 200
"""Plans per job; while there are more it stands in the queue anew."""


def _candidates(row: Any, pair: tuple[str, str]) -> tuple[str, ...] | None:
    """The processors of one profile that a plan may use, on all of its hosts together; None: all that there are."""
    device = {"soc": row.soc, "frequency": row.frequency, "processors": row.processors}
    found = [host["processors"] for host in (device, *row.hosts) if (host["soc"], host["frequency"]) == pair]
    return None if None in found else tuple(sorted({name for names in found for name in names}))


class Outdated(Kind):
    """Compares plans with their profile."""

    name: ClassVar[str] = OUTDATED
    function = "planner_api.plans.compare:compare"
    answers = list[str]

    async def load(self, lease: Lease) -> Task | None:
        """Read plans that rest on one older version, the versions, and the figures of the plans.

        A plan rests on those of its networks, and on those of what it cuts them into.
        """
        soc, frequency = pair_of(lease.key)
        async with self._database.read() as session:
            found = await profiles.current(session, soc, frequency)
            if found is None:
                return None
            head, after = found
            rows = await _outdated(session, soc, frequency, head.version)
            if not rows:
                return None
            basis = rows[0].profile_version
            chosen = [row for row in rows[:COMPARED_AT_ONCE] if row.profile_version == basis]
            more = len(rows) > len(chosen)
            before = None if basis is None else await profiles.snapshot(session, head.id, basis)
            hashes = dict.fromkeys(job["model_hash"] for row in chosen for job in row.jobs)
            figures = {each: await models.body(session, each, ModelRow.figures_zstd) or b"" for each in hashes}
        figures |= {row.id: row.figures_zstd for row in chosen if row.figures_zstd is not None}
        at = {name: position for position, name in enumerate(figures)}
        resting = tuple(
            Resting(
                row.id,
                _candidates(row, (soc, frequency)),
                tuple({at[name] for name in (row.id, *(job["model_hash"] for job in row.jobs)) if name in at}),
            )
            for row in chosen
        )
        threshold = self._settings.replan_threshold
        return Task(CompareOrder(before, after, resting, tuple(figures.values()), threshold, head.version, more))

    async def store(self, session: WriteSession, lease: Lease, task: Task, prepared: list[str]) -> bool:
        """Queue those plans, and note that all were compared; whether there are more."""
        order: CompareOrder = task.order
        await _compared(session, lease, order)
        await put(session, *(Wanted(BETTER, plan_id, again=True) for plan_id in sorted(prepared)))
        return order.more

    async def failed(
        self, session: WriteSession, lease: Lease, task: Task | None, error: str, *, permanent: bool
    ) -> None:
        """Have the plans made anew that could not be compared: their figures may have moved."""
        if task is None:
            return
        order: CompareOrder = task.order
        await _compared(session, lease, order)
        await put(session, *(Wanted(BETTER, plan.plan_id, again=True) for plan in order.plans))
        if order.more:
            await put(session, Wanted(OUTDATED, lease.key))


async def _outdated(session: AsyncSession, soc: str, frequency: str, version: int) -> Sequence[Any]:
    """Return plans of a profile that nobody compared with this version of it, those on one older version together.

    Plans that are made for the first time just now are not among them: they compare themselves when they are stored.
    """
    rests = PlanRestsOnRow
    query = (
        select(PlanRow.id, PlanRow.jobs, PlanRow.soc, PlanRow.frequency, PlanRow.processors, PlanRow.hosts)
        .add_columns(PlanRow.figures_zstd, rests.profile_version)
        .join(rests, rests.plan_id == PlanRow.id)
        .where(
            rests.soc == soc,
            rests.frequency == frequency,
            or_(PlanRow.version > 0, PlanRow.error.is_not(None)),
            or_(rests.checked_version.is_(None), rests.checked_version < version),
            or_(rests.profile_version.is_(None), rests.profile_version < version),
        )
        .order_by(rests.profile_version, PlanRow.id)
        .limit(COMPARED_AT_ONCE + 1)
    )
    return (await session.execute(query)).all()


async def _compared(session: WriteSession, lease: Lease, order: CompareOrder) -> None:
    """Note that plans were compared with a version of a profile that they rest on."""
    rests, (soc, frequency) = PlanRestsOnRow, pair_of(lease.key)
    for some in chunks([plan.plan_id for plan in order.plans]):
        these = rests.plan_id.in_(some), rests.soc == soc, rests.frequency == frequency
        await session.execute(update(rests).where(*these).values(checked_version=order.version))
