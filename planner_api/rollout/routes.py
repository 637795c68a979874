"""Releases, aliases and ``/references`` over HTTP."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from hope_schema import (
    AliasTarget,
    ModelVersion,
    Release,
    ReleasePage,
    ReleasePartPage,
    ReleaseRequest,
    RolloutPolicy,
    releases,
)
from hope_schema.registry import Reference
from planner_api.rollout import aliases
from planner_api.rollout.service import Action, Releases
from planner_api.web.contract import problems
from planner_api.web.parameters import After, FewRows, Limit, ModelHash, PlainName
from planner_api.web.route import Request, StrictRoute

router = APIRouter(tags=["releases"], route_class=StrictRoute)
named = APIRouter(tags=["names"], route_class=StrictRoute)

ReleaseId = Annotated[releases.ReleaseId, Path(description="The release's id")]
Before = Annotated[releases.ReleaseId | None, Query(description="`next` of the page before")]


def _releases(request: Request) -> Releases:
    found: Releases = request.planner.releases
    return found


@router.put(
    "/models/{model_hash}/rollout",
    status_code=204,
    response_description="So it is from now on.",
)
async def set_rollout(request: Request, model_hash: ModelHash, message: RolloutPolicy) -> None:
    """Say how new versions of a model's plans reach devices: at once, when an admin releases them, or by stages."""
    await _releases(request).set_rollout(model_hash, message.rollout, request.actor)


@router.get("/releases", response_description="One page.", responses=problems(404))
async def list_releases(request: Request, before: Before = None, limit: FewRows = 20) -> ReleasePage:
    """List releases, newest first."""
    return await _releases(request).page(before=before, limit=limit)


@router.post("/releases", status_code=201, response_description="It is under way.", responses=problems(404, 409))
async def begin_release(request: Request, message: ReleaseRequest) -> Release:
    """Begin a release: what is new of a model goes out in stages."""
    return await _releases(request).begin(message, request.actor)


@router.get("/releases/{release_id}", response_description="The release.")
async def read_release(request: Request, release_id: ReleaseId) -> Release:
    """Return a release and how it goes."""
    return await _releases(request).get(release_id)


@router.get("/releases/{release_id}/parts", response_description="One page.")
async def list_release_parts(
    request: Request, release_id: ReleaseId, after: After = None, limit: Limit = 100
) -> ReleasePartPage:
    """List the parts of a release, with what devices reported of each."""
    return await _releases(request).parts(release_id, after=after, limit=limit)


def _add_action(action: Action, name: str, words: str) -> None:
    async def act(request: Request, release_id: ReleaseId) -> Release:
        return await _releases(request).act(release_id, action, request.actor)

    router.add_api_route(
        f"/releases/{{release_id}}/{action}",
        act,
        methods=["POST"],
        name=name,
        description=words,
        response_description="The release as it is now.",
        responses=problems(409),
    )


_add_action("pause", "pause_release", "Stay at this stage; harm still takes the release back.")
_add_action("resume", "resume_release", "Go on with a release that was paused.")
_add_action("approve", "approve_release", "Go to the next stage now; from the last one, end the release.")
_add_action(
    "rollback",
    "roll_back_release",
    "Return to the version before, or on to what came meanwhile and does not wait, also after the release has ended.",
)


@named.put(
    "/names/{name}/aliases/{alias}",
    response_description="The version that it stands for now.",
    responses=problems(409),
)
async def point_alias(request: Request, name: PlainName, alias: PlainName, message: AliasTarget) -> ModelVersion:
    """Let an alias stand for a version, at once and for everybody; a release does it in stages."""
    return await aliases.point(request.database, name, alias, message.version, request.actor)


@named.delete(
    "/names/{name}/aliases/{alias}", status_code=204, response_description="Dropped.", responses=problems(409)
)
async def drop_alias(request: Request, name: PlainName, alias: PlainName) -> None:
    """Drop an alias."""
    await aliases.drop_alias(request.database, name, alias, request.actor)


@named.get("/references/{reference}", response_description="The version that is meant.")
async def resolve_reference(
    request: Request,
    reference: Annotated[
        Reference, Path(description="`classifier` (its newest version), `classifier:3`, or `classifier@production`")
    ],
) -> ModelVersion:
    """Return the version that a reference means; where a release moves an alias, the one that this device gets."""
    return await aliases.resolve(request.database, reference, request.planner.splits, request.device)
