"""``/profiles`` over HTTP."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from hope_schema import Missing, MissingRequest, Observations, UploadReceipt
from planner_api.devices.principal import require_own
from planner_api.http.body import read_large, read_message
from planner_api.http.contract import describe
from planner_api.profiles.reading import read_upload

router = APIRouter(tags=["profiles"])

INLINE_BYTES = 128 * 1024
"""A larger upload is read in another process: this much takes the event loop about two milliseconds."""


@router.post(
    "/profiles",
    status_code=202,
    openapi_extra=describe(
        request=Observations, replies={202: ("Accepted into the inbox, or known already.", UploadReceipt)}
    ),
)
async def upload_observations(request: Request) -> Response:
    """Accept what a device measured. Sending the same upload id again counts once."""
    planner = request.app.state.planner
    head, body = await read_large(request, read_upload, inline=INLINE_BYTES)
    require_own(request.scope, head.device_id)
    receipt = await planner.profiles.accept(head, body)
    return Response(receipt.model_dump_json(), status_code=202, media_type="application/json")


@router.post(
    "/profiles/missing",
    openapi_extra=describe(
        request=MissingRequest, replies={200: ("What this device should measure.", Missing)}, errors=[404]
    ),
)
async def missing_figures(request: Request) -> Response:
    """Say what nobody has measured yet of a model on a SoC, and ask this device for its part of it."""
    message = await read_message(request, MissingRequest)
    require_own(request.scope, message.device_id)
    missing = await request.app.state.planner.profiles.missing(message)
    return Response(missing.model_dump_json(), media_type="application/json")
