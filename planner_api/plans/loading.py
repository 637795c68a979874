"""What a plan is made of, read and bounded: no device's models and processors together fill anybody's memory."""

from __future__ import annotations

import asyncio
import math

from hope_schema import ModelGraph, PlanRequest, Profile
from hope_schema.base import MAX_OPS
from hope_schema.plan import CUTTING
from planner_api.compression import unzstd
from planner_api.db.engine import Database
from planner_api.errors import InvalidError, model_unknown, profile_unknown
from planner_api.models import repository as models
from planner_api.profiles import repository as profile_rows
from planner_api.profiles.predictions import Predictions

MOST_PRICES = 64_000_000
"""Prices of moves, one per tensor and pair of processors or the host, that a problem may have: 512 MB as an array."""
PRICES_AT_ONCE = 4_000_000
"""Those of a problem that is planned in a process that serves others: of 14 000 tensors on 15 processors."""


class TooLargeError(InvalidError):
    """More ops than a plan may hold, or more ``prices`` than wanted."""

    def __init__(self, detail: str, prices: float = math.inf) -> None:
        super().__init__("unplannable", detail)
        self.prices = prices


async def load_problem(
    database: Database, predictions: Predictions, request: PlanRequest, most_prices: int = MOST_PRICES
) -> tuple[tuple[ModelGraph, ...], Profile]:
    """Return what a plan is made of: a graph per job, and the profile with predictions for what it lacks.

    Raises:
        NotFoundError: an unknown model or SoC.
        TooLargeError: more ops than a plan may hold, or more than so many prices.
    """
    hashes = [job.model_hash for job in request.jobs]
    async with database.read() as session:
        ops = await models.super_ops(session, hashes)
        for model_hash in hashes:
            if model_hash not in ops:
                raise model_unknown(model_hash)
        if (total := sum(ops[model_hash] for model_hash in hashes)) > MAX_OPS:
            raise TooLargeError(f"a plan holds {MAX_OPS} ops, these networks have {total}")
        graphs = [await models.graph(session, model_hash) or b"" for model_hash in hashes]
        found = await profile_rows.current(session, request.soc, request.frequency)
    if found is None:
        raise profile_unknown(request.soc, request.frequency)
    networks, profile = await asyncio.to_thread(_parse, graphs, found[1])
    processors = len(profile.processors if request.processors is None else request.processors)
    prices = sum(len(network.tensors) for network in networks) * (processors + 1) ** 2
    if prices > most_prices:
        what = f"{total} ops on {processors} processors"
        raise TooLargeError(f"a plan of {what} has {prices} prices of moves, at most {MOST_PRICES} are planned", prices)
    parts = request.method in CUTTING and len(networks) == 1 and len(profile.processors) > 1
    return networks, await predictions.complete(networks, profile, parts=parts)


def _parse(graphs: list[bytes], profile: bytes) -> tuple[tuple[ModelGraph, ...], Profile]:
    read = {graph: ModelGraph.model_validate_json(unzstd(graph)) for graph in graphs}
    return tuple(read[graph] for graph in graphs), Profile.model_validate_json(unzstd(profile))
