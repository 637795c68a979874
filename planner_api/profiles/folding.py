"""Folding uploads into statistics so that liars, broken clocks and eager devices do no harm. Pure: no SQL.

Within a figure every device has one vote, its newest. The centre is the median of the votes, and a vote further from
it than ``CUT`` times the scaled median absolute deviation is refused. The estimate is the mean of the accepted votes
and of those that have settled. A minority of liars moves the median a little and the estimate not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hope_schema.hashing import canonical
from planner_api.profiles.known import PER_KIND
from planner_api.profiles.statistics import VOTES, FloatArray, Key, Statistics, Votes

CUT = 4.0
"""Votes further than this many robust standard deviations from the median are refused."""
MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""
TOLERANCE = 0.05
"""A vote within this fraction of the median is never refused, however much the others agree."""
SETTLED_LIMIT = 1000.0
"""The settled votes weigh at most this many, so that a real change (a new driver) gets through."""
QUORUM = 8
"""Votes that must agree on a new level before the settled ones are forgotten."""
MATERIAL = 0.01
"""An estimate that moved by more than this fraction since the current version makes a new version."""
MAX_PROCESSORS = 1024
"""Most definitions of processors, or of channels, remembered: as many as a profile may list. The least listed go
first."""
LISTED_BY = 20
"""A processor counts when at least one in this many devices lists it. Of each processor ``VOTES`` devices are
remembered, so two that list it are enough however large the fleet is."""


@dataclass(frozen=True)
class Columns:
    """One upload on one family: (n,) rows of ``Votes``, microseconds (infinity: unsupported), spreads and counts."""

    rows: NDArray[np.int64]
    us: FloatArray
    spread: FloatArray
    count: NDArray[np.int64]


def device_hash(device_id: str) -> int:
    """Return the 32-bit hash a device is remembered by; never 0."""
    return int.from_bytes(hashlib.blake2b(device_id.encode(), digest_size=4).digest(), "little") or 1


@dataclass(frozen=True)
class Folded:
    """What became of a batch: votes refused as outliers, and the uploads (by position) that could not be read."""

    refused: int
    failed: dict[int, str]


class Folder:
    """Folds uploads into one ``Statistics``.

    Devices of one model upload the same rows in the same order, so the rows of the last few row sets are remembered.
    """

    REMEMBERED = 64

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics
        self._row_sets: dict[tuple[Any, ...], NDArray[np.int64]] = {}

    def fold(self, uploads: Sequence[tuple[str, dict[str, Any]]]) -> Folded:
        """Fold a batch of (device id, observations as parsed JSON). An upload that cannot be read changes nothing."""
        latencies: list[tuple[int, Columns]] = []
        transfers: list[tuple[int, Columns]] = []
        overheads: list[tuple[int, Columns]] = []
        parts: list[tuple[int, Columns]] = []
        failed: dict[int, str] = {}
        for position, (device_id, upload) in enumerate(uploads):
            name = device_hash(device_id)
            try:
                found = (
                    self._latencies(upload.get("latencies", {})),
                    self._transfers(upload.get("transfers", {})),
                    self._overheads(upload.get("overheads", {})),
                )
                shares = self._shares(upload.get("latencies", {}), found[0])
                _list(self.statistics.processors, name, upload["processors"])
                _list(self.statistics.channels, name, upload.get("channels", ()))
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                failed[position] = f"{type(error).__name__}: {error}"[:500]
                continue
            both = zip((*found, shares), (latencies, transfers, overheads, parts), strict=True)
            for columns, family in both:
                if columns is not None:
                    family.append((name, columns))
        statistics = self.statistics
        refused = (
            merge_votes(statistics.latencies, latencies)
            + merge_votes(statistics.transfers, transfers)
            + merge_votes(statistics.overheads, overheads)
            + merge_votes(statistics.shares, parts)
        )
        return Folded(refused, failed)

    def _latencies(self, columns: dict[str, Any]) -> Columns | None:
        signature, kind = columns.get("signature"), columns.get("kind")
        if not signature or not kind:
            return None
        key = ("latencies", tuple(signature), tuple(kind))
        rows = self._row_sets.get(key)
        if rows is None:
            rows = self._remember(key, self.statistics.latencies.rows(zip(signature, kind, strict=True)))
        us = np.array(columns["us"], dtype=np.float64)  # None becomes NaN
        us[np.isnan(us)] = np.inf
        return _columns(rows, us, columns)

    def _shares(self, columns: dict[str, Any], latencies: Columns | None) -> Columns | None:
        if latencies is None or not columns.get("share"):
            return None
        keys = zip(columns["signature"], columns["kind"], strict=True)
        share = np.array(columns["share"], dtype=np.float64)
        return Columns(self.statistics.shares.rows(keys), share, np.zeros(len(share)), latencies.count)

    def _transfers(self, columns: dict[str, Any]) -> Columns | None:
        tensors, source, target = columns.get("tensor"), columns.get("source"), columns.get("target")
        if not tensors or not source or not target:
            return None
        types = tuple((tensor["dtype"], tuple(tensor["shape"])) for tensor in tensors)
        key = ("transfers", types, tuple(source), tuple(target))
        rows = self._row_sets.get(key)
        if rows is None:
            keys = (
                (dtype, shape, start, end) for (dtype, shape), start, end in zip(types, source, target, strict=True)
            )
            rows = self._remember(key, self.statistics.transfers.rows(keys))
        return _columns(rows, np.array(columns["us"], dtype=np.float64), columns)

    def _overheads(self, overheads: dict[str, Any]) -> Columns | None:
        said: dict[Key, float] = {
            (name, kind): value for name in PER_KIND for kind, value in overheads.get(name, {}).items()
        }
        handover = overheads.get("handover_us", 0.0)
        if not said and not handover:
            return None  # the default: this upload says nothing of overheads
        rows = self.statistics.overheads.rows([(), *said])
        us = np.array([handover, *said.values()], dtype=np.float64)
        return Columns(rows, us, np.zeros(len(us)), np.ones(len(us), dtype=np.int64))

    def _remember(self, key: tuple[Any, ...], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(self._row_sets) >= self.REMEMBERED:
            del self._row_sets[next(iter(self._row_sets))]
        self._row_sets[key] = rows
        return rows


def _list(known: dict[str, list[int]], device: int, definitions: Sequence[dict[str, Any]]) -> None:
    """Note that a device lists these processors, or channels."""
    for definition in definitions:
        listed = known.setdefault(canonical(definition).decode(), [])
        if device in listed:
            listed.remove(device)
        listed.append(device)
        del listed[:-VOTES]
    while len(known) > MAX_PROCESSORS:
        del known[min(known, key=lambda definition: len(known[definition]))]


def _columns(rows: NDArray[np.int64], us: FloatArray, columns: dict[str, Any]) -> Columns:
    return Columns(
        rows, us, np.array(columns["spread_us"], dtype=np.float64), np.array(columns["count"], dtype=np.int64)
    )


def merge_votes(votes: Votes, uploads: Sequence[tuple[int, Columns]]) -> int:
    """Merge the votes of a batch; return how many were refused as outliers.

    A device that stands twice in the batch, or that voted before, has only its newest vote.
    """
    if not uploads:
        return 0
    touched = np.unique(np.concatenate([columns.rows for _, columns in uploads]))
    place = np.zeros(len(votes.keys), dtype=np.int64)
    place[touched] = np.arange(len(touched))
    # Rank devices by their last upload of the batch, so that the newest vote comes last.
    names = list(dict.fromkeys(name for name, _ in reversed(uploads)))[::-1]
    rank = {name: position for position, name in enumerate(names)}
    us = np.full((len(touched), len(names)), np.nan)
    spread = np.zeros((len(touched), len(names)), dtype=np.float32)
    for name, columns in uploads:
        at = place[columns.rows]
        us[at, rank[name]] = columns.us
        spread[at, rank[name]] = columns.spread
        np.add.at(votes.count, columns.rows, columns.count)
    np.minimum(votes.count, 1_000_000_000, out=votes.count)
    device = np.where(np.isnan(us), 0, np.array(names, dtype=np.uint32)).astype(np.uint32)

    old_device, old_us = votes.device[touched], votes.us[touched]
    for position, name in enumerate(names):
        replaced = (old_device == name) & ~np.isnan(us[:, position])[:, None]
        old_us[replaced] = np.nan
        old_device[replaced] = 0
    all_us = np.concatenate([old_us, us], axis=1)
    all_device = np.concatenate([old_device, device], axis=1)
    all_spread = np.concatenate([votes.spread[touched], spread], axis=1)

    centre, window = robust_window(all_us)
    accepted = np.abs(all_us - centre[:, None]) <= window[:, None]
    refused = int((np.isfinite(us) & ~accepted[:, VOTES:]).sum())

    # Newest VOTES votes stay; the older ones settle. A stable sort moves the empty places to the front.
    empty = np.isnan(all_us)
    if (empty[:, 1:] & ~empty[:, :-1]).any():
        order = np.argsort(~empty, axis=1, kind="stable")
        all_us, all_device, all_spread, accepted = (
            np.take_along_axis(array, order, axis=1) for array in (all_us, all_device, all_spread, accepted)
        )
    settled = votes.settled[touched]
    _settle(settled, np.where(accepted[:, :-VOTES], all_us[:, :-VOTES], np.nan))
    _forget_old_level(settled, all_us[:, -VOTES:])
    votes.settled[touched] = settled
    votes.us[touched] = all_us[:, -VOTES:]
    votes.device[touched] = all_device[:, -VOTES:]
    votes.spread[touched] = all_spread[:, -VOTES:]
    return refused


def robust_window(us: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the median of each row's finite values and the distance from it within which a value is accepted."""
    centre = median(us)
    with np.errstate(invalid="ignore"):
        deviation = median(np.abs(us - centre[:, None]))
    return centre, np.maximum(CUT * MAD_TO_SIGMA * deviation, TOLERANCE * centre)


