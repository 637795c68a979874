"""``/plans`` over HTTP."""

import re
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from hope_schema import Fanout, FanoutRequest, PlanDiff, PlanHistory, PlanReply, PlanRequest
from planner_api.db.tables import PlanVersionRow
from planner_api.plans import ahead, history
from planner_api.plans.key import asked
from planner_api.plans.stored import matches
from planner_api.web.body import read_small
from planner_api.web.contract import answers, header, problems, takes
from planner_api.web.parameters import ModelHash
from planner_api.web.route import Request, StrictRoute, reply
from planner_api.web.stored import VARY, StoredReply

router = APIRouter(tags=["plans"], route_class=StrictRoute)
planning_ahead = APIRouter(tags=["fleet"], route_class=StrictRoute)
"""What no agent asks its own planner for."""

ID = r"^[A-Za-z0-9][A-Za-z0-9._:+@\-]*$"
PlanId = Annotated[str, Path(max_length=128, pattern=ID, description="The plan's id")]
MAX_VERSION = 2**31 - 1
HEADERS = {
    "ETag": "Weak tag of this version, the same in every content coding.",
    "Hope-Plan-Cache": "`hit`: the plan was there; `miss`: it was found for this request.",
    "Vary": "`Accept-Encoding`",
}
ANY = FanoutRequest()
POLL_S = 2
"""What ``Retry-After`` suggests between two looks at its progress."""

LOCATION = {"Location": "Where its progress stands.", "Retry-After": "Seconds until another look is worth it."}
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d+)\"?(?=$|[,;\s])")
PREFER = header("Prefer", "`wait=N`: wait up to N seconds for the optimised plan (RFC 7240).", 256)


@router.post(
    "/plans",
    response_model=PlanReply,
    responses=problems(404)
    | answers(200, "The plan.", {**HEADERS, "Preference-Applied": "`wait=N` as it was granted."}),
    openapi_extra=takes(PlanRequest, PREFER),
)
async def request_plan(request: Request) -> Response:
    """Return the plan under a key: at once, and a better one later under the same id."""
    planner = request.planner
    wait_s = min(preferred_wait(request.header(b"prefer")), planner.settings.max_wait_s)
    question = asked(await read_small(request))
    served, hit = await planner.plans.plan(*question, request.caller, request.device, wait_s)
    stored = await planner.plans.better(served, wait_s, request.receive)
    response = _respond(request, stored, hit=hit)
    if wait_s:
        response.headers["Preference-Applied"] = f"wait={wait_s:g}"
    return response


@router.get(
    "/plans/{plan_id}",
    response_model=PlanReply,
    responses=answers(200, "The newest version of the plan.", HEADERS)
    | answers(304, "The copy is the newest version.", HEADERS),
    openapi_extra=takes(None, header("If-None-Match", "The ETag of the copy at hand.", 1024)),
)
async def read_plan(
    request: Request,
    plan_id: PlanId,
    version: Annotated[int | None, Query(ge=1, le=MAX_VERSION, description="This version, not the one served")] = None,
) -> Response:
    """Return a plan by id, or 304 when the copy at hand is the version that would be returned."""
    stored = await request.planner.plans.get(plan_id, request.device, version)
    return _respond(request, stored)


@router.get("/plans/{plan_id}/versions", response_description="The versions, newest first.")
async def list_plan_versions(request: Request, plan_id: PlanId) -> PlanHistory:
    """List the versions of a plan that are kept, with what was measured of each."""
    return await history.history(request.database, plan_id)


@router.get("/plans/{plan_id}/diff", response_description="What changed.")
async def compare_plans(
    request: Request,
    plan_id: PlanId,
    before: Annotated[int | None, Query(ge=1, le=MAX_VERSION, description="A version of this plan")] = None,
    after: Annotated[int | None, Query(ge=1, le=MAX_VERSION, description="The version to compare it with")] = None,
    other: Annotated[str | None, Query(max_length=128, pattern=ID, description="The plan that `after` is of")] = None,
) -> PlanDiff:
    """Compare two versions of a plan, or two plans: ops that moved, times predicted and measured."""
    return await history.diff(request.database, plan_id, other or plan_id, before, after)


def preferred_wait(prefer: str) -> float:
    """Return N of ``wait=N`` in a ``Prefer`` header, 0 without one."""
    found = _WAIT.search(prefer.lower())
    return float(found[1]) if found else 0.0


def _respond(request: Request, stored: PlanVersionRow, *, hit: bool = True) -> Response:
    """Answer with a plan, as it is stored to who reads zstd; with 304 to a GET whose copy is this version."""
    headers = [
        (b"etag", stored.etag.encode()),
        (b"cache-control", b"private, no-cache"),
        (b"hope-plan-cache", b"hit" if hit else b"miss"),
    ]
    if request.method != "POST" and matches(request.header(b"if-none-match"), stored.etag):
        response = Response(status_code=304)
        response.raw_headers += [VARY, *headers]
        return response
    return StoredReply(stored.body_zstd, request.header(b"accept-encoding"), headers)


@planning_ahead.post(
    "/models/{model_hash}/plans",
    status_code=202,
    response_model=Fanout,
    responses=answers(202, "Queued; see `Location` for the progress.", LOCATION),
)
async def plan_ahead(request: Request, model_hash: ModelHash, message: FanoutRequest = ANY) -> Response:
    """Plan one model for every SoC and frequency the fleet knows, so that its release starts with a warm cache."""
    found = await ahead.plan_ahead(request.database, model_hash, message, request.actor)
    headers = {"Location": f"/fanouts/{found.fanout_id}", "Retry-After": str(POLL_S)}
    return reply(found, 202, headers)


@planning_ahead.get("/fanouts/{fanout_id}", response_model=Fanout, response_description="Its progress.")
async def read_progress(
    request: Request, fanout_id: Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9\-]*$")]
) -> Response:
    """Return how far a planning ahead is."""
    found = await ahead.progress(request.database, fanout_id)
    headers = {} if found.finished else {"Retry-After": str(POLL_S)}
    return reply(found, headers=headers)
