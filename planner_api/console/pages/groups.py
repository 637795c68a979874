"""Groups of devices: listed, made, chosen anew and dropped."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from hope_schema import GroupSelector
from hope_schema.registry import PLAIN
from hope_schema.registry import PlainName as Name
from planner_api.console.address import HOME, lead
from planner_api.console.forms import read_form, scaled, valid
from planner_api.console.rendering import render
from planner_api.devices.groups import service
from planner_api.web.parameters import AfterName, PlainName
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)

ROWS = 50


class GroupForm(GroupSelector):
    """What the form says."""

    name: Name


@router.get("/groups")
async def listing(
    request: Request,
    after: AfterName = None,
    change: Annotated[str | None, Query(max_length=100, pattern=PLAIN)] = None,
) -> Response:
    """List groups, and show the form that makes one or, filled in, changes one."""
    page = await service.list_groups(request.database, after=after or "", limit=ROWS)
    changed = await service.get(request.database, change) if change else None
    return render(request, "groups.html", page=page, after=after, changed=changed)


@router.post("/groups")
async def store(request: Request) -> Response:
    fields = await read_form(request)
    pairs = [part.partition("=") for part in _parts(fields.get("labels", ""))]
    sent = valid(
        GroupForm,
        name=fields.get("name", "").strip(),
        socs=_parts(fields.get("socs", "")),
        labels={key.strip(): value.strip() for key, _, value in pairs},
        share=scaled(fields.get("share", "100"), 0.01),
    )
    selector = GroupSelector(socs=sent.socs, labels=sent.labels, share=sent.share)
    await service.store(request.database, sent.name, selector, request.actor)
    return lead(f"{HOME}/groups")


@router.post("/groups/{name}/drop")
async def drop(request: Request, name: PlainName) -> Response:
    await service.drop(request.database, name, request.actor)
    return lead(f"{HOME}/groups")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
