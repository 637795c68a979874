"""``/names`` and ``/references`` over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from hope_schema import (
    AliasTarget,
    Labelled,
    ModelVersion,
    ModelVersionPage,
    NamedModelPage,
    NewModelVersion,
)
from hope_schema.registry import Reference
from planner_api.devices.audit.service import actor_of
from planner_api.rollout.aliases import service
from planner_api.web.body import read_message
from planner_api.web.contract import describe
from planner_api.web.parameters import AfterName, Limit, PlainName
from planner_api.web.principal import device_of
from planner_api.web.route import StrictRoute, reply

router = APIRouter(tags=["names"], route_class=StrictRoute)

Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="The version")]
Before = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="`next` of the page before")]


@router.get("/names", openapi_extra=describe(replies={200: ("One page.", NamedModelPage)}))
async def list_names(request: Request, after: AfterName = None, limit: Limit = 100) -> Response:
    """List the named models with their aliases."""
    return reply(await service.list_names(request.app.state.planner.database, after=after or "", limit=limit))


@router.post(
    "/names/{name}/versions",
    openapi_extra=describe(
        request=NewModelVersion, replies={201: ("The version and its number.", ModelVersion)}, errors=[404]
    ),
)
async def add_version(request: Request, name: PlainName) -> Response:
    """Make a graph the next version of a named model; the first one makes the name."""
    message = await read_message(request, NewModelVersion)
    made = await service.add_version(request.app.state.planner.database, name, message, actor_of(request.scope))
    return reply(made, 201)


@router.get(
    "/names/{name}/versions", openapi_extra=describe(replies={200: ("One page.", ModelVersionPage)}, errors=[404])
)
async def list_versions(request: Request, name: PlainName, before: Before = None, limit: Limit = 100) -> Response:
    """List the versions of a named model, newest first."""
    return reply(await service.list_versions(request.app.state.planner.database, name, before=before, limit=limit))


@router.get(
    "/names/{name}/versions/{version}",
    openapi_extra=describe(replies={200: ("The version.", ModelVersion)}, errors=[404]),
)
async def read_version(request: Request, name: PlainName, version: Number) -> Response:
    """Return one version of a named model."""
    return reply(await service.get_version(request.app.state.planner.database, name, version))


@router.put(
    "/names/{name}/versions/{version}/labels",
    openapi_extra=describe(request=Labelled, replies={200: ("The version.", ModelVersion)}, errors=[404]),
)
async def label(request: Request, name: PlainName, version: Number) -> Response:
    """Replace the labels of a version."""
    message = await read_message(request, Labelled)
    database, actor = request.app.state.planner.database, actor_of(request.scope)
    return reply(await service.label(database, name, version, message.labels, actor))


@router.put(
    "/names/{name}/aliases/{alias}",
    openapi_extra=describe(
        request=AliasTarget, replies={200: ("The version that it stands for now.", ModelVersion)}, errors=[404, 409]
    ),
)
async def point(request: Request, name: PlainName, alias: PlainName) -> Response:
    """Let an alias stand for a version, at once and for everybody; a release does it in stages."""
    message = await read_message(request, AliasTarget)
    database, actor = request.app.state.planner.database, actor_of(request.scope)
    return reply(await service.point(database, name, alias, message.version, actor))


@router.delete(
    "/names/{name}/aliases/{alias}", openapi_extra=describe(replies={204: ("Dropped.", None)}, errors=[404, 409])
)
async def drop_alias(request: Request, name: PlainName, alias: PlainName) -> Response:
    """Drop an alias."""
    await service.drop_alias(request.app.state.planner.database, name, alias, actor_of(request.scope))
    return Response(status_code=204)


@router.get(
    "/references/{reference}",
    openapi_extra=describe(replies={200: ("The version that is meant.", ModelVersion)}, errors=[404]),
)
async def resolve(
    request: Request,
    reference: Annotated[
        Reference, Path(description="`classifier` (its newest version), `classifier:3`, or `classifier@production`")
    ],
) -> Response:
    """Return the version that a reference means; where a release moves an alias, the one that this device gets."""
    planner = request.app.state.planner
    return reply(await service.resolve(planner.database, reference, planner.splits, device_of(request.scope)))
