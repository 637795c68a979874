"""``/models`` over HTTP."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Response

from hope_schema import ModelGraph, ModelReceipt
from planner_api.models import repository, service
from planner_api.models.reading import read_graph
from planner_api.web.body import read_large
from planner_api.web.contract import header, problems, takes
from planner_api.web.parameters import ModelHash
from planner_api.web.route import Request, StrictRoute, reply
from planner_api.web.stored import StoredReply

router = APIRouter(tags=["models"], route_class=StrictRoute)

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
    key = request.headers.get("idempotency-key", "")
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
    body = await service.read(request.database, model_hash, repository.graph)
    return StoredReply(body, request.headers.get("accept-encoding", ""))
