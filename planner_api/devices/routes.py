"""``/devices`` over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from hope_schema import (
    Device,
    DeviceDescription,
    DevicePage,
    DeviceReport,
    Enrolment,
    EnrolmentReceipt,
    Proof,
    ProofRequest,
)
from hope_schema.base import LABEL
from hope_schema.registry import PLAIN
from planner_api.devices import service
from planner_api.devices.guard import bearer_of, refuse_for
from planner_api.web.body import read_message
from planner_api.web.contract import problems, takes
from planner_api.web.parameters import After, DeviceId, Limit
from planner_api.web.route import Request, StrictRoute

router = APIRouter(tags=["devices"], route_class=StrictRoute)

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
    await request.planner.reports.add(device_id, message)


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
