"""``/groups`` over HTTP."""

from __future__ import annotations

from fastapi import APIRouter, Request

from hope_schema import Group, GroupPage, GroupSelector
from planner_api.devices.audit.service import actor_of
from planner_api.devices.groups import service
from planner_api.web.contract import problems
from planner_api.web.parameters import AfterName, FewRows, PlainName
from planner_api.web.route import StrictRoute

router = APIRouter(tags=["groups"], route_class=StrictRoute)


@router.get("/groups", response_description="One page.")
async def list_groups(request: Request, after: AfterName = None, limit: FewRows = 50) -> GroupPage:
    """List the groups with the number of their devices."""
    return await service.list_groups(request.app.state.planner.database, after=after or "", limit=limit)


@router.get("/groups/{name}", response_description="The group.", responses=problems(404))
async def read_group(request: Request, name: PlainName) -> Group:
    """Return one group."""
    return await service.get(request.app.state.planner.database, name)


@router.put("/groups/{name}", response_description="The group.")
async def store_group(request: Request, name: PlainName, message: GroupSelector) -> Group:
    """Make a group, or choose its devices anew."""
    return await service.store(request.app.state.planner.database, name, message, actor_of(request.scope))


@router.delete("/groups/{name}", status_code=204, response_description="Dropped.", responses=problems(404))
async def drop_group(request: Request, name: PlainName) -> None:
    """Drop a group."""
    await service.drop(request.app.state.planner.database, name, actor_of(request.scope))
