"""``/audit`` over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from hope_schema import AuditPage, AuditProof
from hope_schema.base import PRINTABLE, Digest
from planner_api.devices.audit import service
from planner_api.web.contract import problems
from planner_api.web.parameters import Limit
from planner_api.web.route import Request, StrictRoute

router = APIRouter(tags=["audit"], route_class=StrictRoute)

Words = Annotated[str | None, Query(max_length=256, pattern=PRINTABLE)]


@router.get("/audit", response_description="One page.")
async def read_audit(
    request: Request,
    actor: Words = None,
    action: Words = None,
    subject: Words = None,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1, description="`next` of the page before")] = None,
    limit: Limit = 100,
) -> AuditPage:
    """List who did what, newest first."""
    found = await service.page(
        request.database, actor=actor, action=action, subject=subject, before=before, limit=limit
    )
    return found


@router.get("/audit/proof", response_description="It stands as it was written.", responses=problems(409))
async def verify_audit(
    request: Request, head: Annotated[Digest | None, Query(description="A head that was written down before")] = None
) -> AuditProof:
    """Check that nobody changed, removed or put in an entry."""
    return await service.verify(request.database, head)
