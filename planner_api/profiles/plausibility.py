"""Which figures wait for a second voice: those that no two devices agree on, and what is agreed on does not bear out.

A latency is compared with what a predictor of its kind says that rests on agreed figures alone
(``planner_api.prediction``), a transfer with a line through those of its direction. Further from it than ``FACTOR``,
and than its uncertainty explains, a figure is held back. Nothing predicts overheads and shares, and one alone may
decide where all ops run. So where devices agree on latencies of its kind, an overhead counts up to ``MOST_ALONE``, and
an op takes all of a resource. Where nothing is agreed on, none is held back: the first device of a SoC has its plans.
Pure: no SQL.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hope_schema import recipe_of
from hope_schema.wording import plural
from planner_api.planning.problem.transfers import Line, fit, size_bytes
from planner_api.prediction.complete import Predictors, samples, train
from planner_api.prediction.features import Features
from planner_api.prediction.lines import LEAST_US
from planner_api.profiles.folding import CUT, MAD_TO_SIGMA, Estimates, median
from planner_api.profiles.statistics import FloatArray, Statistics, Votes

NEAR = 0.5
"""Devices agree on a figure when the votes of two at least lie within this fraction of the median."""
FACTOR = 10.0
"""A figure within this factor of what is predicted counts. Of the latencies of the phones that HOPE was measured on, a
network predicted from the others of its phone, one in 200 lies beyond it."""
LEAST_ROWS = 5
"""Agreed transfers of one direction below which their line says nothing of others."""
MOST_ALONE: Final = {"launch_us": 100.0, "end_us": 100.0, "slowdown": 2.0, "spread": 0.5}
"""Up to what an overhead counts that one device alone says. What costs more, as neighbours do on some GPUs, counts in
full once a second device says so."""
WHOLE: Final = 1.0
"""What a share counts as that one device alone says: nothing runs beside the op."""


@dataclass(frozen=True)
class FamilyStanding:
    """How the figures of one family stand: (F,) estimates, whether devices agree on each, whether one stands open."""

    us: FloatArray
    agreed: NDArray[np.bool_]
    open: NDArray[np.bool_]

    @classmethod
    def of(cls, votes: Votes, us: FloatArray) -> FamilyStanding:
        """Look at every figure and its estimate. That it is unsupported, too, is agreed on when two say so."""
        centre = median(votes.us)[:, None]
        with np.errstate(invalid="ignore"):
            near = (np.abs(votes.us - centre) <= NEAR * centre).sum(axis=1)
        backing = np.where(np.isinf(us), np.isinf(votes.us).sum(axis=1), near)
        agreed = (backing >= 2) | (votes.settled[:, 0] > 0)
        return cls(us, agreed, ~agreed & ~np.isnan(us))


Standings = Mapping[str, FamilyStanding]
"""By family."""


def standings(statistics: Statistics, found: Estimates) -> Standings:
    return {name: FamilyStanding.of(votes, found[name][0]) for name, votes in statistics.families.items()}


def counting(statistics: Statistics, found: Estimates) -> dict[str, FloatArray]:
    """By family the (F,) estimates that plans rest on; NaN: held back, and nothing known takes its place."""
    return {
        name: np.where(votes.held, _instead(name, votes), found[name][0]) for name, votes in statistics.families.items()
    }


def _instead(family: str, votes: Votes) -> FloatArray:
    """What figures count as while they are held back."""
    if family == "overheads":
        return np.array([MOST_ALONE[name] for name, _ in votes.keys], dtype=np.float64)
    return np.full(len(votes.keys), WHOLE if family == "shares" else np.nan)


class Reference:
    """What the figures that devices agree on say of all others of the same SoC and frequency.

    Attributes:
        agreed: how many it rests on.
    """

    def __init__(self, statistics: Statistics, standing: Standings, ops: Mapping[str, Features]) -> None:
        self.agreed = agreed(standing)
        latencies, votes = standing["latencies"], statistics.latencies
        rows = np.flatnonzero(latencies.agreed & np.isfinite(latencies.us)).tolist()
        known = samples(((*votes.keys[row], float(latencies.us[row]), int(votes.count[row])) for row in rows), ops)
        self._predictors: Predictors = train(known, {})
        self._lines = _lines(statistics.transfers, standing["transfers"])

    def hold_back(self, statistics: Statistics, standing: Standings, ops: Mapping[str, Features]) -> None:
        """Mark what is held back; ``ops`` are the features of what stands open, as far as any model has it."""
        votes, latencies = statistics.latencies, standing["latencies"]
        kinds = {votes.keys[row][1] for row in np.flatnonzero(latencies.agreed).tolist()}
        for name, beyond in (("overheads", np.greater), ("shares", np.less)):
            family, alone = statistics.families[name], standing[name]
            of_those = np.array([kind in kinds for _, kind in family.keys], dtype=bool)
            family.held = alone.open & of_those & beyond(alone.us, _instead(name, family))
        votes.held = self._against_latencies(votes, latencies, ops)
        statistics.transfers.held = self._against_transfers(statistics.transfers, standing["transfers"])

    def _against_latencies(
        self, votes: Votes, standing: FamilyStanding, ops: Mapping[str, Features]
    ) -> NDArray[np.bool_]:
        """Return (F,) which open latencies are too far from what is predicted.

        A recipe is held to what is predicted of its op.

        NOTE: so is that an op cannot run which no model has: no device is ever asked whether it is true, and nothing
        would be predicted of its type any more.
        """
        held = np.zeros(len(votes.keys), dtype=bool)
        by_kind: dict[str, list[tuple[int, Features]]] = defaultdict(list)
        for row in np.flatnonzero(standing.open).tolist():
            signature, kind = votes.keys[row]
            signature, _ = recipe_of(signature)
            if np.isinf(standing.us[row]):
                held[row] = signature not in ops
            elif signature in ops and kind in self._predictors and self._predictors[kind].knows(ops[signature].type):
                by_kind[kind].append((row, ops[signature]))
        for kind, doubtful in by_kind.items():
            rows = [row for row, _ in doubtful]
            found = self._predictors[kind]([op for _, op in doubtful])
            spread = np.array([one.spread for one in found])
            held[rows] = _far(standing.us[rows], np.array([one.us for one in found]), spread)
        return held

    def _against_transfers(self, votes: Votes, standing: FamilyStanding) -> NDArray[np.bool_]:
        """Return (F,) which open transfers are too far from their direction's line."""
        held = np.zeros(len(votes.keys), dtype=bool)
        for row in np.flatnonzero(standing.open).tolist():
            dtype, shape, *way = votes.keys[row]
            if (found := self._lines.get(tuple(way))) is not None:
                line, spread = found
                held[row] = _far(standing.us[row], np.array(line.cost_us(size_bytes(shape, dtype))), spread)
        return held


