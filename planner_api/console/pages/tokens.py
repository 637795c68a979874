"""Tokens and claims: made, shown once, listed and revoked."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Response

from hope_schema import NewClaim
from hope_schema.base import Digest
from planner_api.console import session as sessions
from planner_api.console.address import HOME, lead
from planner_api.console.forms import read_form, scaled, valid
from planner_api.console.rendering import render
from planner_api.devices import service
from planner_api.devices.audit.service import record
from planner_api.errors import unknown
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)

LISTED = 200
"""Newest tokens shown, and as many claims."""
LIFETIMES = {"1": "a day", "30": "30 days", "365": "a year", "": "no end"}
"""Days to how that is called."""

Number = Annotated[int, Path(ge=1, le=2**62)]


class TokenForm(NewClaim):
    """What the form says."""

    kind: Literal["admin", "viewer", "claim"]
    days: Literal["1", "30", "365", ""]


@router.get("/tokens")
async def listing(request: Request) -> Response:
    return await _page(request)


@router.post("/tokens")
async def create(request: Request) -> Response:
    """Make a token and show it, this once."""
    fields = await read_form(request)
    sent = valid(
        TokenForm,
        kind=fields.get("kind"),
        label=fields.get("label", "").strip(),
        uses=fields.get("uses", "").strip() or None,
        days=(days := fields.get("days", "")),
        lifetime_s=scaled(days, 86_400.0),
    )
    made = await service.issue(
        request.database,
        sent.kind,
        request.actor,
        label=sent.label,
        uses=sent.uses if sent.kind == "claim" else None,
        lifetime_s=sent.lifetime_s,
    )
    return await _page(request, made=made.token, kind=sent.kind)


@router.post("/tokens/{number}")
async def revoke(request: Request, number: Number) -> Response:
    await service.revoke_token(request.database, number, request.actor)
    return lead(f"{HOME}/tokens")


@router.post("/tokens/claims/{number}")
async def revoke_claim(request: Request, number: Number) -> Response:
    """Revoke a claim; devices that enrolled with it keep their tokens."""
    await service.revoke_claim(request.database, number, request.actor)
    return lead(f"{HOME}/tokens")


@router.post("/tokens/sessions/{session_hash}")
async def end_session(request: Request, session_hash: Digest) -> Response:
    async with request.database.write() as session:
        ended = await sessions.remove(session, session_hash)
        if ended is None:
            raise unknown("session")
        await record(session, request.actor, "console.end", ended)
    return lead(f"{HOME}/tokens")


async def _page(request: Request, *, made: str | None = None, kind: str | None = None) -> Response:
    people = await service.list_tokens(request.database, None, before=None, limit=LISTED)
    claims = await service.list_claims(request.database, before=None, limit=LISTED)
    async with request.database.read() as session:
        signed_in = await sessions.people(session, LISTED)
    return render(
        request,
        "tokens.html",
        people=people.tokens,
        claims=claims.claims,
        signed_in=signed_in,
        made=made,
        kind=kind,
        lifetimes=LIFETIMES,
        own=request.state.session.principal.name,
    )
