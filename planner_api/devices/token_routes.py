"""``/tokens`` and ``/claims`` over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from hope_schema import ClaimPage, IssuedToken, NewClaim, NewToken, TokenPage
from hope_schema.tokens import Number, TokenScope
from planner_api.devices import service
from planner_api.web.parameters import Limit
from planner_api.web.route import Request, StrictRoute

router = APIRouter(tags=["tokens"], route_class=StrictRoute)

Id = Annotated[Number, Path(description="The number that the list shows")]
Before = Annotated[Number | None, Query(description="`next` of the page before")]


@router.get("/tokens", response_description="One page.")
async def list_tokens(
    request: Request,
    scope: Annotated[TokenScope | None, Query(description="Of this kind alone; without, those of people")] = None,
    before: Before = None,
    limit: Limit = 100,
) -> TokenPage:
    """List tokens, newest first; their secrets are not kept."""
    return await service.list_tokens(request.database, scope, before=before, limit=limit)


@router.post("/tokens", status_code=201, response_description="The token, shown this once.")
async def create_token(request: Request, message: NewToken) -> IssuedToken:
    """Make a token of an admin, or of a viewer."""
    return await service.issue(
        request.database,
        "viewer" if message.read_only else "admin",
        request.actor,
        label=message.label,
        lifetime_s=message.lifetime_s,
    )


@router.delete("/tokens/{number}", status_code=204, response_description="Revoked.")
async def revoke_token(request: Request, number: Id) -> None:
    """Revoke a token, on every replica at once."""
    await service.revoke_token(request.database, number, request.actor)


@router.get("/claims", response_description="One page.")
async def list_claims(request: Request, before: Before = None, limit: Limit = 100) -> ClaimPage:
    """List claims, newest first; their secrets are not kept."""
    return await service.list_claims(request.database, before=before, limit=limit)


@router.post("/claims", status_code=201, response_description="The claim, shown this once.")
async def create_claim(request: Request, message: NewClaim) -> IssuedToken:
    """Make a claim, which devices exchange for tokens of their own."""
    return await service.issue(
        request.database,
        "claim",
        request.actor,
        label=message.label,
        uses=message.uses,
        lifetime_s=message.lifetime_s,
    )


@router.delete("/claims/{number}", status_code=204, response_description="Revoked.")
async def revoke_claim(request: Request, number: Id) -> None:
    """Revoke a claim; devices that enrolled with it keep their tokens."""
    await service.revoke_claim(request.database, number, request.actor)
