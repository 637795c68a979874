"""``/releases`` over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from hope_schema import Release, ReleasePage, ReleasePartPage, ReleaseRequest, RolloutPolicy, releases
from planner_api.devices.audit.service import actor_of
from planner_api.rollout.service import Releases
from planner_api.web.body import read_message
from planner_api.web.contract import describe
from planner_api.web.parameters import After, FewRows, Limit, ModelHash
from planner_api.web.route import StrictRoute, reply

router = APIRouter(tags=["releases"], route_class=StrictRoute)

ReleaseId = Annotated[releases.ReleaseId, Path(description="The release's id")]
Before = Annotated[releases.ReleaseId | None, Query(description="`next` of the page before")]


def _releases(request: Request) -> Releases:
    found: Releases = request.app.state.planner.releases
    return found


@router.put(
    "/models/{model_hash}/rollout",
    openapi_extra=describe(request=RolloutPolicy, replies={204: ("So it is from now on.", None)}, errors=[404]),
)
async def set_rollout(request: Request, model_hash: ModelHash) -> Response:
    """Say how new versions of a model's plans reach devices: at once, when an admin releases them, or by stages."""
    message = await read_message(request, RolloutPolicy)
    await _releases(request).set_rollout(model_hash, message.rollout, actor_of(request.scope))
    return Response(status_code=204)


@router.get("/releases", openapi_extra=describe(replies={200: ("One page.", ReleasePage)}, errors=[404]))
async def list_releases(request: Request, before: Before = None, limit: FewRows = 20) -> Response:
    """List releases, newest first."""
    return reply(await _releases(request).page(before=before, limit=limit))


@router.post(
    "/releases",
    openapi_extra=describe(request=ReleaseRequest, replies={201: ("It is under way.", Release)}, errors=[404, 409]),
)
async def begin_release(request: Request) -> Response:
    """Begin a release: what is new of a model goes out in stages."""
    message = await read_message(request, ReleaseRequest)
    return reply(await _releases(request).begin(message, actor_of(request.scope)), 201)


@router.get("/releases/{release_id}", openapi_extra=describe(replies={200: ("The release.", Release)}, errors=[404]))
async def read_release(request: Request, release_id: ReleaseId) -> Response:
    """Return a release and how it goes."""
    return reply(await _releases(request).get(release_id))


@router.get(
    "/releases/{release_id}/parts", openapi_extra=describe(replies={200: ("One page.", ReleasePartPage)}, errors=[404])
)
async def list_release_parts(
    request: Request, release_id: ReleaseId, after: After = None, limit: Limit = 100
) -> Response:
    """List the parts of a release, with what devices reported of each."""
    return reply(await _releases(request).parts(release_id, after=after or "", limit=limit))


_ACTED = describe(replies={200: ("The release as it is now.", Release)}, errors=[404, 409])


@router.post("/releases/{release_id}/pause", openapi_extra=_ACTED)
async def pause_release(request: Request, release_id: ReleaseId) -> Response:
    """Stay at this stage; harm still takes the release back."""
    return reply(await _releases(request).act(release_id, "pause", actor_of(request.scope)))


@router.post("/releases/{release_id}/resume", openapi_extra=_ACTED)
async def resume_release(request: Request, release_id: ReleaseId) -> Response:
    """Go on with a release that was paused."""
    return reply(await _releases(request).act(release_id, "resume", actor_of(request.scope)))


@router.post("/releases/{release_id}/approve", openapi_extra=_ACTED)
async def approve_release(request: Request, release_id: ReleaseId) -> Response:
    """Go to the next stage now; from the last one, end the release."""
    return reply(await _releases(request).act(release_id, "approve", actor_of(request.scope)))


@router.post("/releases/{release_id}/rollback", openapi_extra=_ACTED)
async def roll_back_release(request: Request, release_id: ReleaseId) -> Response:
    """Return to the version before, also after the release has ended."""
    return reply(await _releases(request).act(release_id, "rollback", actor_of(request.scope)))
