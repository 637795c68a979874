"""The versions of a plan as people look at them: which there are, one of them, two beside each other."""

import asyncio
import math
from typing import Any

from sqlalchemy import select

from hope_schema import MovedStep, Plan, PlanDiff, PlanHistory, PlanReply, PlanVersion, Results, Step
from hope_schema.base import LEAST_US
from planner_api.compression import loaded
from planner_api.db.engine import Database, ReadSession
from planner_api.db.paging import message_of, messages_of
from planner_api.db.tables import SERVED_VERSION, PlanRow, PlanVersionRow
from planner_api.errors import unknown

_HISTORY = [column for name, column in PlanVersionRow.__table__.columns.items() if name not in ("etag", "body_zstd")]
"""All of a version but its body."""


async def history(database: Database, plan_id: str) -> PlanHistory:
    async with database.read() as session:
        return PlanHistory(plan_id=plan_id, versions=tuple(await _versions(session, plan_id)))


async def stored(database: Database, plan_id: str, version: int) -> PlanVersionRow:
    async with database.read() as session:
        found = await session.get(PlanVersionRow, (plan_id, version))
    if found is None:
        raise unknown("version of plan", plan_id, version)
    return found


async def diff(database: Database, plan_id: str, other: str, before: int | None, after: int | None) -> PlanDiff:
    """Compare version ``before`` of one plan with version ``after`` of another, or of the same.

    Without ``after`` the newest counts; without ``before`` the one that preceded it, of another plan its newest.

    Raises:
        NotFoundError: one of them is not kept.
    """
    async with database.read() as session:
        old = await _versions(session, plan_id)
        new = old if other == plan_id else await _versions(session, other)
    second = new[0] if after is None else _among(new, other, after)
    if before is not None:
        first = _among(old, plan_id, before)
    elif other != plan_id:
        first = old[0]
    else:
        first = next((each for each in old if each.version < second.version), second)
    plans = [await stored(database, each.plan_id, each.version) for each in (first, second)]
    return await asyncio.to_thread(_compare, first, second, *plans)


def _compare(before: PlanVersion, after: PlanVersion, old: PlanVersionRow, new: PlanVersionRow) -> PlanDiff:
    plan_before, plan_after = (loaded(PlanReply, one.body_zstd).plan for one in (old, new))
    return PlanDiff(
        before=before,
        after=after,
        predicted=ratio(after.makespan_us, before.makespan_us),
        measured=ratio(after.results.measured_us, before.results.measured_us),
        transfers=(len(plan_before.transfers), len(plan_after.transfers)),
        **moves(plan_before, plan_after),
    )


async def _versions(session: ReadSession, plan_id: str) -> list[PlanVersion]:
    served = (PlanVersionRow.version == SERVED_VERSION).label("served")
    query = select(*_HISTORY, PlanRow.model_hash, PlanRow.soc, PlanRow.frequency, served)
    query = query.join(PlanRow, PlanRow.id == PlanVersionRow.plan_id).where(PlanVersionRow.plan_id == plan_id)
    query = query.order_by(PlanVersionRow.version.desc())
    rows = (await session.execute(query)).all()
    if not rows:
        raise unknown("plan", plan_id)
    return list(messages_of(rows, _version))


def _among(versions: list[PlanVersion], plan_id: str, wanted: int) -> PlanVersion:
    found = next((each for each in versions if each.version == wanted), None)
    if found is None:
        raise unknown("version of plan", plan_id, wanted)
    return found


def _version(row: Any) -> PlanVersion:
    measured, p99 = geometric_mean(row.log_sum, row.timed), geometric_mean(row.tail_log_sum, row.tails)
    results = message_of(Results, row, measured_us=measured, p99_us=p99, spread=_spread(row))
    return message_of(PlanVersion, row, results=results)


def geometric_mean(log_sum: float, count: int) -> float | None:
    """The geometric mean of so many figures, from the sum of their logarithms; None of none."""
    return math.exp(log_sum / count) if count else None


def _spread(row: Any) -> float | None:
    """The geometric standard deviation of all reports on a version, less one; None where there is none."""
    if not row.timed:
        return None
    mean = row.log_sum / row.timed
    return math.expm1(math.sqrt(max(0.0, row.log_squares / row.timed - mean * mean)))


def ratio(after: float | None, before: float | None) -> float | None:
    """By how much a time changed, as a factor; None where one of the two is not known, or less than a run takes."""
    return None if after is None or before is None or before < LEAST_US else after / before


def moves(before: Plan, after: Plan) -> dict[str, Any]:
    """What ``PlanDiff`` says of where the same ops run; a step counts by its first op, in the order of ``after``."""
    old = {(step.job, op): step for step in before.steps for op in step.ops}
    new = {(step.job, op) for step in after.steps for op in step.ops}
    moved, unmoved = [], 0
    for step in (after.step[number] for number in after.order):
        was = old.get((step.job, step.ops[0]))
        if was is None:
            continue
        if was.processor == step.processor:
            unmoved += 1
        else:
            moved.append(_moved(was, step))
    only_before = tuple(op for job, op in old if (job, op) not in new)
    only_after = tuple(op for step in after.steps for op in step.ops if (step.job, op) not in old)
    return {"moved": tuple(moved), "unmoved": unmoved, "only_before": only_before, "only_after": only_after}


def _moved(before: Step, after: Step) -> MovedStep:
    return MovedStep(
        job=after.job,
        ops=after.ops,
        before=before.processor,
        after=after.processor,
        before_us=before.finish_us - before.start_us,
        after_us=after.finish_us - after.start_us,
        cause=after.cause,
    )
