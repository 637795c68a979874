"""What looking into statistics takes. Its importer decides when NumPy is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner_api.models.figures import Figures, Latency, Transfer
from planner_api.profiles.folding import wanted
from planner_api.profiles.predictions import Predictions
from planner_api.profiles.statistics import Statistics, device_hash

__all__ = ["Predictions", "Statistics", "open_figures"]


def open_figures(
    statistics: Statistics,
    figures: Figures,
    kinds: Sequence[str],
    places: Sequence[str],
    device: str | None,
    most: int,
) -> tuple[list[Latency | Transfer], list[Latency | Transfer]]:
    """Return the figures that nobody has said, and at most ``most`` that a device should say too (None: none)."""
    latencies, transfers = list(figures.latencies(kinds)), list(figures.transfers(places))
    known = statistics.latencies.known(), statistics.transfers.known()
    unknown: list[Latency | Transfer] = [key for key in latencies if key not in known[0]]
    unknown += [key for key in transfers if key not in known[1]]
    if device is None:
        return unknown, []
    name = device_hash(device)
    unsure: list[Any] = [
        *wanted(statistics.latencies, name, latencies, most),
        *wanted(statistics.transfers, name, transfers, most),
    ]
    return unknown, unsure[:most]
