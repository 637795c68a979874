"""A published profile as look-up tables: what is known, and whether two versions differ where a plan cares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from hope_schema import HOST, Channel, Processor, Profile, recipe_of
from planner_api.compression import loaded
from planner_api.models.figures import Figures, Latency, Transfer

PER_KIND = ("launch_us", "end_us", "slowdown", "spread")
"""Overheads that belong to a kind of processor."""
SMALLEST_US = 1.0
"""Movements are compared with at least this: a nanosecond more on a tenth of a microsecond re-plans nothing."""


@dataclass(frozen=True)
class Known:
    """The figures of one profile version; a latency of None says unsupported."""

    version: int
    processors: dict[str, Processor]
    """By their ids."""
    latencies: dict[Latency, float | None]
    recipes: dict[Latency, list[Latency]]
    """By an op's own row those of its further recipes, of which plans take whichever is best."""
    shares: dict[Latency, float]
    """Only those below 1."""
    transfers: dict[Transfer, float]
    overheads: dict[tuple[str, str], float]
    """Name of an overhead and kind of processor to its figure."""
    channels: frozenset[Channel]
    """Whatever changes in one changes plans."""

    @classmethod
    def read(cls, body_zstd: bytes) -> Known:
        profile = loaded(Profile, body_zstd)
        latencies, transfers, overheads = profile.latencies, profile.transfers, profile.overheads
        rows = list(zip(latencies.signature, latencies.kind, strict=True))
        shares = dict(zip(rows, latencies.share or [1.0] * len(rows), strict=True))
        recipes: dict[Latency, list[Latency]] = {}
        for signature, kind in rows:
            own, recipe = recipe_of(signature)
            if recipe is not None:
                recipes.setdefault((own, kind), []).append((signature, kind))
        types = [(tensor.dtype, tensor.shape) for tensor in transfers.tensor]
        moves = zip(types, transfers.source, transfers.target, transfers.us, strict=True)
        return cls(
            version=profile.version,
            processors={processor.id: processor for processor in profile.processors},
            latencies=dict(zip(rows, latencies.us, strict=True)),
            recipes=recipes,
            shares={row: share for row, share in shares.items() if share < 1.0},
            transfers={(dtype, shape, source, target): us for (dtype, shape), source, target, us in moves},
            overheads={(name, kind): us for name in PER_KIND for kind, us in getattr(overheads, name).items()},
            channels=frozenset(profile.channels),
        )


def differ(old: Known, new: Known, figures: Figures, processors: Iterable[str] | None, threshold: float) -> bool:
    """Whether what a plan rests on differs: a definition, or a figure that came, went or moved by more than a fraction.

    ``processors`` are the plan's candidates; None: all, so that a new processor makes a difference too.
    """
    names = list({*old.processors, *new.processors} if processors is None else processors)
    if old.channels != new.channels or any(old.processors.get(name) != new.processors.get(name) for name in names):
        return True
    candidates = [old.processors[name] for name in names if name in old.processors]
    kinds = list(dict.fromkeys(processor.kind for processor in candidates))
    latencies = [
        row for own in figures.latencies(kinds) for row in (own, *old.recipes.get(own, ()), *new.recipes.get(own, ()))
    ] + [*product(figures.parts, kinds)]
    # What goes on to another host, or to where no channel leads at once, passes the host's plain memory.
    transfers = figures.transfers([*(processor.place for processor in candidates), HOST])
    overheads = ((name, kind) for name in PER_KIND for kind in kinds)
    return (
        any(_moved(old.latencies.get(key, -1.0), new.latencies.get(key, -1.0), threshold) for key in latencies)
        or any(abs(new.shares.get(key, 1.0) - old.shares.get(key, 1.0)) > threshold for key in latencies)
        or any(_moved(old.transfers.get(key, -1.0), new.transfers.get(key, -1.0), threshold) for key in transfers)
        or any(_moved(old.overheads.get(key, 0.0), new.overheads.get(key, 0.0), threshold) for key in overheads)
    )


def _moved(old: float | None, new: float | None, threshold: float) -> bool:
    """-1 stands for absent, None for unsupported: a change from or to either is always a move."""
    if old is None or new is None or old < 0 or new < 0:
        return old != new
    return abs(new - old) > threshold * max(old, SMALLEST_US)
