"""The audit log: who did what, and when."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from planner_api.console.address import HOME
from planner_api.console.forms import Words
from planner_api.console.rendering import render
from planner_api.devices.audit import service
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)

ROWS = 100


@router.get("/audit")
async def listing(
    request: Request,
    actor: Words = "",
    action: Words = "",
    subject: Words = "",
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Response:
    where = {"actor": actor.strip() or None, "action": action.strip() or None, "subject": subject.strip() or None}
    page = await service.page(request.database, limit=ROWS, before=before, **where)
    return render(request, "audit.html", page=page, where=where, before=before)
