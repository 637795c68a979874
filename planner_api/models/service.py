"""The rules for models: a graph is stored once, under the hash that it itself gives."""

from typing import Any

import msgspec

from hope_schema import ModelReceipt
from planner_api.db.engine import Database
from planner_api.db.tables import ModelRow
from planner_api.db.upsert import insert_or_ignore
from planner_api.devices.quota import Quotas
from planner_api.errors import ConflictError, unknown
from planner_api.models import repository
from planner_api.models.reading import ReadGraph
from planner_api.web.principal import ANONYMOUS, Principal


async def submit(
    database: Database,
    graph: ReadGraph,
    *,
    quotas: Quotas,
    claimed_hash: str | None = None,
    caller: Principal = ANONYMOUS,
) -> ModelReceipt:
    """Store a graph; storing it again changes nothing. ``claimed_hash`` is what its sender computed, if it said so.

    Raises:
        ConflictError: the sender's hash is not this graph's, or another graph stands under this hash.
        TooOftenError: a caller beyond a quota.
    """
    if claimed_hash is not None and claimed_hash != graph.hash:
        raise ConflictError(
            "model-conflict",
            f"the graph was sent as {claimed_hash} but hashes to {graph.hash}: agent and planner differ in version, "
            "or the graph changed on its way",
        )
    async with database.write() as session:
        values = msgspec.structs.asdict(graph)
        signatures = values.pop("signatures")
        created = await insert_or_ignore(session, ModelRow, values, ["hash"])
        await repository.insert_features(session, signatures)
        if created:
            size = len(graph.graph_zstd) + len(graph.figures_zstd)
            await quotas.spend(session, caller, models=1, model_bytes=size)
        elif (await session.get_one(ModelRow, graph.hash)).graph_digest != graph.graph_digest:
            raise ConflictError("model-conflict", f"another graph is already stored under {graph.hash}")
    return ModelReceipt(model_hash=graph.hash, ops=graph.ops, super_ops=graph.super_ops, created=created)


async def read(database: Database, model_hash: str, column: Any) -> bytes:
    """Return a compressed column of a model. Raises NotFoundError for an unknown hash."""
    async with database.read() as session:
        if (body := await repository.body(session, model_hash, column)) is None:
            raise unknown("model", model_hash)
    return body
