"""Aliases and ``/references`` over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from hope_schema import AliasTarget, ModelVersion
from hope_schema.registry import Reference
from planner_api.rollout.aliases import service
from planner_api.web.contract import problems
from planner_api.web.parameters import PlainName
from planner_api.web.route import Request, StrictRoute

router = APIRouter(tags=["names"], route_class=StrictRoute)


@router.put(
    "/names/{name}/aliases/{alias}",
    response_description="The version that it stands for now.",
    responses=problems(409),
)
async def point_alias(request: Request, name: PlainName, alias: PlainName, message: AliasTarget) -> ModelVersion:
    """Let an alias stand for a version, at once and for everybody; a release does it in stages."""
    return await service.point(request.database, name, alias, message.version, request.actor)


@router.delete(
    "/names/{name}/aliases/{alias}", status_code=204, response_description="Dropped.", responses=problems(409)
)
async def drop_alias(request: Request, name: PlainName, alias: PlainName) -> None:
    """Drop an alias."""
    await service.drop_alias(request.database, name, alias, request.actor)


@router.get("/references/{reference}", response_description="The version that is meant.")
async def resolve_reference(
    request: Request,
    reference: Annotated[
        Reference, Path(description="`classifier` (its newest version), `classifier:3`, or `classifier@production`")
    ],
) -> ModelVersion:
    """Return the version that a reference means; where a release moves an alias, the one that this device gets."""
    return await service.resolve(request.database, reference, request.planner.splits, request.device)
