"""``/profiles`` over HTTP."""

from functools import partial

from fastapi import APIRouter, Response

from hope_schema import Missing, MissingRequest, Observations, Profile, UploadReceipt
from planner_api.profiles.reading import read_upload
from planner_api.web.body import read_large
from planner_api.web.contract import problems, takes
from planner_api.web.parameters import FrequencyName, SocName
from planner_api.web.principal import charge, require_own
from planner_api.web.route import Request, StrictRoute
from planner_api.web.stored import StoredReply

router = APIRouter(tags=["profiles"], route_class=StrictRoute)

INLINE_BYTES = 96 * 1024
"""A larger upload is read in another process: this much takes the event loop about a millisecond, and a tenth of a
second where every number is as small as a float can be."""


@router.post(
    "/profiles",
    status_code=202,
    response_description="Accepted into the inbox, or known already.",
    openapi_extra=takes(Observations),
)
async def upload_observations(request: Request) -> UploadReceipt:
    """Accept what a device measured. Sending the same upload id again counts once."""
    head, body = await read_large(request, read_upload, inline=INLINE_BYTES)
    require_own(request.scope, head.device_id)
    receipt: UploadReceipt = await request.planner.profiles.accept(head, body, request.caller, request.actor.request_id)
    return receipt


@router.post(
    "/profiles/missing",
    response_model=Missing,
    response_description="What this device should measure.",
    responses=problems(404),
)
async def list_missing_figures(request: Request, message: MissingRequest) -> Response:
    """Say what nobody has measured yet of a model on a SoC, and ask this device for its part of it."""
    require_own(request.scope, message.device_id)
    charged = partial(charge, request.scope)
    found = await request.planner.profiles.missing(message, request.caller, charged)
    return Response(found, media_type="application/json")


@router.get(
    "/profiles/{soc}/{frequency}",
    response_model=Profile,
    response_description="The newest version of the profile.",
)
async def read_profile(request: Request, soc: SocName, frequency: FrequencyName) -> Response:
    """Return what is known of a SoC at a frequency, to a device of its own SoC.

    `hope-planner profiles import` takes it in elsewhere.
    """
    body = await request.planner.profiles.read(soc, frequency, request.caller)
    return StoredReply(body, request.header(b"accept-encoding"))
