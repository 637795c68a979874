"""A published profile as look-up tables: what is known, and whether two versions differ where a plan cares.

Reads the snapshot's JSON directly: this stands on the path of every cached plan in embedded mode, where building
the validated classes would cost more than everything else together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from hope_schema.profile import HOST, kind_of
from planner_api.compression import unzstd
from planner_api.models.figures import Figures, Latency, Transfer

PER_KIND = ("launch_us", "end_us", "slowdown")
"""Overheads that belong to a kind of processor."""
SMALLEST_US = 1.0
"""Movements are compared with at least this: a nanosecond more on a tenth of a microsecond re-plans nothing."""


@dataclass(frozen=True)
class Known:
    """The figures of one profile version; a latency of None says unsupported."""

    version: int
    kinds: dict[str, str]
    """Processor id to kind."""
    places: dict[str, str]
    """Processor id to place."""
    latencies: dict[Latency, float | None]
    shares: dict[Latency, float]
    """Only those below 1."""
    transfers: dict[Transfer, float]
    overheads: dict[tuple[str, str], float]
    """Name of an overhead and kind of processor (none for the hand-over) to its figure."""
    channels: tuple[str, ...]
    """As JSON: whatever changes in one changes plans."""

    @classmethod
    def read(cls, body_zstd: bytes) -> Known:
        """Read a snapshot as ``snapshot.publish`` wrote it."""
        body: dict[str, Any] = from_json(unzstd(body_zstd))
        latencies, transfers, overheads = body["latencies"], body["transfers"], body["overheads"]
        rows = list(zip(latencies["signature"], latencies["kind"], strict=True))
        types = [(tensor["dtype"], tuple(tensor["shape"])) for tensor in transfers["tensor"]]
        moves = zip(types, transfers["source"], transfers["target"], transfers["us"], strict=True)
        return cls(
            version=body["version"],
            kinds={
                p["id"]: kind_of(p["runtime"], p["version"], p["threads"], p["core_class"], p.get("precision", "model"))
                for p in body["processors"]
            },
            places={p["id"]: p.get("place", HOST) for p in body["processors"]},
            latencies=dict(zip(rows, latencies["us"], strict=True)),
            shares={
                row: share
                for row, share in zip(rows, latencies.get("share") or [1.0] * len(rows), strict=True)
                if share < 1.0
            },
            transfers={(dtype, shape, source, target): us for (dtype, shape), source, target, us in moves},
            overheads={
                ("handover_us", ""): overheads["handover_us"],
                **{(name, kind): us for name in PER_KIND for kind, us in overheads.get(name, {}).items()},
            },
            channels=tuple(sorted(json.dumps(channel, sort_keys=True) for channel in body.get("channels", ()))),
        )

    def covers(self, figures: Figures, kinds: Sequence[str], places: Sequence[str]) -> bool:
        """Whether every figure is known that a plan on processors of these kinds needs, one place per processor."""
        return all(key in self.latencies for key in figures.latencies(kinds)) and all(
            key in self.transfers for key in figures.transfers(places)
        )


def differ(old: Known, new: Known, figures: Figures, processors: Iterable[str] | None, threshold: float) -> bool:
    """Whether a figure that a plan rests on appeared, vanished or moved by more than a fraction between versions.

    ``processors`` are the plan's candidates; None: all, so that a new processor makes a difference too.
    """
    names = list(old.kinds) if processors is None else list(processors)
    if (processors is None and old.kinds != new.kinds) or old.channels != new.channels:
        return True
    if any(
        old.kinds.get(name) != new.kinds.get(name) or old.places.get(name) != new.places.get(name) for name in names
    ):
        return True
    kinds = list(dict.fromkeys(old.kinds[name] for name in names if name in old.kinds))
    places = [old.places[name] for name in names if name in old.places]
    return (
        any(
            _moved(old.latencies.get(key, -1.0), new.latencies.get(key, -1.0), threshold)
            or abs(new.shares.get(key, 1.0) - old.shares.get(key, 1.0)) > threshold
            for key in figures.latencies(kinds)
        )
        or any(
            _moved(old.transfers.get(key, -1.0), new.transfers.get(key, -1.0), threshold)
            for key in figures.transfers(places)
        )
        or any(
            _moved(old.overheads.get((name, kind), 0.0), new.overheads.get((name, kind), 0.0), threshold)
            for name in ("handover_us", *PER_KIND)
            for kind in (*kinds, "")
        )
    )


def _moved(old: float | None, new: float | None, threshold: float) -> bool:
    """-1 stands for absent, None for unsupported: a change from or to either is always a move."""
    if old is None or new is None or old < 0 or new < 0:
        return old != new
    return abs(new - old) > threshold * max(old, SMALLEST_US)
