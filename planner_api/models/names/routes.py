"""``/names`` over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from hope_schema import Labelled, ModelVersion, ModelVersionPage, NamedModelPage, NewModelVersion
from planner_api.models.names import service
from planner_api.web.parameters import AfterName, Limit, PlainName
from planner_api.web.route import Request, StrictRoute

router = APIRouter(tags=["names"], route_class=StrictRoute)

Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="The version")]
Before = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="`next` of the page before")]


@router.get("/names", response_description="One page.")
async def list_names(request: Request, after: AfterName = None, limit: Limit = 100) -> NamedModelPage:
    """List the named models with their aliases."""
    return await service.list_names(request.database, after=after or "", limit=limit)


@router.post(
    "/names/{name}/versions",
    status_code=201,
    response_description="The version and its number.",
)
async def add_version(request: Request, name: PlainName, message: NewModelVersion) -> ModelVersion:
    """Make a graph the next version of a named model; the first one makes the name."""
    return await service.add_version(request.database, name, message, request.actor)


@router.get("/names/{name}/versions", response_description="One page.")
async def list_versions(
    request: Request, name: PlainName, before: Before = None, limit: Limit = 100
) -> ModelVersionPage:
    """List the versions of a named model, newest first."""
    return await service.list_versions(request.database, name, before=before, limit=limit)


@router.get("/names/{name}/versions/{version}", response_description="The version.")
async def read_version(request: Request, name: PlainName, version: Number) -> ModelVersion:
    """Return one version of a named model."""
    return await service.get_version(request.database, name, version)


@router.put("/names/{name}/versions/{version}/labels", response_description="The version.")
async def label_version(request: Request, name: PlainName, version: Number, message: Labelled) -> ModelVersion:
    """Replace the labels of a version."""
    return await service.label(request.database, name, version, message.labels, request.actor)
