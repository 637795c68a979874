"""Devices, their groups and tokens, and what was done to them."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response

from hope_schema import GroupSelector, NewClaim
from hope_schema.base import Digest
from hope_schema.registry import PLAIN
from hope_schema.registry import PlainName as Name
from planner_api.console import session as sessions
from planner_api.console.address import HOME, lead
from planner_api.console.forms import Words, read_form, scaled, valid
from planner_api.console.rendering import render, segment
from planner_api.db.engine import found
from planner_api.db.tables import GroupRow
from planner_api.devices import audit, groups, service
from planner_api.devices.audit import record
from planner_api.devices.groups import find_devices
from planner_api.devices.repository import drifts
from planner_api.errors import unknown
from planner_api.views import pages
from planner_api.web.parameters import After, AfterName, DeviceId, PlainName
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)
ROWS = 50
REPORTS = 100
"""Newest reports, and profiles, that are shown of one device."""
OFFERED = 200
"""Groups that are offered to choose from."""
LISTED = 200
"""Newest tokens shown, and as many claims."""
LIFETIMES = {"1": "a day", "30": "30 days", "365": "a year", "": "no end"}
"""Days to how that is called."""
Number = Annotated[int, Path(ge=1, le=2**62)]
ENTRIES = 100


@router.get("/devices")
async def list_devices(
    request: Request,
    search: Words = "",
    soc: Words = "",
    group: Annotated[str, Query(max_length=100, pattern=f"^$|{PLAIN}")] = "",
    after: After = None,
    before: After = None,
) -> Response:
    async with request.database.read() as session:
        chosen = await found(session, GroupRow, group, "group") if group else None
        wanted: dict[str, Any] = {"soc": soc.strip(), "part": search.strip(), "group": chosen}
        page = await find_devices(session, **wanted, after=after, before=before, limit=ROWS)
        drifting = await drifts(session, [row.id for row in page.devices])
        known = await groups.names(session, OFFERED)
    return render(
        request,
        "devices.html",
        page=page,
        drifts=drifting,
        search=search,
        soc=soc,
        group=group,
        chosen=chosen,
        known=known,
    )


@router.get("/devices/{device_id}")
async def show_device(request: Request, device_id: DeviceId) -> Response:
    device = await service.get_device(request.database, device_id)
    async with request.database.read() as session:
        reports = await pages.reports(session, device_id, REPORTS)
        contributions = await pages.contributions(session, device_id, REPORTS)
    return render(request, "device.html", device=device, reports=reports, contributions=contributions)


@router.post("/devices/{device_id}")
async def revoke_device(request: Request, device_id: DeviceId) -> Response:
    await service.revoke_device(request.database, device_id, request.actor, request.planner.forget_device)
    return lead(f"{HOME}/devices/{segment(device_id)}")


class GroupForm(GroupSelector):
    """What the form says."""

    name: Name


@router.get("/groups")
async def list_groups(
    request: Request,
    after: AfterName = None,
    change: Annotated[str | None, Query(max_length=100, pattern=PLAIN)] = None,
) -> Response:
    """List groups, and show the form that makes one or, filled in, changes one."""
    page = await groups.list_groups(request.database, after=after, limit=ROWS)
    changed = await groups.get(request.database, change) if change else None
    return render(request, "groups.html", page=page, after=after, changed=changed)


@router.post("/groups")
async def store_group(request: Request) -> Response:
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
    await groups.store(request.database, sent.name, selector, request.actor)
    return lead(f"{HOME}/groups")


@router.post("/groups/{name}/drop")
async def drop_group(request: Request, name: PlainName) -> Response:
    await groups.drop(request.database, name, request.actor)
    return lead(f"{HOME}/groups")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


class TokenForm(NewClaim):
    """What the form says."""

    kind: Literal["admin", "viewer", "claim"]
    days: Literal["1", "30", "365", ""]


@router.get("/tokens")
async def list_tokens(request: Request) -> Response:
    return await _tokens_page(request)


@router.post("/tokens")
async def create_token(request: Request) -> Response:
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
    return await _tokens_page(request, made=made.token, kind=sent.kind)


@router.post("/tokens/{number}")
async def revoke_token(request: Request, number: Number) -> Response:
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


async def _tokens_page(request: Request, *, made: str | None = None, kind: str | None = None) -> Response:
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


@router.get("/audit")
async def list_audit(
    request: Request,
    actor: Words = "",
    action: Words = "",
    subject: Words = "",
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Response:
    where = {"actor": actor.strip() or None, "action": action.strip() or None, "subject": subject.strip() or None}
    page = await audit.page(request.database, limit=ENTRIES, before=before, **where)
    return render(request, "audit.html", page=page, where=where, before=before)
