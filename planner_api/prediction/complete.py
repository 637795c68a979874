"""What a profile lacks, predicted from what it has: a predictor per kind, and the rows that they fill in."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hope_schema import LatencyColumns, ModelGraph, Profile, merge, recipe_of
from hope_schema.base import MAX_FIGURE_US
from planner_api.prediction.features import Features, features
from planner_api.prediction.predictor import LEAST_SIGNATURES, Predictor, Sample

MOST_SAMPLES = 400
"""Signatures that one predictor rests on: fitting it takes a fraction of a second."""
MOST_KINDS = 32
"""Kinds of processor that are predicted, those of which most is known: each predictor holds a megabyte."""
LEAST_BESIDE = 5
"""Figures of a kind below which another kind's predictor says nothing of it either."""

Predictors = Mapping[str, Predictor]
"""By kind of processor."""
Row = tuple[str, str, float | None, int]
"""Signature, kind, microseconds (None: unsupported) and how many figures it is the median of."""


def ops_of(graphs: Iterable[ModelGraph]) -> dict[str, Features]:
    return {op.signature: features(op) for graph in graphs for op in merge(graph)}


def latencies_of(profile: Profile) -> Iterable[Row]:
    rows = profile.latencies
    return zip(rows.signature, rows.kind, rows.us, rows.count, strict=True)


def samples(rows: Iterable[Row], ops: Mapping[str, Features]) -> dict[str, list[Sample]]:
    """What was measured of ops whose features are known, by kind; of many, an even choice over the types."""
    found: dict[str, list[tuple[str, Sample]]] = defaultdict(list)
    for signature, kind, us, count in rows:
        if us is not None and signature in ops:
            found[kind].append((signature, Sample(ops[signature], us, count)))
    chosen: dict[str, list[Sample]] = {}
    for kind, known in found.items():
        # Signatures begin with types: equal steps through them in order leave out of each type alike.
        known.sort(key=lambda row: row[0])
        count = min(len(known), MOST_SAMPLES)
        chosen[kind] = [known[k * len(known) // count][1] for k in range(count)]
    return chosen


def train(known: Mapping[str, Sequence[Sample]], elsewhere: Mapping[str, Sequence[Sample]]) -> Predictors:
    """A predictor for every kind of which enough is known.

    At most ``MOST_KINDS`` are looked at. One with fewer than ``LEAST_SIGNATURES`` figures stands beside the best known
    one: the same runtime's on another SoC, else another of this one.

    Args:
        known: by kind, what was measured.
        elsewhere: by kind, what another SoC has measured with its runtime.
    """
    known = dict(sorted(known.items(), key=lambda one: (-len(one[1]), one[0]))[:MOST_KINDS])
    rich = [kind for kind in known if len(known[kind]) >= LEAST_SIGNATURES]
    found = {kind: Predictor(known[kind]) for kind in rich}
    for kind, figures in known.items():
        if kind in found or len(figures) < LEAST_BESIDE:
            continue
        other = elsewhere.get(kind, ())
        if len(other) >= LEAST_SIGNATURES:
            found[kind] = Predictor(figures, Predictor(other))
        elif rich:
            found[kind] = Predictor(figures, found[rich[0]])
    return found


def complete(profile: Profile, predictors: Predictors, ops: Mapping[str, Features]) -> Profile:
    """The profile with a predicted row for each op that it lacks.

    Nothing is predicted of a type that a kind never ran, unless no kind ran it, and nothing where the kind refused an
    op of the same types. A further recipe that it refused says nothing: it has its own choice.
    """
    measured = {(signature, kind): us for signature, kind, us, _ in latencies_of(profile)}
    refused = {
        (_types(signature), kind)
        for (signature, kind), us in measured.items()
        if us is None and recipe_of(signature)[1] is None
    }
    types = {signature: _types(signature) for signature in ops}
    found: list[tuple[str, str, float, float]] = []
    placed = {signature for (signature, _), us in measured.items() if us is not None}
    for strange in (False, True):
        for kind, predictor in predictors.items():
            wanted = [
                signature
                for signature, op in ops.items()
                if (signature, kind) not in measured
                and (types[signature], kind) not in refused
                and ((signature not in placed) if strange else predictor.knows(op.type))
            ]
            for signature, one in zip(wanted, predictor([ops[s] for s in wanted]), strict=True):
                us = min(one.us, MAX_FIGURE_US)
                found.append((signature, kind, us, min(one.spread * us, MAX_FIGURE_US)))
        placed |= {signature for signature, *_ in found}
    columns = LatencyColumns(
        signature=tuple(row[0] for row in found),
        kind=tuple(row[1] for row in found),
        us=tuple(row[2] for row in found),
        spread_us=tuple(row[3] for row in found),
        count=(1,) * len(found),
    )
    return profile.model_copy(update={"predicted": columns})


def _types(signature: str) -> str:
    return signature.rpartition(":")[0]
