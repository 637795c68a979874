"""``/tokens`` and ``/claims`` over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from hope_schema import ClaimPage, IssuedToken, NewClaim, NewToken, TokenPage
from hope_schema.tokens import Number, TokenScope
from planner_api.devices import service
from planner_api.devices.audit.service import actor_of
from planner_api.errors import NotFoundError
from planner_api.web.contract import problems
from planner_api.web.parameters import Limit
from planner_api.web.route import StrictRoute

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
    database = request.app.state.planner.database
    return await service.list_tokens(database, scope, before=before, limit=limit)


@router.post("/tokens", status_code=201, response_description="The token, shown this once.")
async def create_token(request: Request, message: NewToken) -> IssuedToken:
    """Make a token of an admin, or of a viewer."""
    return await service.issue(
        request.app.state.planner.database,
        "viewer" if message.read_only else "admin",
        actor_of(request.scope),
        label=message.label,
        lifetime_s=message.lifetime_s,
    )


@router.delete("/tokens/{number}", status_code=204, response_description="Revoked.", responses=problems(404))
async def revoke_token(request: Request, number: Id) -> None:
    """Revoke a token, on every replica at once."""
    planner = request.app.state.planner
    if not await service.revoke_token(planner.database, number, actor_of(request.scope)):
        raise NotFoundError("token-unknown", _nothing("token", number))


@router.get("/claims", response_description="One page.")
async def list_claims(request: Request, before: Before = None, limit: Limit = 100) -> ClaimPage:
    """List claims, newest first; their secrets are not kept."""
    return await service.list_claims(request.app.state.planner.database, before=before, limit=limit)


@router.post("/claims", status_code=201, response_description="The claim, shown this once.")
async def create_claim(request: Request, message: NewClaim) -> IssuedToken:
    """Make a claim, which devices exchange for tokens of their own."""
    return await service.issue(
        request.app.state.planner.database,
        "claim",
        actor_of(request.scope),
        label=message.label,
        uses=message.uses,
        lifetime_s=message.lifetime_s,
    )


@router.delete("/claims/{number}", status_code=204, response_description="Revoked.", responses=problems(404))
async def revoke_claim(request: Request, number: Id) -> None:
    """Revoke a claim; devices that enrolled with it keep their tokens."""
    if not await service.revoke_claim(request.app.state.planner.database, number, actor_of(request.scope)):
        raise NotFoundError("claim-unknown", _nothing("claim", number))


def _nothing(noun: str, number: int) -> str:
    return f"there is no {noun} {number} to revoke: `hope-planner {noun}s list` lists those there are"
