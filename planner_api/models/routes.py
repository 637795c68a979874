"""Models, and their names and versions, over HTTP."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from hope_schema import (
    Labelled,
    ModelGraph,
    ModelReceipt,
    ModelVersion,
    ModelVersionPage,
    NamedModelPage,
    NewModelVersion,
)
from planner_api.db.tables import ModelRow
from planner_api.models import names, service
from planner_api.models.reading import read_graph
from planner_api.web.body import read_large
from planner_api.web.contract import header, problems, takes
from planner_api.web.parameters import AfterName, Limit, ModelHash, PlainName
from planner_api.web.route import Request, StrictRoute, reply
from planner_api.web.stored import StoredReply

router = APIRouter(tags=["models"], route_class=StrictRoute)
named = APIRouter(tags=["names"], route_class=StrictRoute)
"""What no agent asks its own planner for."""

INLINE_BYTES = 32 * 1024
"""A larger graph is read in another process: this much takes the event loop about ten milliseconds."""
_DIGEST = re.compile(r"[0-9a-f]{64}")

IDEMPOTENCY_KEY = header(
    "Idempotency-Key", "The graph's hash as its sender computed it; refused with 409 if the graph has another.", 128
)
KNOWN: dict[int | str, dict[str, Any]] = {200: {"description": "The graph was known already.", "model": ModelReceipt}}


@router.post(
    "/models",
    status_code=201,
    response_model=ModelReceipt,
    response_description="The graph is stored.",
    responses=problems(409) | KNOWN,
    openapi_extra=takes(ModelGraph, IDEMPOTENCY_KEY),
)
async def submit_model(request: Request) -> Response:
    """Make a graph known. Weights never leave the device: a graph holds topology, types and shapes."""
    graph, _ = await read_large(request, read_graph, inline=INLINE_BYTES)
    key = request.header(b"idempotency-key")
    receipt = await service.submit(
        request.database,
        graph,
        claimed_hash=key if _DIGEST.fullmatch(key) else None,
        caller=request.caller,
        quotas=request.planner.quotas,
    )
    return reply(receipt, 201 if receipt.created else 200)


@router.get("/models/{model_hash}", response_model=ModelGraph, response_description="The graph.")
async def read_model(request: Request, model_hash: ModelHash) -> Response:
    """Return the graph under a hash."""
    body = await service.read(request.database, model_hash, ModelRow.graph_zstd)
    return StoredReply(body, request.header(b"accept-encoding"))


Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="The version")]
Before = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="`next` of the page before")]


@named.get("/names", response_description="One page.")
async def list_names(request: Request, after: AfterName = None, limit: Limit = 100) -> NamedModelPage:
    """List the named models with their aliases."""
    return await names.list_names(request.database, after=after, limit=limit)


@named.post(
    "/names/{name}/versions",
    status_code=201,
    response_description="The version and its number.",
)
async def add_version(request: Request, name: PlainName, message: NewModelVersion) -> ModelVersion:
    """Make a graph the next version of a named model; the first one makes the name."""
    return await names.add_version(request.database, name, message, request.actor)


@named.get("/names/{name}/versions", response_description="One page.")
async def list_versions(
    request: Request, name: PlainName, before: Before = None, limit: Limit = 100
) -> ModelVersionPage:
    """List the versions of a named model, newest first."""
    return await names.list_versions(request.database, name, before=before, limit=limit)


@named.get("/names/{name}/versions/{version}", response_description="The version.")
async def read_version(request: Request, name: PlainName, version: Number) -> ModelVersion:
    """Return one version of a named model."""
    return await names.get_version(request.database, name, version)


@named.put("/names/{name}/versions/{version}/labels", response_description="The version.")
async def label_version(request: Request, name: PlainName, version: Number, message: Labelled) -> ModelVersion:
    """Replace the labels of a version."""
    return await names.label(request.database, name, version, message.labels, request.actor)
