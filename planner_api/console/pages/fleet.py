"""The first view (what there is, what is drifting, what failed), and the queue (who works, what waits)."""

from typing import Any

from fastapi import APIRouter, Response

from planner_api.console.address import HOME
from planner_api.console.charts import bars
from planner_api.console.overview import DRIFT_BOUNDS
from planner_api.console.rendering import render
from planner_api.jobs.workers import is_looking, workers
from planner_api.plans.repository import count_by_status
from planner_api.profiles.jobs import pair_of
from planner_api.views import pages
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)
ROWS = 50
"""Jobs shown of each state."""
WORDS = {"first": "First plan", "better": "Better plan", "fold": "Fold figures", "outdated": "Compare plans"}
"""What each kind of job is called."""


@router.get("")
async def overview(request: Request) -> Response:
    found = await request.planner.overviews.get()
    contacts = found.contacts
    heard = [
        ("in the last hour", contacts.hour, "good"),
        ("in the last day", contacts.day - contacts.hour, ""),
        ("in the last week", contacts.week - contacts.day, ""),
        ("longer ago", contacts.devices - contacts.never - contacts.week, ""),
        ("never", contacts.never, ""),
    ]
    return render(
        request,
        "fleet.html",
        overview=found,
        heard=bars.draw(heard),
        socs=bars.draw((soc or "not reported", devices, "") for soc, devices in found.socs),
        drift_steps=bars.steps(found.drift, DRIFT_BOUNDS),
    )


@router.get("/queue")
async def show_queue(request: Request) -> Response:
    async with request.database.read() as session:
        waiting, since = await pages.inbox(session)
        found = await workers(session)
        return render(
            request,
            "queue.html",
            counts=await count_by_status(session),
            workers=found,
            looking=list(filter(is_looking, found)),
            running=list(map(_told, await pages.jobs(session, running=True, limit=ROWS))),
            queued=list(map(_told, await pages.jobs(session, running=False, limit=ROWS))),
            failed=await pages.failed_plans(session, ROWS),
            inbox=waiting,
            inbox_since=since,
        )


def _told(row: Any) -> dict[str, Any]:
    told = dict(row._mapping) | {"what": WORDS.get(row.kind, row.kind)}
    if row.plan_id is None and row.key.startswith("["):
        told["soc"], told["frequency"] = pair_of(row.key)
    return told
