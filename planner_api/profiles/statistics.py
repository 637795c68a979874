"""The statistics kept of every figure of one SoC at one frequency. Plain arrays; no SQL, no HTTP, no clock.

A figure is a latency, a share, a transfer or an overhead. Of each, the newest vote of up to ``VOTES`` distinct devices
is kept as it is, so that an early liar can still be outvoted later; votes that fall off the end have settled into a
running mean (Welford, Chan's update). So one device weighs one vote, however often it uploads.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hope_schema.base import MAX_ROWS
from planner_api.compression import unzstd, zstd

VOTES = 32
"""Distinct devices whose newest votes on a figure are kept one by one."""
MAX_FIGURES = MAX_ROWS
"""Most figures of one family: what is published must be a profile by the contract."""
FAMILIES = ("latencies", "shares", "transfers", "overheads")

Key = tuple[Any, ...]
"""Latency, share: (signature, kind). Transfer: (dtype, shape, source, target). Overhead: (name, kind), or () for the
hand-over."""
FloatArray = NDArray[np.float64]


class Votes:
    """One family of F figures.

    Attributes:
        keys: F keys, by row.
        device: (F, VOTES) 32-bit device hashes, oldest first; 0 where there is no vote.
        us: (F, VOTES) votes in microseconds; NaN: no vote, infinity: unsupported.
        spread: (F, VOTES) the spread each device reported.
        settled: (F, 3) number, mean and sum of squared deviations of the votes that fell off the end.
        count: (F,) samples behind the votes so far.
        published: (F,) the estimates of the profile's current version; NaN: not part of it yet.
    """

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.index: dict[Key, int] = {}
        self.device = np.zeros((0, VOTES), dtype=np.uint32)
        self.us = np.full((0, VOTES), np.nan)
        self.spread = np.zeros((0, VOTES), dtype=np.float32)
        self.settled = np.zeros((0, 3))
        self.count = np.zeros(0, dtype=np.int64)
        self.published = np.full(0, np.nan)

    def rows(self, keys: Iterable[Key]) -> NDArray[np.int64]:
        """Return the row of each key, making rows for new ones. Raises ValueError when there are too many."""
        index, keys = self.index, list(keys)
        if len(index) + len(keys) > MAX_FIGURES and len(index) + sum(key not in index for key in keys) > MAX_FIGURES:
            raise ValueError(f"more than {MAX_FIGURES} figures for one SoC and frequency")
        found = [index.setdefault(key, len(index)) for key in keys]
        if len(index) > len(self.keys):
            self.keys = list(index)
            self._grow(len(index))
        return np.array(found, dtype=np.int64)

    def _grow(self, size: int) -> None:
        more = size - len(self.count)
        self.device = np.concatenate([self.device, np.zeros((more, VOTES), dtype=np.uint32)])
        self.us = np.concatenate([self.us, np.full((more, VOTES), np.nan)])
        self.spread = np.concatenate([self.spread, np.zeros((more, VOTES), dtype=np.float32)])
        self.settled = np.concatenate([self.settled, np.zeros((more, 3))])
        self.count = np.concatenate([self.count, np.zeros(more, dtype=np.int64)])
        self.published = np.concatenate([self.published, np.full(more, np.nan)])


class Statistics:
    """Everything known of one SoC at one frequency.

    ``processors`` and ``channels`` map a definition (canonical JSON) to the newest devices that listed it.
    """

    def __init__(self) -> None:
        self.families = {name: Votes() for name in FAMILIES}
        self.processors: dict[str, list[int]] = {}
        self.channels: dict[str, list[int]] = {}

    @property
    def latencies(self) -> Votes:
        """Keys: (signature, kind)."""
        return self.families["latencies"]

    @property
    def shares(self) -> Votes:
        """Keys: (signature, kind); the votes are no microseconds but parts of a resource."""
        return self.families["shares"]

    @property
    def transfers(self) -> Votes:
        """Keys: (dtype, shape, source, target)."""
        return self.families["transfers"]

    @property
    def overheads(self) -> Votes:
        """Keys: (name, kind), and () for the hand-over between lanes."""
        return self.families["overheads"]

    def dump(self) -> bytes:
        """Return the statistics as compressed bytes."""
        arrays: dict[str, NDArray[Any]] = {}
        head: dict[str, Any] = {"processors": self.processors, "channels": self.channels}
        for name, votes in self.families.items():
            head[name] = votes.keys
            for field in ("device", "us", "spread", "settled", "count", "published"):
                arrays[f"{name}.{field}"] = getattr(votes, field)
        arrays["head"] = np.frombuffer(json.dumps(head, separators=(",", ":")).encode(), dtype=np.uint8)
        out = io.BytesIO()
        np.savez(out, **arrays)  # type: ignore[arg-type]
        return zstd(out.getvalue())

    @classmethod
    def load(cls, data: bytes | None) -> Statistics:
        """Return what ``dump`` wrote; None gives empty statistics."""
        statistics = cls()
        if data is None:
            return statistics
        with np.load(io.BytesIO(unzstd(data)), allow_pickle=False) as arrays:
            head = json.loads(arrays["head"].tobytes())
            statistics.processors, statistics.channels = head["processors"], head["channels"]
            for name, votes in statistics.families.items():
                votes.keys = [_tuples(key) for key in head[name]]
                votes.index = {key: row for row, key in enumerate(votes.keys)}
                for field in ("device", "us", "spread", "settled", "count", "published"):
                    setattr(votes, field, arrays[f"{name}.{field}"])
        return statistics


def _tuples(key: list[Any]) -> Key:
    return tuple(tuple(part) if isinstance(part, list) else part for part in key)
