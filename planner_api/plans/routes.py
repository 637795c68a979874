"""``/plans`` over HTTP. Cached plans never come this far: ``plans/front.py`` answers them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from hope_schema import PlanReply, PlanRequest
from planner_api.http.body import read_both
from planner_api.http.contract import describe
from planner_api.plans.stored import StoredPlan, choose_coding, matches, plan_headers
from planner_api.plans.waits import hang_up, preferred_wait

router = APIRouter(tags=["plans"])

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
    message, body = await read_both(request, PlanRequest)
    wait_s = min(preferred_wait(request.headers.get("prefer", "")), planner.settings.max_wait_s)
    served = await planner.plans.plan(message)
    stored = served.stored
    if planner.front is not None and body.encoding == "identity":
        planner.front.learn(body.raw, stored.plan_id)
    if planner.plans.waits is not None:
        with hang_up(request.receive) as hung_up:
            stored = await planner.plans.waits.better(stored, wait_s, hung_up)
    response = plan_response(request, stored, hit=served.hit)
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
    return plan_response(request, stored, hit=True)


def plan_response(request: Request, stored: StoredPlan, *, hit: bool) -> Response:
    """Answer with the stored bytes, or with 304 to a GET whose copy is the newest."""
    accepted = request.headers.get("accept-encoding")
    coding = choose_coding(None if accepted is None else accepted.encode("latin-1"))
    headers = plan_headers(stored, coding, hit=hit)
    if hit:
        request.app.state.planner.plan_cache.hits[stored.plan_id] += 1
    known = request.headers.get("if-none-match")
    if request.method == "GET" and known is not None and matches(known.encode("latin-1"), stored.etag):
        return Response(status_code=304, headers=headers)
    if coding != "identity":
        headers["content-encoding"] = coding
    return Response(stored.body(coding), headers=headers, media_type="application/json")
