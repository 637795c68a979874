"""Devices, their tokens and claims, groups and the audit log over HTTP."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query

from hope_schema import (
    AuditPage,
    AuditProof,
    ClaimPage,
    Device,
    DeviceDescription,
    DevicePage,
    DeviceReport,
    Enrolment,
    EnrolmentReceipt,
    Group,
    GroupPage,
    GroupSelector,
    IssuedToken,
    NewClaim,
    NewToken,
    Proof,
    ProofRequest,
    TokenPage,
)
from hope_schema.base import LABEL, PRINTABLE, Digest
from hope_schema.registry import PLAIN
from hope_schema.tokens import Number, TokenScope
from planner_api.devices import audit, groups, service
from planner_api.devices.guard import bearer_of, refuse_for
from planner_api.devices.reports import SentReport
from planner_api.web.body import read_message
from planner_api.web.contract import problems, takes
from planner_api.web.parameters import After, AfterName, DeviceId, FewRows, Limit, PlainName
from planner_api.web.route import Request, StrictRoute

router = APIRouter(tags=["devices"], route_class=StrictRoute)
tokens = APIRouter(tags=["tokens"], route_class=StrictRoute)
grouped = APIRouter(tags=["groups"], route_class=StrictRoute)
audited = APIRouter(tags=["audit"], route_class=StrictRoute)
ROUTERS = (router, tokens, grouped, audited)

ENROLMENT_BYTES = 32 * 1024
"""Largest enrolment; honest ones have a few hundred bytes, and the contract's own bounds end at 17 KB."""
PROOF_BYTES = 2048
"""Largest question for a proof; the contract's bounds end at half of it."""


@router.post(
    "/devices",
    status_code=201,
    response_description="The device's own token, shown this once.",
    responses=problems(409),
    openapi_extra=takes(Enrolment),
)
async def enrol_device(request: Request) -> EnrolmentReceipt:
    """Exchange a claim token (sent as the bearer) for a token of the device's own."""
    planner = request.planner
    claim = bearer_of(request.scope, "an enrolment needs a claim token as its bearer")
    await refuse_for(planner.per_claim.wait(claim))
    await service.check_claim(planner.database, claim)
    message = await read_message(request, Enrolment, limit=ENROLMENT_BYTES)
    await refuse_for(planner.per_claim.hit(claim))
    return await service.enrol(planner.database, claim, message)


@router.post(
    "/devices/proof",
    response_description="What only who knows the device's token can check.",
    responses=problems(404),
    openapi_extra=takes(ProofRequest),
)
async def prove_token(request: Request) -> Proof:
    """Prove to a device, which sends no token, that this planner gave it one; at the planner's own addresses alone."""
    planner = request.planner
    message = await read_message(request, ProofRequest, limit=PROOF_BYTES)
    return await service.prove(planner.database, planner.settings.addresses, message)


@router.get("/devices", response_description="One page.", responses=problems(404))
async def list_devices(
    request: Request,
    soc: Annotated[str | None, Query(max_length=128, pattern=LABEL)] = None,
    group: Annotated[str | None, Query(max_length=100, pattern=PLAIN, description="Of this group alone")] = None,
    after: After = None,
    limit: Limit = 100,
) -> DevicePage:
    """List the fleet's devices with their versions and their drift.

    A page of a group that takes a share of its devices may be short, or empty, before the last one.
    """
    return await service.list_devices(request.database, soc=soc, group=group, after=after, limit=limit)


@router.put("/devices/{device_id}/report", status_code=204, response_description="Kept.")
async def store_report(request: Request, device_id: DeviceId, message: DeviceReport) -> None:
    """Report versions, and measured against predicted times; the newest report stands."""
    await request.planner.reports.add(SentReport(device_id, message, datetime.now(UTC)))


@router.put("/devices/{device_id}/description", response_description="The device.")
async def describe_device(request: Request, device_id: DeviceId, message: DeviceDescription) -> Device:
    """Say what people call a device, and the labels that groups choose by."""
    return await service.describe(request.database, device_id, message, request.actor)