def median(values: FloatArray) -> FloatArray:
    """Return the median of each row's finite values, NaN where there is none."""
    finite = np.isfinite(values)
    ordered = np.sort(np.where(finite, values, np.inf), axis=1)
    n = finite.sum(axis=1)
    rows = np.arange(len(values))
    middle = (ordered[rows, np.maximum(n - 1, 0) // 2] + ordered[rows, np.minimum(n // 2, values.shape[1] - 1)]) / 2
    return np.where(n > 0, middle, np.nan)


def estimate(votes: Votes) -> tuple[FloatArray, FloatArray]:
    """Return (F,) estimates and spreads in microseconds; infinity: unsupported by a majority of the votes."""
    if not votes.keys:
        return np.zeros(0), np.zeros(0)
    centre, window = robust_window(votes.us)
    with np.errstate(invalid="ignore"):
        accepted = np.abs(votes.us - centre[:, None]) <= window[:, None]
    n, mean = votes.settled[:, 0], votes.settled[:, 1]
    total = np.where(accepted, votes.us, 0.0).sum(axis=1) + n * mean
    weight = accepted.sum(axis=1) + n
    us = np.where(weight > 0, total / np.maximum(weight, 1.0), np.nan)
    unsupported = np.isinf(votes.us).sum(axis=1) > np.isfinite(votes.us).sum(axis=1)
    us[unsupported] = np.inf
    reported = median(np.where(accepted, votes.spread, np.nan))
    between = median(np.where(accepted, np.abs(votes.us - centre[:, None]), np.nan))
    spread = np.where(accepted.sum(axis=1) >= 3, np.fmax(reported, between), reported)
    return us, np.where(np.isfinite(spread), spread, 0.0)


def moved(old: FloatArray, new: FloatArray, fraction: float) -> NDArray[np.bool_]:
    """Where a figure appeared, vanished, changed between supported and not, or moved by more than ``fraction``."""
    with np.errstate(invalid="ignore"):
        far = np.abs(new - old) > fraction * np.maximum(np.abs(old), 1e-3)
    return np.where(np.isfinite(old) & np.isfinite(new), far, ~((old == new) | (np.isnan(old) & np.isnan(new))))


def _forget_old_level(settled: FloatArray, newest: FloatArray) -> None:
    """Drop settled votes that a quorum of the newest ones contradicts."""
    rows = np.flatnonzero((settled[:, 0] > 0) & (np.isfinite(newest).sum(axis=1) >= QUORUM))
    centre, window = robust_window(newest[rows])
    settled[rows[np.abs(settled[rows, 1] - centre) > window]] = 0.0


def _settle(settled: FloatArray, us: FloatArray) -> None:
    """Add the finite values of each row to (n, mean, m2) (Chan et al., parallel form of Welford's update)."""
    finite = np.isfinite(us)
    added = finite.sum(axis=1)
    if not added.any():
        return
    values = np.where(finite, us, 0.0)
    mean = values.sum(axis=1) / np.maximum(added, 1)
    m2 = (np.where(finite, us - mean[:, None], 0.0) ** 2).sum(axis=1)
    n = settled[:, 0] + added
    delta = mean - settled[:, 1]
    share = np.divide(added, n, out=np.zeros_like(n), where=n > 0)
    settled[:, 2] += m2 + delta**2 * settled[:, 0] * share
    settled[:, 1] += delta * share
    shrink = np.minimum(1.0, SETTLED_LIMIT / np.maximum(n, 1.0))
    settled[:, 0] = n * shrink
    settled[:, 2] *= shrink
