"""``/releases`` over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from hope_schema import Release, ReleasePage, ReleasePartPage, ReleaseRequest, RolloutPolicy, releases
from planner_api.devices.audit.service import actor_of
from planner_api.rollout.service import Releases
from planner_api.web.body import read_message
from planner_api.web.contract import problems, takes
from planner_api.web.parameters import After, FewRows, Limit, ModelHash
from planner_api.web.route import StrictRoute

router = APIRouter(tags=["releases"], route_class=StrictRoute)

ReleaseId = Annotated[releases.ReleaseId, Path(description="The release's id")]
Before = Annotated[releases.ReleaseId | None, Query(description="`next` of the page before")]


def _releases(request: Request) -> Releases:
    found: Releases = request.app.state.planner.releases
    return found


@router.put(
    "/models/{model_hash}/rollout",
    status_code=204,
    response_description="So it is from now on.",
    responses=problems(404),
    openapi_extra=takes(RolloutPolicy),
)
async def set_rollout(request: Request, model_hash: ModelHash) -> None:
    """Say how new versions of a model's plans reach devices: at once, when an admin releases them, or by stages."""
    message = await read_message(request, RolloutPolicy)
    await _releases(request).set_rollout(model_hash, message.rollout, actor_of(request.scope))


@router.get("/releases", response_description="One page.", responses=problems(404))
async def list_releases(request: Request, before: Before = None, limit: FewRows = 20) -> ReleasePage:
    """List releases, newest first."""
    return await _releases(request).page(before=before, limit=limit)


@router.post(
    "/releases",
    status_code=201,
    response_description="It is under way.",
    responses=problems(404, 409),
    openapi_extra=takes(ReleaseRequest),
)
async def begin_release(request: Request) -> Release:
    """Begin a release: what is new of a model goes out in stages."""
    message = await read_message(request, ReleaseRequest)
    return await _releases(request).begin(message, actor_of(request.scope))


@router.get("/releases/{release_id}", response_description="The release.", responses=problems(404))
async def read_release(request: Request, release_id: ReleaseId) -> Release:
    """Return a release and how it goes."""
    return await _releases(request).get(release_id)


@router.get("/releases/{release_id}/parts", response_description="One page.", responses=problems(404))
async def list_release_parts(
    request: Request, release_id: ReleaseId, after: After = None, limit: Limit = 100
) -> ReleasePartPage:
    """List the parts of a release, with what devices reported of each."""
    return await _releases(request).parts(release_id, after=after or "", limit=limit)


@router.post(
    "/releases/{release_id}/pause", response_description="The release as it is now.", responses=problems(404, 409)
)
async def pause_release(request: Request, release_id: ReleaseId) -> Release:
    """Stay at this stage; harm still takes the release back."""
    return await _releases(request).act(release_id, "pause", actor_of(request.scope))


@router.post(
    "/releases/{release_id}/resume", response_description="The release as it is now.", responses=problems(404, 409)
)
async def resume_release(request: Request, release_id: ReleaseId) -> Release:
    """Go on with a release that was paused."""
    return await _releases(request).act(release_id, "resume", actor_of(request.scope))


@router.post(
    "/releases/{release_id}/approve", response_description="The release as it is now.", responses=problems(404, 409)
)
async def approve_release(request: Request, release_id: ReleaseId) -> Release:
    """Go to the next stage now; from the last one, end the release."""
    return await _releases(request).act(release_id, "approve", actor_of(request.scope))


@router.post(
    "/releases/{release_id}/rollback", response_description="The release as it is now.", responses=problems(404, 409)
)
async def roll_back_release(request: Request, release_id: ReleaseId) -> Release:
    """Return to the version before, also after the release has ended."""
    return await _releases(request).act(release_id, "rollback", actor_of(request.scope))