def agreed(standing: Standings) -> int:
    """How many latencies and transfers devices agree on."""
    return int(standing["latencies"].agreed.sum() + standing["transfers"].agreed.sum())


def held_of(statistics: Statistics, device: int) -> str | None:
    """What is held back of what a device says, in words; None: nothing."""
    found = [
        votes.keys[row]
        for votes in statistics.families.values()
        for row in np.flatnonzero(votes.held & (votes.device == np.uint64(device)).any(axis=1))
    ]
    if not found:
        return None
    first = " ".join(map(str, found[0]))
    return (
        f"{plural(len(found), 'figure')} not used as said until another device says them too, {first} among them: what "
        f"devices agree on does not bear them out"
    )


def _far(us: FloatArray, predicted: FloatArray, spread: FloatArray | float) -> NDArray[np.bool_]:
    """Where figures lie too far from what is predicted, with its relative standard deviation."""
    far: NDArray[np.bool_] = _off(us, predicted) > np.maximum(np.log(FACTOR), CUT * spread)
    return far


def _off(us: FloatArray, predicted: FloatArray) -> FloatArray:
    """How far figures are from what is predicted, in logarithms."""
    off: FloatArray = np.abs(np.log(np.maximum(us, LEAST_US)) - np.log(np.maximum(predicted, LEAST_US)))
    return off


def _lines(votes: Votes, standing: FamilyStanding) -> dict[tuple[str, ...], tuple[Line, float]]:
    """Per direction: a line over bytes through what is agreed on, and how far that lies from it."""
    by_way: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row in np.flatnonzero(standing.agreed & np.isfinite(standing.us)).tolist():
        by_way[votes.keys[row][2:]].append(row)
    found: dict[tuple[str, ...], tuple[Line, float]] = {}
    for way, rows in by_way.items():
        if len(rows) < LEAST_ROWS:
            continue
        sizes = [size_bytes(shape, dtype) for dtype, shape, *_ in (votes.keys[row] for row in rows)]
        us = standing.us[rows]
        line = fit(sizes, us.tolist())
        predicted = np.array([line.cost_us(size) for size in sizes])
        found[way] = line, MAD_TO_SIGMA * float(np.median(_off(us, predicted)))
    return found
