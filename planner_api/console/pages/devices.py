"""Devices: found among any number of them, one in full, and taken out of the fleet."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from hope_schema.registry import PLAIN
from planner_api.console.address import HOME, lead
from planner_api.console.forms import Words
from planner_api.console.rendering import render, segment
from planner_api.devices import service
from planner_api.devices.finding import find
from planner_api.devices.groups import service as groups
from planner_api.devices.repository import drifts
from planner_api.views import pages
from planner_api.web.parameters import After, DeviceId
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)

ROWS = 50
REPORTS = 100
"""Newest reports, and profiles, that are shown of one device."""
OFFERED = 200
"""Groups that are offered to choose from."""


@router.get("/devices")
async def listing(
    request: Request,
    search: Words = "",
    soc: Words = "",
    group: Annotated[str, Query(max_length=100, pattern=f"^$|{PLAIN}")] = "",
    after: After = None,
    before: After = None,
) -> Response:
    async with request.database.read() as session:
        chosen = await groups.find(session, group) if group else None
        wanted: dict[str, Any] = {"soc": soc.strip(), "part": search.strip(), "group": chosen}
        page = await find(session, **wanted, after=after, before=before, limit=ROWS)
        found = await drifts(session, [row.id for row in page.devices])
        known = await groups.names(session, OFFERED)
    return render(
        request,
        "devices.html",
        page=page,
        drifts=found,
        search=search,
        soc=soc,
        group=group,
        chosen=chosen,
        known=known,
    )


@router.get("/devices/{device_id}")
async def show(request: Request, device_id: DeviceId) -> Response:
    device = await service.get_device(request.database, device_id)
    async with request.database.read() as session:
        reports = await pages.reports(session, device_id, REPORTS)
        contributions = await pages.contributions(session, device_id, REPORTS)
    return render(request, "device.html", device=device, reports=reports, contributions=contributions)


@router.post("/devices/{device_id}")
async def revoke(request: Request, device_id: DeviceId) -> Response:
    await service.revoke_device(request.database, device_id, request.actor, request.planner.forget_device)
    return lead(f"{HOME}/devices/{segment(device_id)}")
