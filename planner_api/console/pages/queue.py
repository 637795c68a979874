"""The solve queue: what is being solved and by whom, what waits, what failed."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from planner_api.console import repository
from planner_api.console.rendering import render
from planner_api.jobs.repository import count_by_status
from planner_api.web.route import StrictRoute

router = APIRouter(route_class=StrictRoute)

ROWS = 50
"""Plans shown of each status."""


@router.get("/queue")
async def show(request: Request) -> Response:
    """Show the queue."""
    async with request.app.state.planner.database.read() as session:
        waiting, since = await repository.inbox(session)
        return render(
            request,
            "queue.html",
            counts=await count_by_status(session),
            workers=await repository.workers(session),
            solving=await repository.plans_by_status(session, "solving", ROWS),
            queued=await repository.plans_by_status(session, "queued", ROWS),
            failed=await repository.plans_by_status(session, "failed", ROWS),
            inbox=waiting,
            inbox_since=since,
        )
