"""``/groups`` over HTTP."""

from __future__ import annotations

from fastapi import APIRouter

from hope_schema import Group, GroupPage, GroupSelector
from planner_api.devices.groups import service
from planner_api.web.parameters import AfterName, FewRows, PlainName
from planner_api.web.route import Request, StrictRoute

router = APIRouter(tags=["groups"], route_class=StrictRoute)


@router.get("/groups", response_description="One page.")
async def list_groups(request: Request, after: AfterName = None, limit: FewRows = 50) -> GroupPage:
    """List the groups with the number of their devices."""
    return await service.list_groups(request.database, after=after or "", limit=limit)


@router.get("/groups/{name}", response_description="The group.")
async def read_group(request: Request, name: PlainName) -> Group:
    """Return one group."""
    return await service.get(request.database, name)


@router.put("/groups/{name}", response_description="The group.")
async def store_group(request: Request, name: PlainName, message: GroupSelector) -> Group:
    """Make a group, or choose its devices anew."""
    return await service.store(request.database, name, message, request.actor)


@router.delete("/groups/{name}", status_code=204, response_description="Dropped.")
async def drop_group(request: Request, name: PlainName) -> None:
    """Drop a group."""
    await service.drop(request.database, name, request.actor)
