"""The rules for models: a graph is stored once, under the hash that it itself gives."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from hope_schema import ModelGraph, ModelReceipt, merge
from hope_schema.hashing import digest
from planner_api.compression import unzstd, zstd
from planner_api.db.engine import Database, ReadSession
from planner_api.db.tables import ModelRow
from planner_api.errors import ApiError, model_unknown
from planner_api.models import repository
from planner_api.models.figures import Figures, figures_of


async def submit(database: Database, graph: ModelGraph, *, claimed_hash: str | None = None) -> ModelReceipt:
    """Store a graph; storing it again changes nothing.

    Args:
        database: where.
        graph: the model.
        claimed_hash: the hash its sender computed, if it said so.

    Raises:
        ApiError: 409 if the sender's hash is not this graph's, or if another graph stands under this hash.
    """
    row = await asyncio.to_thread(_row, graph)
    if claimed_hash is not None and claimed_hash != row.hash:
        raise ApiError(
            409,
            "model-conflict",
            f"the graph was sent as {claimed_hash} but hashes to {row.hash}: agent and planner differ in version, "
            "or the graph changed on its way",
        )
    async with database.write() as session:
        created = await repository.insert(session, row)
        if not created:
            stored = await repository.find(session, row.hash)
            if stored is not None and stored.graph_digest != row.graph_digest:
                raise ApiError(409, "model-conflict", f"another graph is already stored under {row.hash}")
    return ModelReceipt(model_hash=row.hash, ops=row.ops, super_ops=row.super_ops, created=created)


async def load_json(database: Database, model_hash: str) -> bytes:
    """Return a stored graph as compressed JSON. Raises ApiError 404 for an unknown hash."""
    async with database.read() as session:
        body = await repository.graph(session, model_hash)
    if body is None:
        raise model_unknown(model_hash)
    return body


async def load_figures(session: ReadSession, model_hash: str) -> Figures:
    """Return the figures a plan of the model needs. Raises ApiError 404 for an unknown hash."""
    body = await repository.figures(session, model_hash)
    if body is None:
        raise model_unknown(model_hash)
    return Figures.model_validate_json(unzstd(body))


def _row(graph: ModelGraph) -> ModelRow:
    supers = merge(graph)
    return ModelRow(
        hash=graph.model_hash,
        name=graph.name,
        ops=len(graph.ops),
        super_ops=len(supers),
        graph_zstd=zstd(graph.model_dump_json().encode()),
        graph_digest=_content_digest(graph),
        figures_zstd=zstd(figures_of(graph, supers).model_dump_json().encode()),
        created_at=datetime.now(UTC),
    )


def _content_digest(graph: ModelGraph) -> str:
    """Digest of everything but the name and the order of listing, independent of how ``model_hash`` is made."""
    content = graph.model_dump(mode="json", exclude={"name"})
    content["ops"].sort(key=lambda op: op["outputs"][0])
    content["tensors"].sort(key=lambda tensor: tensor["name"])
    return digest(content)