@router.get("/devices/{device_id}", response_description="The device.")
async def read_device(request: Request, device_id: DeviceId) -> Device:
    """Return one device."""
    return await service.get_device(request.database, device_id)


@router.delete("/devices/{device_id}", status_code=204, response_description="Revoked.")
async def revoke_device(request: Request, device_id: DeviceId) -> None:
    """Revoke a device and its tokens, on every replica at once, and take its figures back; a claim enrols it again."""
    await service.revoke_device(request.database, device_id, request.actor, request.planner.forget_device)


Id = Annotated[Number, Path(description="The number that the list shows")]
Before = Annotated[Number | None, Query(description="`next` of the page before")]


@tokens.get("/tokens", response_description="One page.")
async def list_tokens(
    request: Request,
    scope: Annotated[TokenScope | None, Query(description="Of this kind alone; without, those of people")] = None,
    before: Before = None,
    limit: Limit = 100,
) -> TokenPage:
    """List tokens, newest first; their secrets are not kept."""
    return await service.list_tokens(request.database, scope, before=before, limit=limit)


@tokens.post("/tokens", status_code=201, response_description="The token, shown this once.")
async def create_token(request: Request, message: NewToken) -> IssuedToken:
    """Make a token of an admin, or of a viewer."""
    return await service.issue(
        request.database,
        "viewer" if message.read_only else "admin",
        request.actor,
        label=message.label,
        lifetime_s=message.lifetime_s,
    )


@tokens.delete("/tokens/{number}", status_code=204, response_description="Revoked.")
async def revoke_token(request: Request, number: Id) -> None:
    """Revoke a token, on every replica at once."""
    await service.revoke_token(request.database, number, request.actor)


@tokens.get("/claims", response_description="One page.")
async def list_claims(request: Request, before: Before = None, limit: Limit = 100) -> ClaimPage:
    """List claims, newest first; their secrets are not kept."""
    return await service.list_claims(request.database, before=before, limit=limit)


@tokens.post("/claims", status_code=201, response_description="The claim, shown this once.")
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


@tokens.delete("/claims/{number}", status_code=204, response_description="Revoked.")
async def revoke_claim(request: Request, number: Id) -> None:
    """Revoke a claim; devices that enrolled with it keep their tokens."""
    await service.revoke_claim(request.database, number, request.actor)


@grouped.get("/groups", response_description="One page.")
async def list_groups(request: Request, after: AfterName = None, limit: FewRows = 50) -> GroupPage:
    """List the groups with the number of their devices."""
    return await groups.list_groups(request.database, after=after, limit=limit)


@grouped.get("/groups/{name}", response_description="The group.")
async def read_group(request: Request, name: PlainName) -> Group:
    """Return one group."""
    return await groups.get(request.database, name)


@grouped.put("/groups/{name}", response_description="The group.")
async def store_group(request: Request, name: PlainName, message: GroupSelector) -> Group:
    """Make a group, or choose its devices anew."""
    return await groups.store(request.database, name, message, request.actor)


@grouped.delete("/groups/{name}", status_code=204, response_description="Dropped.")
async def drop_group(request: Request, name: PlainName) -> None:
    """Drop a group."""
    await groups.drop(request.database, name, request.actor)


Words = Annotated[str | None, Query(max_length=256, pattern=PRINTABLE)]


@audited.get("/audit", response_description="One page.")
async def read_audit(
    request: Request,
    actor: Words = None,
    action: Words = None,
    subject: Words = None,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1, description="`next` of the page before")] = None,
    limit: Limit = 100,
) -> AuditPage:
    """List who did what, newest first."""
    return await audit.page(request.database, actor=actor, action=action, subject=subject, before=before, limit=limit)


@audited.get("/audit/proof", response_description="It stands as it was written.", responses=problems(409))
async def verify_audit(
    request: Request, head: Annotated[Digest | None, Query(description="A head that was written down before")] = None
) -> AuditProof:
    """Check that nobody changed, removed or put in an entry."""
    return await audit.verify(request.database, head)
