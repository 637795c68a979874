"""Folding uploads into statistics so that liars, broken clocks and eager devices do no harm. Pure: no SQL.

Within a figure every device has one vote, its newest. The centre is the median of the votes, and a vote further from
it than ``CUT`` times the scaled median absolute deviation is refused. The estimate is the mean of the accepted votes
and of those that have settled. A minority of liars moves the median a little and the estimate not at all. Of two voters
that contradict each other, the one does not count whom others refuse elsewhere.

A figure that one device alone says takes up its reporter's share of the profile; where the profile is full, the device
that takes up most gives way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from hope_schema.hashing import canonical
from planner_api.profiles import statistics as stored
from planner_api.profiles.known import PER_KIND
from planner_api.profiles.statistics import (
    FAMILIES,
    VOTES,
    FloatArray,
    Key,
    Names,
    Statistics,
    Votes,
    device_hash,
    ranks,
)

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
AGREED = 5
"""A figure is asked of devices until so many say it, those of the lowest ranks in the fleet: where one in twenty lies,
one figure in 140 has two of three voters who do, and one in 860 three of five ..."""
CONTESTED = 0.25
"""... and of all whose votes would be kept, where more than this share of the votes is refused."""
MATERIAL = 0.01
"""An estimate that moved by more than this fraction since the current version makes a new version."""
MERGED_AT_ONCE = 16_384
"""Figures merged at once."""
NO_RANK = np.uint64(2**64 - 1)
Estimates = dict[str, tuple[FloatArray, FloatArray]]
"""Per family: (F,) estimates and spreads of its figures in microseconds."""
Definition = dict[str, Any]
"""A processor or a channel, as parsed JSON."""
MAX_PROCESSORS = 1024
"""Most definitions of processors, or of channels, remembered: as many as a profile may list. The least listed go
first."""
LISTED_BY = 20
"""A processor counts when at least one in this many devices lists it. Of each processor ``VOTES`` devices are
remembered, so two that list it are enough however large the fleet is."""
JUDGED = 4
"""Figures that a device must have voted on beside two others before it is judged by them ..."""
REFUSED = 0.25
"""... and the share of them on which it was refused, from which on it is doubted."""


@dataclass(frozen=True)
class Columns:
    """One upload on one family: (n,) rows of ``Votes``, microseconds (infinity: unsupported), spreads and counts."""

    rows: NDArray[np.int64]
    us: FloatArray
    spread: FloatArray
    count: NDArray[np.int64]

    def moved(self, to: NDArray[np.int64]) -> Columns:
        """Return what is left of them when each row of ``Votes`` has moved; -1: it is gone."""
        rows = to[self.rows]
        left = rows >= 0
        return Columns(rows[left], self.us[left], self.spread[left], self.count[left])


@dataclass(frozen=True)
class Folded:
    """How many votes of a batch were outliers, and why uploads (by position) failed, or were used in part only."""

    refused: int
    failed: dict[int, str]
    unused: dict[int, str] = field(default_factory=dict)


class Folder:
    """Folds uploads into ``statistics``; a device may say ``share`` figures of a family alone (None: any number)."""

    def __init__(self, statistics: Statistics, share: int | None = None) -> None:
        self.statistics = statistics
        self.share = share

    def fold(self, uploads: Sequence[tuple[str, dict[str, Any]]]) -> Folded:
        """Fold a batch of (device id, observations as parsed JSON). An upload that cannot be read changes nothing."""
        self._collected: dict[str, list[tuple[int, Columns]]] = {family: [] for family in FAMILIES}
        failed: dict[int, str] = {}
        unused: dict[int, str] = {}
        self._alone: dict[tuple[str, int], int] = {}
        for position, (device_id, upload) in enumerate(uploads):
            name = device_hash(device_id)
            self._left_out: list[str] = []
            try:
                found = self._said(name, upload)
                _list(self.statistics.processors, name, upload["processors"], processor_name)
                _list(self.statistics.channels, name, upload.get("channels", ()), channel_name)
            except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
                failed[position] = f"{type(error).__name__}: {error}"[:500]
                continue
            if self._left_out:
                unused[position] = "; ".join(self._left_out)
            for family, columns in found.items():
                if len(columns.rows):
                    self._collected[family].append((name, columns))
        refused = sum(merge_votes(self.statistics.families[name], self._collected[name]) for name in FAMILIES)
        return Folded(refused, failed, unused)

    def _said(self, device: int, upload: dict[str, Any]) -> dict[str, Columns]:
        """What an upload says, by family."""
        latencies, transfers = upload.get("latencies", {}), upload.get("transfers", {})
        ops = list(zip(latencies.get("signature", ()), latencies.get("kind", ()), strict=True))
        us = np.array(latencies.get("us", ()), dtype=np.float64)  # None becomes NaN
        us[np.isnan(us)] = np.inf
        ways = zip(*(transfers.get(name, ()) for name in ("tensor", "source", "target")), strict=True)
        moves = [(tensor["dtype"], tuple(tensor["shape"]), start, end) for tensor, start, end in ways]
        overheads = upload.get("overheads", {})
        costs = {(name, kind): value for name in PER_KIND for kind, value in overheads.get(name, {}).items()}
        share = latencies.get("share", ())
        counted = {"count": latencies.get("count", ())}
        return {
            "latencies": self._columns("latencies", device, ops, us, latencies),
            "transfers": self._columns("transfers", device, moves, transfers.get("us", ()), transfers),
            "overheads": self._columns("overheads", device, list(costs), list(costs.values()), {}),
            "shares": self._columns("shares", device, ops if share else [], share, counted),
        }

    def _columns(self, family: str, device: int, keys: Sequence[Key], us: Any, said: dict[str, Any]) -> Columns:
        """Figures of a family that there is room for; where nothing is said of spreads and counts, 0 and 1."""
        rows = self._rows(family, device, keys)
        used = rows >= 0
        spread = np.array(said.get("spread_us", np.zeros(len(keys))), dtype=np.float64)
        count = np.array(said.get("count", np.ones(len(keys))), dtype=np.int64)
        return Columns(rows[used], np.array(us, dtype=np.float64)[used], spread[used], count[used])

    def _rows(self, family: str, device: int, keys: Sequence[Key]) -> NDArray[np.int64]:
        """Return the row of each key, -1 where there is no room for it."""
        votes = self.statistics.families[family]
        new = list(dict.fromkeys(key for key in keys if key not in votes.index))
        room = min(len(new), self._room(family, votes, device, len(new)))
        if room == len(new):
            rows = votes.rows(keys)
        else:
            refused = set(new[room:])
            rows = np.full(len(keys), -1, dtype=np.int64)
            taken = [at for at, key in enumerate(keys) if key not in refused]
            rows[taken] = votes.rows(keys[at] for at in taken)
            self._left_out.append(
                f"{len(keys) - len(taken)} of {len(keys)} {family} not used: quota figures "
                f"({self.share or stored.MAX_FIGURES} that no other device says) of this profile is used up"
            )
        self._alone[family, device] = self._alone.get((family, device), 0) + room
        return rows

    def _room(self, family: str, votes: Votes, device: int, wanted: int) -> int:
        """How many new figures a device may add; makes room where the device that takes up most has more than it."""
        if not wanted:
            return 0
        if (family, device) not in self._alone:
            mine = (votes.device == np.uint64(device)).any(axis=1) & votes.alone()
            self._alone[family, device] = int(mine.sum())
        said = self._alone[family, device]
        wanted = wanted if self.share is None else min(wanted, max(0, self.share - said))
        free = stored.MAX_FIGURES - len(votes.keys)
        if wanted > free:
            free += self._give_way(family, votes, device, wanted - free)
        return min(wanted, free)

    def _give_way(self, family: str, votes: Votes, device: int, wanted: int) -> int:
        """Drop figures of the device that takes up most, those that fewest say first; return how many."""
        charges = votes.charges()
        most = max(charges, key=charges.__getitem__, default=device)
        # What is dropped must leave it with no less than the newcomer then has.
        spare = int(charges.get(most, 0.0) - charges.get(device, 0.0)) // 2
        if most == device or spare <= 0:
            return 0
        theirs = np.flatnonzero((votes.device == np.uint64(most)).any(axis=1))
        voters = (votes.device[theirs] != 0).sum(axis=1)
        dropped = theirs[np.argsort(voters, kind="stable")][: min(wanted, spare)]
        kept = np.ones(len(votes.keys), dtype=bool)
        kept[dropped] = False
        votes.keep(kept)
        moved_to = np.where(kept, np.cumsum(kept) - 1, -1)
        self._collected[family] = [(name, columns.moved(moved_to)) for name, columns in self._collected[family]]
        return len(dropped)


def processor_name(processor: Definition) -> str:
    return str(processor["id"])


def channel_name(channel: Definition) -> tuple[str, str]:
    return channel["source"], channel["target"]


def _list(
    known: dict[str, list[int]], device: int, definitions: Sequence[Definition], name: Callable[[Definition], Hashable]
) -> None:
    """Note what a device lists: of what it listed under a name before, nothing counts any more."""
    said = {name(definition): canonical(definition).decode() for definition in definitions}
    for text in [text for text, listed in known.items() if device in listed]:
        if name(from_json(text)) in said:
            known[text].remove(device)
            if not known[text] and text not in said.values():
                del known[text]
    for text in said.values():
        listed = known.setdefault(text, [])
        listed.append(device)
        del listed[:-VOTES]
    while len(known) > MAX_PROCESSORS:
        del known[min(known, key=lambda definition: len(known[definition]))]


def merge_votes(votes: Votes, uploads: Sequence[tuple[int, Columns]]) -> int:
    """Merge the votes of a batch; return how many were refused as outliers.

    A device that stands twice in the batch, or that voted before, has only its newest vote.
    """
    if not uploads:
        return 0
    every = np.unique(np.concatenate([columns.rows for _, columns in uploads]))
    # In parts, because each takes a few KB per figure while it is merged.
    parts = (every[at : at + MERGED_AT_ONCE] for at in range(0, len(every), MERGED_AT_ONCE))
    return sum(_merge_rows(votes, uploads, part) for part in parts)


def _merge_rows(votes: Votes, uploads: Sequence[tuple[int, Columns]], touched: NDArray[np.int64]) -> int:
    place = np.full(len(votes.keys), -1, dtype=np.int64)
    place[touched] = np.arange(len(touched))
    names = list(dict.fromkeys(name for name, _ in uploads))
    column_of = {name: position for position, name in enumerate(names)}
    us = np.full((len(touched), len(names)), np.nan)
    spread = np.zeros((len(touched), len(names)), dtype=np.float32)
    for name, columns in uploads:
        if len(touched) < len(columns.rows) or (place[columns.rows] < 0).any():
            columns = columns.moved(np.where(place < 0, -1, np.arange(len(place))))
        at = place[columns.rows]
        us[at, column_of[name]] = columns.us
        spread[at, column_of[name]] = columns.spread
        np.add.at(votes.count, columns.rows, columns.count)
    votes.count[touched] = np.minimum(votes.count[touched], 1_000_000_000)
    device = np.where(np.isnan(us), np.uint64(0), np.array(names, dtype=np.uint64))

    said = votes.most_said(touched)
    old_device, old_us = votes.device[touched, :said], votes.us[touched, :said]
    for position, name in enumerate(names):
        replaced = (old_device == name) & ~np.isnan(us[:, position])[:, None]
        old_us[replaced] = np.nan
        old_device[replaced] = 0
    all_us = np.concatenate([old_us, us], axis=1)
    all_device = np.concatenate([old_device, device], axis=1)
    all_spread = np.concatenate([votes.spread[touched, :said], spread], axis=1)

    # The VOTES of lowest rank are kept; the others settle where those that are kept accept them.
    empty = all_device == 0
    order = np.argsort(
        np.where(empty, NO_RANK, ranks(votes.key, votes.name[touched][:, None], all_device)), axis=1, kind="stable"
    )
    all_us, all_device, all_spread = (
        np.take_along_axis(array, order, axis=1) for array in (all_us, all_device, all_spread)
    )
    new = np.take_along_axis(np.arange(all_us.shape[1])[None, :] >= said, order, axis=1)
    kept = all_us[:, :VOTES]
    width = kept.shape[1]
    _, accepted = believed(kept, all_us)
    refused = int((new & np.isfinite(all_us) & ~accepted).sum())

    settled = votes.settled[touched]
    _settle(settled, np.where(accepted[:, VOTES:], all_us[:, VOTES:], np.nan))
    _forget_old_level(settled, kept)
    votes.settled[touched] = settled
    votes.us[touched, :width] = kept
    votes.device[touched, :width] = all_device[:, :VOTES]
    votes.spread[touched, :width] = all_spread[:, :VOTES]
    return refused


def believed(us: FloatArray, others: FloatArray) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return the median of each row's finite values, and which of other values lie near enough to be accepted."""
    centre = median(us)[:, None]
    with np.errstate(invalid="ignore"):
        deviation = median(np.abs(us - centre))[:, None]
        return centre, np.abs(others - centre) <= np.maximum(CUT * MAD_TO_SIGMA * deviation, TOLERANCE * centre)


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
    said = votes.most_said()
    votes_us = votes.us[:, :said]
    centre, accepted = believed(votes_us, votes_us)
    accepted &= ~outdone(votes_us, votes.device[:, :said], accepted)
    n, mean = votes.settled[:, 0], votes.settled[:, 1]
    total = np.where(accepted, votes_us, 0.0).sum(axis=1) + n * mean
    weight = accepted.sum(axis=1) + n
    us = np.where(weight > 0, total / np.maximum(weight, 1.0), np.nan)
    unsupported = np.isinf(votes_us).sum(axis=1) > np.isfinite(votes_us).sum(axis=1)
    us[unsupported] = np.inf
    reported = median(np.where(accepted, votes.spread[:, :said], np.nan))
    between = median(np.where(accepted, np.abs(votes_us - centre), np.nan))
    spread = np.where(accepted.sum(axis=1) >= 3, np.fmax(reported, between), reported)
    return us, np.where(np.isfinite(spread), spread, 0.0)


