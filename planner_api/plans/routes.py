"""``/plans`` over HTTP. Most plans in memory never come this far: ``plans/layer.py`` answers them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from hope_schema import PlanReply, PlanRequest
from planner_api.devices.principal import principal_of
from planner_api.http.body import read_message
from planner_api.http.contract import describe
from planner_api.http.route import StrictRoute
from planner_api.plans.stored import Answer
from planner_api.plans.waits import preferred_wait

router = APIRouter(tags=["plans"], route_class=StrictRoute)

PlanId = Annotated[str, Path(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:+@\-]*$", description="The plan's id")]
HEADERS = {
    "ETag": "Strong tag of this version in this content coding.",
    "Hope-Plan-Cache": "`hit`: the plan was there; `miss`: it was found for this request.",
    "Vary": "`Accept-Encoding`",
}


@router.post(
    "/plans",
    openapi_extra=describe(
        request=PlanRequest,
        replies={200: ("The plan.", PlanReply)},
        errors=[404],
        headers={200: {**HEADERS, "Preference-Applied": "`wait=N` as it was granted."}},
        parameters=[
            {
                "name": "Prefer",
                "in": "header",
                "required": False,
                "description": "`wait=N`: wait up to N seconds for the optimised plan (RFC 7240).",
                "schema": {"type": "string", "maxLength": 256},
            }
        ],
    ),
)
async def request_plan(request: Request) -> Response:
    """Return the plan under a key: at once, and a better one later under the same id."""
    planner = request.app.state.planner
    message = await read_message(request, PlanRequest)
    wait_s = min(preferred_wait(request.headers.get("prefer", "")), planner.settings.max_wait_s)
    served = await planner.plans.plan(message, principal_of(request.scope))
    request.scope["state"]["plan_id"] = served.stored.plan_id
    stored = await planner.plans.waits.better(served.stored, wait_s, request.receive)
    response = _respond(stored.answer(_header(request, "accept-encoding"), hit=served.hit))
    if wait_s:
        response.headers["Preference-Applied"] = f"wait={wait_s:g}"
    return response


@router.get(
    "/plans/{plan_id}",
    openapi_extra=describe(
        replies={200: ("The newest version of the plan.", PlanReply), 304: ("The copy is the newest version.", None)},
        errors=[404, 422],
        headers={200: HEADERS, 304: HEADERS},
        parameters=[
            {
                "name": "If-None-Match",
                "in": "header",
                "required": False,
                "description": "The ETag of the copy at hand.",
                "schema": {"type": "string", "maxLength": 1024},
            }
        ],
    ),
)
async def read_plan(request: Request, plan_id: PlanId) -> Response:
    """Return a plan by id, or 304 when the copy at hand is the newest version."""
    stored = await request.app.state.planner.plans.get(plan_id)
    return _respond(stored.answer(_header(request, "accept-encoding"), _header(request, "if-none-match")))


def _header(request: Request, name: str) -> bytes | None:
    found = request.headers.get(name)
    return None if found is None else found.encode("latin-1")


def _respond(answer: Answer) -> Response:
    response = Response(answer.body, status_code=answer.status)
    response.raw_headers = [*answer.headers]
    return response
