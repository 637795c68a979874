"""Planning ahead over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from hope_schema import Fanout, FanoutRequest
from planner_api.devices.audit.service import actor_of
from planner_api.plans import ahead
from planner_api.web.contract import answers, problems
from planner_api.web.parameters import ModelHash
from planner_api.web.route import StrictRoute, reply

router = APIRouter(tags=["fleet"], route_class=StrictRoute)

ANY = FanoutRequest()
POLL_S = 2
"""What ``Retry-After`` suggests between two looks at its progress."""

LOCATION = {"Location": "Where its progress stands.", "Retry-After": "Seconds until another look is worth it."}


@router.post(
    "/models/{model_hash}/plans",
    status_code=202,
    response_model=Fanout,
    responses=problems(404) | answers(202, "Queued; see `Location` for the progress.", LOCATION),
)
async def plan_ahead(request: Request, model_hash: ModelHash, message: FanoutRequest = ANY) -> Response:
    """Plan one model for every SoC and frequency the fleet knows, so that its release starts with a warm cache."""
    planner = request.app.state.planner
    found = await ahead.plan_ahead(planner.database, model_hash, message, actor_of(request.scope))
    headers = {"Location": f"/fanouts/{found.fanout_id}", "Retry-After": str(POLL_S)}
    return reply(found, 202, headers)


@router.get(
    "/fanouts/{fanout_id}", response_model=Fanout, response_description="Its progress.", responses=problems(404)
)
async def read_progress(
    request: Request, fanout_id: Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9\-]*$")]
) -> Response:
    """Return how far a planning ahead is."""
    found = await ahead.progress(request.app.state.planner.database, fanout_id)
    headers = {} if found.finished else {"Retry-After": str(POLL_S)}
    return reply(found, headers=headers)
