"""``/groups`` over HTTP."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from hope_schema import Group, GroupPage, GroupSelector
from planner_api.devices.audit.service import actor_of
from planner_api.devices.groups import service
from planner_api.web.body import read_message
from planner_api.web.contract import describe
from planner_api.web.parameters import AfterName, FewRows, PlainName
from planner_api.web.route import StrictRoute, reply

router = APIRouter(tags=["groups"], route_class=StrictRoute)


@router.get("/groups", openapi_extra=describe(replies={200: ("One page.", GroupPage)}))
async def list_groups(request: Request, after: AfterName = None, limit: FewRows = 50) -> Response:
    """List the groups with the number of their devices."""
    return reply(await service.list_groups(request.app.state.planner.database, after=after or "", limit=limit))


@router.get("/groups/{name}", openapi_extra=describe(replies={200: ("The group.", Group)}, errors=[404]))
async def read_group(request: Request, name: PlainName) -> Response:
    """Return one group."""
    return reply(await service.get(request.app.state.planner.database, name))


@router.put("/groups/{name}", openapi_extra=describe(request=GroupSelector, replies={200: ("The group.", Group)}))
async def store_group(request: Request, name: PlainName) -> Response:
    """Make a group, or choose its devices anew."""
    message = await read_message(request, GroupSelector)
    return reply(await service.store(request.app.state.planner.database, name, message, actor_of(request.scope)))


@router.delete("/groups/{name}", openapi_extra=describe(replies={204: ("Dropped.", None)}, errors=[404]))
async def drop_group(request: Request, name: PlainName) -> Response:
    """Drop a group."""
    await service.drop(request.app.state.planner.database, name, actor_of(request.scope))
    return Response(status_code=204)
