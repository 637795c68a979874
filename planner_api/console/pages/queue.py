"""The queue: who works, what is under way and by whom, what waits, what failed."""

from typing import Any

from fastapi import APIRouter, Response

from planner_api.console.address import HOME
from planner_api.console.rendering import render
from planner_api.jobs.workers import ALIVE_S, workers
from planner_api.plans.repository import count_by_status
from planner_api.profiles.jobs import pair_of
from planner_api.views import pages
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)

ROWS = 50
"""Jobs shown of each state."""


@router.get("/queue")
async def show(request: Request) -> Response:
    async with request.database.read() as session:
        waiting, since = await pages.inbox(session)
        return render(
            request,
            "queue.html",
            counts=await count_by_status(session),
            workers=await workers(session),
            alive_s=ALIVE_S,
            running=list(map(_told, await pages.jobs(session, running=True, limit=ROWS))),
            queued=list(map(_told, await pages.jobs(session, running=False, limit=ROWS))),
            failed=await pages.failed_plans(session, ROWS),
            inbox=waiting,
            inbox_since=since,
        )


WORDS = {"first": "First plan", "better": "Better plan", "fold": "Fold figures", "outdated": "Compare plans"}


def _told(row: Any) -> dict[str, Any]:
    told = dict(row._mapping) | {"what": WORDS.get(row.kind, row.kind)}
    if row.plan_id is None and row.key.startswith("["):
        told["soc"], told["frequency"] = pair_of(row.key)
    return told
