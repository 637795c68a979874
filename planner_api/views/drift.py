"""Drift: measured / predicted - 1 of the version of a plan that devices get. No other module works it out."""

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema.base import LEAST_US
from planner_api.db.tables import PlanRow, PlanVersionRow
from planner_api.devices.repository import DRIFT, newest_of_served
from planner_api.plans.history import ratio
from planner_api.plans.repository import NAME, SERVED

_LOGARITHM = PlanVersionRow.log_sum / PlanVersionRow.timed - func.ln(PlanVersionRow.makespan_us)
"""Of measured / predicted: the mean over all reports on a version, from the sums that are kept with it."""
_REPORTED = PlanVersionRow.timed > 0, PlanVersionRow.makespan_us >= LEAST_US


def of_version(measured_us: float | None, predicted_us: float | None) -> float | None:
    """The drift of a version; None where nothing was measured, or less predicted than a run takes."""
    found = ratio(measured_us, predicted_us)
    return None if found is None else found - 1.0


async def median(session: AsyncSession) -> float | None:
    """The drift of the plan that the middle one of all reports is about.

    What it takes grows with the plans, not with the devices.
    """
    sums = (
        select(
            _LOGARITHM.label("drift"),
            func.sum(PlanVersionRow.timed).over(order_by=_LOGARITHM).label("so_far"),
            func.sum(PlanVersionRow.timed).over().label("whole"),
        )
        .join(PlanRow, SERVED)
        .where(*_REPORTED)
        .subquery()
    )
    found = await session.scalar(select(func.min(sums.c.drift)).where(sums.c.so_far * 2 >= sums.c.whole))
    return None if found is None else math.expm1(found)


async def histogram(session: AsyncSession, bounds: Sequence[float]) -> list[int]:
    """Devices' newest reports by their drift: below the first bound, ..., above the last."""
    step = case(*((bound > DRIFT, number) for number, bound in enumerate(bounds)), else_=len(bounds)).label("step")
    query = newest_of_served(step, func.count()).group_by(step)
    found = [0] * (len(bounds) + 1)
    for number, reports in await session.execute(query):
        found[number] = reports
    return found


async def furthest(session: AsyncSession, limit: int) -> Sequence[Any]:
    """The plans that are furthest from what was predicted: ``plan_id``, ``drift``, ``reports``, and which they are."""
    query = (
        select(
            PlanRow.id.label("plan_id"),
            (func.exp(_LOGARITHM) - 1.0).label("drift"),
            PlanVersionRow.timed.label("reports"),
            NAME.label("name"),
            PlanRow.soc,
            PlanRow.frequency,
        )
        .join(PlanVersionRow, SERVED)
        .where(*_REPORTED)
        .order_by(func.abs(_LOGARITHM).desc(), PlanRow.id)
        .limit(limit)
    )
    return (await session.execute(query)).all()
