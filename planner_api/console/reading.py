"""Stored plans as objects, and why a step is where it is, in a sentence."""

from __future__ import annotations

import asyncio

from hope_schema import Cause, PlanReply, Step
from planner_api.compression import unzstd
from planner_api.console.rendering import duration
from planner_api.db.engine import Database
from planner_api.plans import history


async def read_plan(database: Database, plan_id: str, version: int) -> PlanReply:
    """Return a version of a plan. Raises NotFoundError when it is not kept."""
    stored = await history.stored(database, plan_id, version)
    return await asyncio.to_thread(lambda: PlanReply.model_validate_json(unzstd(stored.body_zstd)))


def why(step: Step) -> str:
    """Say why a step is where it is, with the figures where the plan has them."""
    here, other = step.alone_us, step.next_best
    if step.cause == Cause.ONLY_SUPPORTED:
        return "No other candidate processor can run it."
    if here is None or other is None:
        return {
            Cause.FASTER: "No processor is faster.",
            Cause.AVOIDS_TRANSFER: "Another processor is faster, but moving its tensors there would cost more.",
            Cause.PARALLEL_BRANCH: "Its fastest processor has other work; this runs beside it.",
        }[step.cause]
    figures = f"{duration(here)} here, {duration(other.us)} on {other.processor}"
    match step.cause:
        case Cause.FASTER:
            return f"{figures}."
        case Cause.AVOIDS_TRANSFER:
            return f"{figures}, but moving its tensors there would cost more."
        case _:
            return f"{figures}, which has other work meanwhile."
