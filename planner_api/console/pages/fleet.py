"""The first view: what there is, what is drifting, what has failed."""

from fastapi import APIRouter, Response

from planner_api.console.address import HOME
from planner_api.console.charts import bars
from planner_api.console.overview import DRIFT_BOUNDS
from planner_api.console.rendering import render
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)


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
