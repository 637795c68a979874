"""Predictors per profile, trained in a thread once per version, for models that rest on what nobody measured."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
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
    from planner_api.prediction.predictor import Sample
    from planner_api.profiles.folding import Estimates
    from planner_api.profiles.plausibility import Reference
    from planner_api.profiles.statistics import Statistics

REMEMBERED, REMEMBERED_BYTES = 16, 64 * 2**20
"""Profile versions whose predictors stay in memory in any case, and bytes within which more of them do: a release asks
for every SoC's once per model, and to train them anew takes ten times as long as all else before a solve."""
MOST_ASKED = 300
"""Ops that are put in order by what measuring them would tell; the others follow as they come."""
REMEMBERED_REFERENCES = 8
"""Profiles of which it stays in memory what their agreed figures predict ..."""
LEARNT_ANEW = 0.1
"""... until there are more or fewer of them by this fraction."""


class Predictions:
    """Figures that nobody measured, of all SoCs and frequencies."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._trained: OrderedDict[tuple[str, str, int], Predictors] = OrderedDict()
        self._training: SharedCalls[Predictors] = SharedCalls()
        self._references: OrderedDict[int, Reference] = OrderedDict()

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
        """Latencies that a device is to measure, the most telling first; ``signatures``: how often each op runs."""
        from planner_api.prediction.asking import most_telling

        profile = await asyncio.to_thread(_parse, body_zstd)
        predictors = await self._of(profile)
        ops = await self._features(signature for signature, _ in unknown)
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

    async def doubt(self, profile_id: int, statistics: Statistics, found: Estimates) -> None:
        """Mark which figures of a profile are held back until a second device says them; none may fold meanwhile."""
        from planner_api.profiles.plausibility import Reference, Standing

        statistics.doubted = True
        votes, moves = statistics.latencies, statistics.transfers
        latencies, transfers = Standing.of(votes, found["latencies"][0]), Standing.of(moves, found["transfers"][0])
        if not (latencies.open.any() or transfers.open.any()):
            votes.held[:], moves.held[:] = False, False
            return
        agreed = int(latencies.agreed.sum() + transfers.agreed.sum())
        reference = self._references.pop(profile_id, None)
        if reference is not None and abs(agreed - reference.agreed) > LEARNT_ANEW * reference.agreed:
            reference = None
        asked = latencies.open if reference is not None else latencies.open | latencies.agreed
        ops = await self._features(key[0] for key, wanted in zip(votes.keys, asked.tolist(), strict=True) if wanted)
        if reference is None:
            reference = await asyncio.to_thread(Reference, statistics, latencies, transfers, ops)
        await asyncio.to_thread(reference.hold_back, statistics, latencies, transfers, ops)
        self._references[profile_id] = reference
        if len(self._references) > REMEMBERED_REFERENCES:
            self._references.popitem(last=False)

    async def _of(self, profile: Profile) -> Predictors:
        key = (profile.soc, profile.frequency, profile.version)
        if key not in self._trained:
            self._trained[key] = await self._training.get(key, lambda: self._train(profile))
            while len(self._trained) > REMEMBERED and _bytes(self._trained.values()) > REMEMBERED_BYTES:
                self._trained.popitem(last=False)
        return self._trained[key]

    async def _train(self, profile: Profile) -> Predictors:
        from planner_api.prediction.complete import LEAST_BESIDE, train
        from planner_api.prediction.predictor import LEAST_SIGNATURES

        known, elsewhere = await self._samples(profile), {}
        if any(LEAST_BESIDE <= len(figures) < LEAST_SIGNATURES for figures in known.values()):
            async with self._database.read() as session:
                body = await repository.richest(session, besides=profile.soc)
            if body is not None:
                other = await asyncio.to_thread(_parse, body)
                runtimes = {processor.kind: processor.runtime for processor in other.processors}
                theirs = sorted((await self._samples(other)).items(), key=lambda one: len(one[1]))
                by_runtime = {runtimes[kind]: figures for kind, figures in theirs}
                elsewhere = {
                    processor.kind: by_runtime[processor.runtime]
                    for processor in profile.processors
                    if processor.runtime in by_runtime
                }
        return await asyncio.to_thread(train, known, elsewhere)

    async def _samples(self, profile: Profile) -> dict[str, list[Sample]]:
        from planner_api.prediction.complete import latencies_of, samples

        ops = await self._features(profile.latencies.signature)
        return await asyncio.to_thread(samples, latencies_of(profile), ops)

    async def _features(self, signatures: Iterable[str]) -> dict[str, Features]:
        async with self._database.read() as session:
            stored = await models.features(session, list(dict.fromkeys(signatures)))
        return await asyncio.to_thread(lambda: {signature: read(body) for signature, body in stored.items()})


def _bytes(trained: Iterable[Predictors]) -> int:
    return sum(predictor.bytes for predictors in trained for predictor in predictors.values())


def _with_parts(graphs: Sequence[ModelGraph], profile: Profile, predictors: Predictors) -> Profile:
    from planner_api.prediction.parts import predicted_parts

    supers = [op for graph in graphs for op in merge(graph)]
    return profile.model_copy(update={"parts": predicted_parts(supers, predictors)})


def _parse(body_zstd: bytes) -> Profile:
    return Profile.model_validate_json(unzstd(body_zstd))
