"""Predictors per profile, trained once per version, for models that rest on what nobody measured. Pure: no SQL."""

import threading
from collections.abc import Mapping, Sequence
from itertools import product

from cachetools import LRUCache

from hope_schema import ModelGraph, Profile, merge, recipe_of
from planner_api.compression import loaded
from planner_api.models.figures import Latency
from planner_api.prediction.asking import most_telling
from planner_api.prediction.complete import LEAST_BESIDE, Predictors, complete, latencies_of, ops_of, samples, train
from planner_api.prediction.features import Features
from planner_api.prediction.parts import predicted_parts
from planner_api.prediction.predictor import LEAST_SIGNATURES, Sample
from planner_api.profiles.facts import Facts
from planner_api.profiles.folding import Estimates
from planner_api.profiles.plausibility import Reference, agreed, standings
from planner_api.profiles.statistics import Statistics

REMEMBERED_BYTES = 128 * 2**20
"""Predictors that stay in memory, those of one profile version together: a release asks for every SoC's once per model,
and to train them anew takes ten times as long as all else before a solve."""
MOST_ASKED = 300
"""Ops that are put in order by what measuring them would tell; the others follow as they come."""
REMEMBERED_REFERENCES = 8
"""Profiles of which it stays in memory what their agreed figures predict ..."""
LEARNT_ANEW = 0.1
"""... until there are more or fewer of them by this fraction."""


class Predictions:
    """Figures that nobody measured, of all SoCs and frequencies. For one process; threads take turns."""

    def __init__(self) -> None:
        self._trained: LRUCache[tuple[str, str, int], Predictors] = LRUCache(REMEMBERED_BYTES, getsizeof=_bytes)
        self._references: LRUCache[int, Reference] = LRUCache(REMEMBERED_REFERENCES)
        self._turn = threading.Lock()

    def complete(self, graphs: Sequence[ModelGraph], profile: Profile, facts: Facts, *, parts: bool = False) -> Profile:
        """The profile with predicted rows for what these networks need and it lacks, as far as enough is known.

        With ``parts`` also for parts of their ops.
        """
        supers = [op for graph in graphs for op in merge(graph)]
        kinds = {processor.kind for processor in profile.processors}
        rows = profile.latencies
        measured = set(zip(rows.signature, rows.kind, strict=True))
        lacking = not measured.issuperset(product({op.signature for op in supers}, kinds))
        if not lacking and not parts:
            return profile
        predictors = self._of(profile, facts)
        if predictors and lacking:
            profile = complete(profile, predictors, ops_of(graphs))
        if predictors and parts:
            profile = profile.model_copy(update={"parts": predicted_parts(supers, predictors)})
        return profile

    def ordered(
        self, body_zstd: bytes, unknown: Sequence[Latency], signatures: Mapping[str, int], facts: Facts
    ) -> list[Latency]:
        """Latencies that a device is to measure, the most telling first; ``signatures``: how often each op runs."""
        predictors = self._of(loaded(Profile, body_zstd), facts)
        ops = facts.features(signature for signature, _ in unknown)
        open_kinds = [predictors[kind] for kind in dict.fromkeys(kind for _, kind in unknown) if kind in predictors]
        if not ops or not open_kinds:
            return list(unknown)
        counts: dict[Features, int] = {}
        for signature, op in list(ops.items())[:MOST_ASKED]:
            counts[op] = counts.get(op, 0) + signatures.get(signature, 1)
        order = most_telling(open_kinds, counts, len(counts))
        rank = {op: place for place, op in enumerate(order)}
        last = len(rank)
        return sorted(unknown, key=lambda key: rank.get(ops[key[0]], last) if key[0] in ops else last)

    def doubt(self, profile_id: int, statistics: Statistics, found: Estimates, facts: Facts) -> None:
        """Mark which figures of a profile are held back until a second device says them."""
        standing = standings(statistics, found)
        if not any(family.open.any() for family in standing.values()):
            for name in standing:
                statistics.families[name].held[:] = False
            return
        latencies, reference = standing["latencies"], self._references.get(profile_id)
        if reference is not None and abs(agreed(standing) - reference.agreed) > LEARNT_ANEW * reference.agreed:
            reference = None
        asked = latencies.open if reference is not None else latencies.open | latencies.agreed
        ops = facts.features(
            recipe_of(key[0])[0]
            for key, wanted in zip(statistics.latencies.keys, asked.tolist(), strict=True)
            if wanted
        )
        if reference is None:
            reference = Reference(statistics, standing, ops)
        reference.hold_back(statistics, standing, ops)
        self._references[profile_id] = reference

    def _of(self, profile: Profile, facts: Facts) -> Predictors:
        key = (profile.soc, profile.frequency, profile.version)
        with self._turn:
            if key not in self._trained:
                self._trained[key] = _train(profile, facts)
            return self._trained[key]


def _train(profile: Profile, facts: Facts) -> Predictors:
    known, elsewhere = _samples(profile, facts), {}
    if any(LEAST_BESIDE <= len(figures) < LEAST_SIGNATURES for figures in known.values()):
        body = facts.richest(besides=profile.soc)
        if body is not None:
            other = loaded(Profile, body)
            runtimes = {processor.kind: processor.runtime for processor in other.processors}
            theirs = sorted(_samples(other, facts).items(), key=lambda one: (len(one[1]), one[0]))
            by_runtime = {runtimes[kind]: figures for kind, figures in theirs}
            elsewhere = {
                processor.kind: by_runtime[processor.runtime]
                for processor in profile.processors
                if processor.runtime in by_runtime
            }
    return train(known, elsewhere)


def _samples(profile: Profile, facts: Facts) -> dict[str, list[Sample]]:
    return samples(latencies_of(profile), facts.features(profile.latencies.signature))


def _bytes(predictors: Predictors) -> int:
    return sum(predictor.bytes for predictor in predictors.values())
