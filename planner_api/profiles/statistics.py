"""The statistics kept of every figure of one SoC at one frequency. Plain arrays; no SQL, no HTTP, no clock.

A figure is a latency, a share, a transfer or an overhead. Of each, the newest vote of up to ``VOTES`` devices is kept
as it is: of those whose rank is lowest. The rank is a hash of device and figure, so whoever comes first, or often, or
in company stays the same share of those that are kept as of the fleet (a bottom-k sample; Cohen and Kaplan, 2007).
Votes that are not kept settle into a running mean.
"""

from __future__ import annotations

import hashlib
import io
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hope_schema.base import MAX_ROWS
from planner_api.compression import unzstd, zstd
from planner_api.models.figures import figure_hash

VOTES = 32
"""Devices whose newest votes on a figure are kept one by one."""
MAX_FIGURES = MAX_ROWS
"""Most figures of one family: what is published must be a profile by the contract."""
KEY_BYTES = 400
"""What the key of a figure takes in memory, with its place in the index."""
FAMILIES = ("latencies", "shares", "transfers", "overheads")
"""Shares are no microseconds but parts of a resource."""

Key = tuple[Any, ...]
"""Latency, share: (signature, kind). Transfer: (dtype, shape, source, target). Overhead: (name, kind)."""
FloatArray = NDArray[np.float64]
Names = NDArray[np.uint64]

_ARRAYS: dict[str, tuple[tuple[int, ...], type[np.generic], float]] = {
    "device": ((VOTES,), np.uint64, 0),
    "us": ((VOTES,), np.float64, np.nan),
    "spread": ((VOTES,), np.float32, 0),
    "settled": ((2,), np.float64, 0),
    "count": ((), np.int64, 0),
    "published": ((), np.float64, np.nan),
    "held": ((), np.bool_, 0),
    "name": ((), np.uint64, 0),
}
"""Of each array of ``Votes``: what it has per figure, its type, and what stands there at first."""


def device_hash(device_id: str) -> int:
    """Return the 64-bit hash a device is remembered by; never 0."""
    return int.from_bytes(hashlib.blake2b(device_id.encode(), digest_size=8).digest(), "little") or 1


def ranks(key: tuple[int, int], names: Names, devices: Names) -> Names:
    """Return the rank of devices among those that vote on figures; both broadcast.

    Who does not know the profile's ``key`` cannot choose a device's id for its ranks: ids and figures are mixed with a
    half of the key each, then together (with SplitMix64's finaliser).
    """
    first, second = (np.uint64(half) for half in key)
    return _mixed(_mixed(devices ^ first) ^ _mixed(names ^ second) ^ first)


def _mixed(values: Names) -> Names:
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Names = mixed ^ (mixed >> np.uint64(31))
    return found


class Votes:
    """One family of F figures.

    Attributes:
        key: the profile's secret that ranks are made with.
        keys: F keys, by row.
        name: (F,) hashes of the keys.
        device: (F, VOTES) device hashes, lowest rank first; 0 where there is no vote, which is at the end.
        us: (F, VOTES) votes in microseconds; NaN: no vote, infinity: unsupported.
        spread: (F, VOTES) the spread each device reported.
        settled: (F, 2) number and mean of the votes that are not kept.
        count: (F,) samples behind the votes so far.
        published: (F,) the estimates of the profile's current version; NaN: not part of it yet.
        held: (F,) whether a figure is held back until another device says it too (see ``plausibility``).
    """

    name: Names
    device: Names
    us: FloatArray
    spread: NDArray[np.float32]
    settled: FloatArray
    count: NDArray[np.int64]
    published: FloatArray
    held: NDArray[np.bool_]

    def __init__(self, key: tuple[int, int]) -> None:
        self.key = key
        self.keys: list[Key] = []
        self.index: dict[Key, int] = {}
        for field in _ARRAYS:
            setattr(self, field, _blank(field, 0))
        self.lost = False
        """Whether a published figure was dropped since the last version."""

    def rows(self, keys: Iterable[Key]) -> NDArray[np.int64]:
        """Return the row of each key, making rows for new ones."""
        index = self.index
        found = [index.setdefault(key, len(index)) for key in keys]
        if len(index) > len(self.keys):
            added = list(index)[len(self.keys) :]
            self.keys += added
            self._grow(added)
        return np.array(found, dtype=np.int64)

    def known(self) -> set[Key]:
        """Return the figures that somebody says."""
        said = (self.device != 0).any(axis=1) | (self.settled[:, 0] > 0)
        return {key for key, known in zip(self.keys, said.tolist(), strict=True) if known}

    def most_said(self, rows: slice | NDArray[np.int64] = slice(None)) -> int:
        """The most devices that have a vote on any of some figures: what stands behind so many columns is empty."""
        return max(1, int((self.device[rows] != 0).sum(axis=1).max(initial=0)))

    def alone(self) -> NDArray[np.bool_]:
        """Return (F,) whether exactly one device is known to say a figure."""
        lone: NDArray[np.bool_] = ((self.device != 0).sum(axis=1) == 1) & (self.settled[:, 0] == 0)
        return lone

    def charges(self) -> dict[int, float]:
        """Return what each device takes up: of every figure its part, one divided by the devices that say it."""
        voters = (self.device != 0).sum(axis=1, keepdims=True)
        parts = np.where(self.device != 0, 1.0 / np.maximum(voters, 1), 0.0)
        names, owners = np.unique(self.device, return_inverse=True)
        totals = np.bincount(owners.ravel(), weights=parts.ravel(), minlength=len(names))
        return {int(name): float(total) for name, total in zip(names, totals, strict=True) if name}

    def forget(self, devices: Iterable[int]) -> None:
        """Take back every vote of these devices, and what has settled: they may have had a part in it."""
        gone = np.isin(self.device, np.array(list(devices), dtype=np.uint64)) & (self.device != 0)
        self.device[gone] = 0
        self.us[gone] = np.nan
        self.held[gone.any(axis=1)] = False
        self.settled[:] = 0.0
        order = np.argsort(self.device == 0, axis=1, kind="stable")
        for field in ("device", "us", "spread"):
            setattr(self, field, np.take_along_axis(getattr(self, field), order, axis=1))
        self.keep((self.device != 0).any(axis=1))

    def keep(self, rows: NDArray[np.bool_]) -> None:
        if rows.all():
            return
        self.lost |= bool((~np.isnan(self.published[~rows])).any())
        self.keys = [key for key, kept in zip(self.keys, rows, strict=True) if kept]
        self.index = {key: row for row, key in enumerate(self.keys)}
        for field in _ARRAYS:
            setattr(self, field, getattr(self, field)[rows])

    def _grow(self, added: list[Key]) -> None:
        for field in _ARRAYS:
            setattr(self, field, _grown(field, getattr(self, field), len(self.keys)))
        self.name[-len(added) :] = [int.from_bytes(figure_hash(key), "little") for key in added]


