"""A new version of a plan on its way into the database."""

from __future__ import annotations

from datetime import UTC, datetime

from planner_api.db.engine import WriteSession
from planner_api.db.tables import PlanVersionRow
from planner_api.plans import repository
from planner_api.plans.made import Made
from planner_api.plans.stored import StoredPlan


async def store_version(session: WriteSession, stored: StoredPlan, made: Made) -> None:
    """Write a version of a plan into its row, which the caller holds locked, and beside those before it."""
    now = datetime.now(UTC)
    newest = {"version": stored.version, "provisional": stored.provisional, "solved_at": now, "error": None}
    await repository.hold_back(session, stored.plan_id)
    await repository.store(session, stored.plan_id, newest)
    if not stored.provisional:
        await repository.count_solve(session, stored.plan_id)
    for pair, version in made.rests_on:
        await repository.rest_on(session, stored.plan_id, pair, profile_version=version, checked_version=version)
    await repository.keep_version(
        session,
        PlanVersionRow(
            plan_id=stored.plan_id,
            version=stored.version,
            provisional=stored.provisional,
            etag=stored.etag,
            body_zstd=stored.body_zstd,
            profile_version=made.rests_on[0][1],
            makespan_us=made.makespan_us,
            lower_bound_us=made.lower_bound_us,
            gap=made.gap,
            found_by=made.found_by,
            solve_us=made.solve_us,
            created_at=now,
        ),
    )