def estimates(statistics: Statistics) -> Estimates:
    return {name: estimate(votes) for name, votes in statistics.families.items()}


def refused(us: FloatArray) -> NDArray[np.int64]:
    """Return, per row, how many votes are not believed: outliers, or the fewer on whether it can run at all."""
    outliers = (np.isfinite(us) & ~believed(us, us)[1]).sum(axis=1)
    unsupported = np.isinf(us).sum(axis=1)
    found: NDArray[np.int64] = np.maximum(outliers, np.minimum(unsupported, np.isfinite(us).sum(axis=1)))
    return found


def wanted(votes: Votes, device: int, keys: Sequence[Key], most: int) -> list[Key]:
    """Return which of these figures a device should measure too, at most ``most``; the least certain come first.

    Those whose panel it belongs to and has not voted in: the ``AGREED`` of lowest rank, or all of those that are kept
    where the votes contradict each other. So of a fleet of n devices about ``AGREED`` (1 + ln n / ``AGREED``) are asked
    for a figure that nobody contests, and whoever came first decides nothing.
    """
    known = [key for key in keys if key in votes.index]
    if not known:
        return []
    rows = votes.rows(known)
    us, devices = votes.us[rows], votes.device[rows]
    said = devices != 0
    voters = said.sum(axis=1)
    contested = refused(us) > CONTESTED * voters
    panel = np.where(contested, VOTES, AGREED)
    mine = ranks(votes.key, votes.name[rows], np.array([device], dtype=np.uint64))
    theirs = np.where(said, ranks(votes.key, votes.name[rows][:, None], devices), NO_RANK)
    lower = (theirs < mine[:, None]).sum(axis=1)
    asked = (lower < panel) & (voters > 0) & ~(devices == np.uint64(device)).any(axis=1)
    chosen = np.flatnonzero(asked)
    chosen = chosen[np.lexsort((mine[chosen], voters[chosen], ~contested[chosen]))][:most]
    return [known[at] for at in chosen]


