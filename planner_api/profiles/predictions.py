"""Predictors per profile, trained in a thread once per version, for models that rest on what nobody measured."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hope_schema import ModelGraph, Profile, merge
from planner_api.compression import unzstd
from planner_api.db.engine import Database
from planner_api.models import repository as models
from planner_api.models.features import read
from planner_api.models.figures import Latency
from planner_api.profiles import repository
from planner_api.shared import SharedCalls

if TYPE_CHECKING:
    from planner_api.prediction.complete import Predictors
    from planner_api.prediction.features import Features

REMEMBERED = 16
"""Profile versions whose predictors stay in memory."""
MOST_ASKED = 300
"""Ops that are put in order by what measuring them would tell; the others follow as they come."""


class Predictions:
    """Figures that nobody measured, of all SoCs and frequencies."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._trained: OrderedDict[tuple[str, str, int], Predictors] = OrderedDict()
        self._training: SharedCalls[Predictors] = SharedCalls()

    async def complete(self, graphs: Sequence[ModelGraph], profile: Profile, *, parts: bool = False) -> Profile:
        """The profile with predicted rows for what these networks need and it lacks, as far as enough is known.

        With ``parts`` also for parts of their ops.
        """
        # NOTE: imported here, as NumPy is, so that a process that only serves plans never loads it.
        from planner_api.prediction.complete import complete, ops_of

        ops = await asyncio.to_thread(ops_of, graphs)
        kinds = {processor.kind for processor in profile.processors}
        rows = profile.latencies
        measured = set(zip(rows.signature, rows.kind, strict=True))
        lacking = any((signature, kind) not in measured for signature in ops for kind in kinds)
        if not lacking and not parts:
            return profile
        predictors = await self._of(profile)
        if predictors and lacking:
            profile = await asyncio.to_thread(complete, profile, predictors, ops)
        return await asyncio.to_thread(_with_parts, graphs, profile, predictors) if predictors and parts else profile

    async def ordered(
        self, body_zstd: bytes, unknown: Sequence[Latency], signatures: Mapping[str, int]
    ) -> list[Latency]:
        """Latencies that a device is to measure, the most telling first.

        Args:
            body_zstd: the profile's newest version.
            unknown: what is asked for.
            signatures: how often the model runs each op.
        """
        from planner_api.prediction.asking import most_telling

        profile = await asyncio.to_thread(_parse, body_zstd)
        predictors = await self._of(profile)
        wanted = dict.fromkeys(signature for signature, _ in unknown)
        async with self._database.read() as session:
            stored = await models.features(session, list(wanted))
        ops = {signature: read(body) for signature, body in stored.items()}
        open_kinds = [predictors[kind] for kind in dict.fromkeys(kind for _, kind in unknown) if kind in predictors]
        if not ops or not open_kinds:
            return list(unknown)
        counts: dict[Features, int] = {}
        for signature, op in list(ops.items())[:MOST_ASKED]:
            counts[op] = counts.get(op, 0) + signatures.get(signature, 1)
        order = await asyncio.to_thread(most_telling, open_kinds, counts, len(counts))
        rank = {op: place for place, op in enumerate(order)}
        last = len(rank)
        return sorted(unknown, key=lambda key: rank.get(ops[key[0]], last) if key[0] in ops else last)

    async def _of(self, profile: Profile) -> Predictors:
        key = (profile.soc, profile.frequency, profile.version)
        if key not in self._trained:
            self._trained[key] = await self._training.get(key, lambda: self._train(profile))
            if len(self._trained) > REMEMBERED:
                self._trained.popitem(last=False)
        return self._trained[key]

    async def _train(self, profile: Profile) -> Predictors:
        from planner_api.prediction.complete import LEAST_BESIDE, samples, train
        from planner_api.prediction.predictor import LEAST_SIGNATURES

        ops = await self._features(profile)
        counts = [len(known) for known in (await asyncio.to_thread(samples, profile, ops)).values()]
        elsewhere = {}
        if any(LEAST_BESIDE <= count < LEAST_SIGNATURES for count in counts):
            async with self._database.read() as session:
                body = await repository.richest(session, besides=profile.soc)
            if body is not None:
                other = await asyncio.to_thread(_parse, body)
                known = await asyncio.to_thread(samples, other, await self._features(other))
                runtimes = {processor.kind: processor.runtime for processor in other.processors}
                for kind, figures in sorted(known.items(), key=lambda one: len(one[1])):
                    elsewhere[runtimes[kind]] = figures
        return await asyncio.to_thread(train, profile, ops, elsewhere)

    async def _features(self, profile: Profile) -> dict[str, Features]:
        async with self._database.read() as session:
            stored = await models.features(session, list(dict.fromkeys(profile.latencies.signature)))
        return {signature: read(body) for signature, body in stored.items()}


def _with_parts(graphs: Sequence[ModelGraph], profile: Profile, predictors: Predictors) -> Profile:
    from planner_api.prediction.parts import predicted_parts

    supers = [op for graph in graphs for op in merge(graph)]
    return profile.model_copy(update={"parts": predicted_parts(supers, predictors)})


def _parse(body_zstd: bytes) -> Profile:
    return Profile.model_validate_json(unzstd(body_zstd))