def _blank(field: str, figures: int) -> NDArray[Any]:
    shape, kind, first = _ARRAYS[field]
    return np.full((figures, *shape), first, dtype=kind)


def _grown(field: str, known: NDArray[Any], figures: int) -> NDArray[Any]:
    """What is known of some figures, in room for so many, and for all votes on them."""
    found = _blank(field, figures)
    found[tuple(map(slice, known.shape))] = known
    return found


class Statistics:
    """Everything known of one SoC at one frequency.

    ``processors`` and ``channels`` map a definition (canonical JSON) to the newest devices that listed it, by their
    hashes; ``listed`` are the definitions of the profile's current version. ``key`` is a secret of the profile's that
    decides whose votes are kept; None: a new one. ``doubted`` says whether any upload came from somebody who is not
    simply believed.
    """

    def __init__(self, key: tuple[int, int] | None = None) -> None:
        self.key = key or (secrets.randbits(64), secrets.randbits(64))
        self.doubted = False
        self.latencies, self.shares, self.transfers, self.overheads = (Votes(self.key) for _ in FAMILIES)
        self.families: dict[str, Votes] = {name: getattr(self, name) for name in FAMILIES}
        self.processors: dict[str, list[int]] = {}
        self.channels: dict[str, list[int]] = {}
        self.listed: list[str] = []

    @property
    def size_bytes(self) -> int:
        """About what they take in memory."""
        arrays = sum(getattr(votes, field).nbytes for votes in self.families.values() for field in _ARRAYS)
        return int(arrays) + KEY_BYTES * sum(len(votes.keys) for votes in self.families.values())

    def forget(self, devices: Iterable[int]) -> None:
        gone = set(devices)
        for votes in self.families.values():
            votes.forget(gone)
        for listed in (self.processors, self.channels):
            for definition, named in list(listed.items()):
                listed[definition] = [device for device in named if device not in gone]
                if not listed[definition]:
                    del listed[definition]

    def said_by(self) -> dict[int, tuple[int, int]]:
        """Return, per device, how many figures its vote is kept of, and how many nobody else says."""
        found: dict[int, tuple[int, int]] = {}
        for votes in self.families.values():
            alone = votes.alone()
            names, counts = np.unique(votes.device, return_counts=True)
            lone, lone_counts = np.unique(votes.device[alone], return_counts=True)
            by_itself = dict(zip(lone.tolist(), lone_counts.tolist(), strict=True))
            for name, count in zip(names.tolist(), counts.tolist(), strict=True):
                figures, only = found.get(name, (0, 0))
                found[name] = (figures + count, only + by_itself.get(name, 0))
        found.pop(0, None)
        return found

    def dump(self) -> bytes:
        arrays: dict[str, Any] = {}
        head: dict[str, Any] = {"processors": self.processors, "channels": self.channels, "listed": self.listed}
        head |= {"key": self.key, "doubted": self.doubted}
        for name, votes in self.families.items():
            head[name] = votes.keys
            said = votes.most_said()
            for field, (shape, _, _) in _ARRAYS.items():
                array = getattr(votes, field)
                arrays[f"{name}.{field}"] = array[:, :said] if shape == (VOTES,) else array
        arrays["head"] = np.frombuffer(msgspec.json.encode(head), dtype=np.uint8)
        out = io.BytesIO()
        np.savez(out, **arrays)
        return zstd(out.getvalue())

    @classmethod
    def load(cls, data: bytes | None) -> Statistics:
        """Return what ``dump`` wrote; None gives empty statistics."""
        if data is None:
            return cls()
        with np.load(io.BytesIO(unzstd(data)), allow_pickle=False) as arrays:
            head = msgspec.json.decode(arrays["head"].tobytes())
            statistics = cls(tuple(head["key"]))
            statistics.doubted = head["doubted"]
            statistics.processors, statistics.channels = head["processors"], head["channels"]
            statistics.listed = head["listed"]
            for name, votes in statistics.families.items():
                votes.keys = [_tuples(key) for key in head[name]]
                votes.index = {key: row for row, key in enumerate(votes.keys)}
                for field in _ARRAYS:
                    setattr(votes, field, _grown(field, arrays[f"{name}.{field}"], len(votes.keys)))
        return statistics


def _tuples(key: list[Any]) -> Key:
    return tuple(tuple(part) if isinstance(part, list) else part for part in key)