def moved(old: FloatArray, new: FloatArray, fraction: float) -> NDArray[np.bool_]:
    """Where a figure appeared, vanished, changed between supported and not, or moved by more than ``fraction``."""
    with np.errstate(invalid="ignore"):
        far = np.abs(new - old) > fraction * np.maximum(np.abs(old), 1e-3)
    return np.where(np.isfinite(old) & np.isfinite(new), far, ~((old == new) | (np.isnan(old) & np.isnan(new))))


def _forget_old_level(settled: FloatArray, newest: FloatArray) -> None:
    """Drop settled votes that a quorum of the newest ones contradicts."""
    rows = np.flatnonzero((settled[:, 0] > 0) & (np.isfinite(newest).sum(axis=1) >= QUORUM))
    _, near = believed(newest[rows], settled[rows, 1:2])
    settled[rows[~near[:, 0]]] = 0.0


def _settle(settled: FloatArray, us: FloatArray) -> None:
    finite = np.isfinite(us)
    before = settled[:, 0]
    n = before + finite.sum(axis=1)
    total = before * settled[:, 1] + np.where(finite, us, 0.0).sum(axis=1)
    np.divide(total, n, out=settled[:, 1], where=n > 0)
    settled[:, 0] = np.minimum(n, SETTLED_LIMIT)


def outdone(us: FloatArray, device: Names, accepted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which votes (F, V) do not count: of two on a figure the doubted device's, where the other is not.

    ``accepted`` says which votes lie near the median of theirs, which of two always do.
    """
    finite = np.isfinite(us)
    voters = finite.sum(axis=1)
    judged = finite & (voters >= 3)[:, None]
    pairs = finite & (voters == 2)[:, None]
    if not judged.any() or not pairs.any():
        return np.zeros_like(finite)
    names, owner = np.unique(device, return_inverse=True)
    owner = owner.reshape(device.shape)
    all_of_them = np.bincount(owner[judged], minlength=len(names))
    refused = np.bincount(owner[judged & ~accepted], minlength=len(names))
    doubted = (all_of_them >= JUDGED) & (refused > REFUSED * all_of_them)
    found: NDArray[np.bool_] = pairs & doubted[owner]
    found[found.sum(axis=1) == 2] = False
    return found
