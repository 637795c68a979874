"""Groups of devices: listed, made, chosen anew and dropped."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from starlette.responses import RedirectResponse

from hope_schema import GroupSelector
from hope_schema.registry import PLAIN
from planner_api.console.forms import read_form
from planner_api.console.rendering import render
from planner_api.devices.audit.service import actor_of
from planner_api.devices.groups import service
from planner_api.errors import InvalidError
from planner_api.web.parameters import AfterName, PlainName
from planner_api.web.route import StrictRoute

router = APIRouter(route_class=StrictRoute)

ROWS = 50


@router.get("/groups")
async def listing(
    request: Request,
    after: AfterName = None,
    change: Annotated[str | None, Query(max_length=100, pattern=PLAIN)] = None,
) -> Response:
    """List groups, and show the form that makes one or, filled in, changes one."""
    database = request.app.state.planner.database
    page = await service.list_groups(database, after=after or "", limit=ROWS)
    changed = await service.get(database, change) if change else None
    return render(request, "groups.html", page=page, after=after, changed=changed)


@router.post("/groups")
async def store(request: Request) -> Response:
    """Make a group, or choose its devices anew."""
    fields = await read_form(request)
    name = fields.get("name", "").strip()
    pairs = [part.partition("=") for part in _parts(fields.get("labels", ""))]
    try:
        selector = GroupSelector(
            socs=tuple(_parts(fields.get("socs", ""))),
            labels={key.strip(): value.strip() for key, _, value in pairs},
            share=float(fields.get("share", "100").replace(",", ".")) / 100.0,
        )
    except ValidationError as error:
        where = sorted({str(item["loc"][0]) for item in error.errors()})
        raise InvalidError("invalid", f"There is no such group; look again at: {', '.join(where)}.") from None
    except ValueError:
        raise InvalidError("invalid", "Say in per cent which part of the devices it takes, e.g. 10.") from None
    if len(name) > 100 or not re.fullmatch(PLAIN, name):
        raise InvalidError("invalid", "A group's name has letters, digits, dots, dashes and underscores, at most 100.")
    await service.store(request.app.state.planner.database, name, selector, actor_of(request.scope))
    return RedirectResponse("/console/groups", status_code=303)


@router.post("/groups/{name}/drop")
async def drop(request: Request, name: PlainName) -> Response:
    """Drop a group."""
    await read_form(request)
    await service.drop(request.app.state.planner.database, name, actor_of(request.scope))
    return RedirectResponse("/console/groups", status_code=303)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
