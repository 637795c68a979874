"""From statistics to the profile that plans rest on."""

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from hope_schema import HOST, Processor
from planner_api.profiles.folding import (
    LISTED_BY,
    MATERIAL,
    Definition,
    Estimates,
    channel_name,
    moved,
    processor_name,
)
from planner_api.profiles.known import PER_KIND
from planner_api.profiles.statistics import FloatArray, Statistics, Votes


def materially_changed(statistics: Statistics, found: Estimates) -> bool:
    """Whether the profile deserves a new version: a definition changed, or a figure came, went or moved so far."""
    return _texts(listing(statistics)) != statistics.listed or any(
        votes.lost or bool(moved(votes.published, _counting(votes, found[name][0]), MATERIAL).any())
        for name, votes in statistics.families.items()
    )


def _counting(votes: Votes, us: FloatArray) -> FloatArray:
    """The estimates that plans rest on: without what is held back."""
    return np.where(votes.held, np.nan, us)


def listing(statistics: Statistics) -> tuple[dict[str, Definition], dict[str, Definition]]:
    """Return the processors, and the channels between their places, by their canonical JSON."""
    processors = agreed(statistics.processors, processor_name)
    places = {processor.get("place", HOST) for processor in processors.values()} | {HOST}
    channels = agreed(statistics.channels, channel_name)
    return processors, {text: one for text, one in channels.items() if {one["source"], one["target"]} <= places}


def _texts(listed: Iterable[Iterable[str]]) -> list[str]:
    return sorted(chain.from_iterable(listed))


def agreed(listed: Mapping[str, Sequence[int]], name: Callable[[Definition], Hashable]) -> dict[str, Definition]:
    """Return the definitions that enough devices list; of two under one name the commoner, then the newer.

    Devices are counted up to ``VOTES``.
    """
    weight = Counter({definition: len(set(devices)) for definition, devices in listed.items()})
    fleet = max(weight.values(), default=0)
    chosen: dict[Hashable, tuple[int, int, str, Definition]] = {}
    for age, text in enumerate(listed):
        definition = json.loads(text)
        if weight[text] * LISTED_BY < fleet:
            continue
        rank = (weight[text], age)
        if name(definition) not in chosen or rank > chosen[name(definition)][:2]:
            chosen[name(definition)] = (*rank, text, definition)
    return {text: definition for _, _, text, definition in chosen.values()}


def publish(statistics: Statistics, found: Estimates, soc: str, frequency: str, version: int) -> bytes:
    """Return the profile as JSON, and remember its figures and definitions as the published ones.

    Figures of processors that are no longer listed, and those held back, are kept in the statistics but left out.
    """
    listed = listing(statistics)
    statistics.listed = _texts(listed)
    processors, channels = (list(definitions.values()) for definitions in listed)
    known = [Processor.model_validate_json(json.dumps(processor)) for processor in processors]
    kinds = {processor.kind for processor in known}
    places = {processor.place for processor in known} | {HOST}
    body: dict[str, Any] = {
        "soc": soc, "frequency": frequency, "version": version, "processors": processors, "channels": channels,
    }  # fmt: skip

    us, spread = _published(statistics, found, "latencies")
    votes = statistics.latencies
    rows = [row for row, key in enumerate(votes.keys) if key[1] in kinds and not math.isnan(us[row])]
    body["latencies"] = {
        "signature": [votes.keys[row][0] for row in rows],
        "kind": [votes.keys[row][1] for row in rows],
        **_figures(votes, rows, us, spread),
    }
    share, _ = _published(statistics, found, "shares")
    if share:
        shares = dict(zip(statistics.shares.keys, share, strict=True))
        body["latencies"]["share"] = [shares.get(votes.keys[row], 1.0) for row in rows]
    us, spread = _published(statistics, found, "transfers")
    votes = statistics.transfers
    rows = [
        row for row, key in enumerate(votes.keys) if key[2] in places and key[3] in places and math.isfinite(us[row])
    ]
    body["transfers"] = {
        "tensor": [{"dtype": votes.keys[row][0], "shape": votes.keys[row][1]} for row in rows],
        "source": [votes.keys[row][2] for row in rows],
        "target": [votes.keys[row][3] for row in rows],
        **_figures(votes, rows, us, spread),
    }
    us, _ = _published(statistics, found, "overheads")
    known_costs = [
        (*key, cost) for key, cost in zip(statistics.overheads.keys, us, strict=True) if not math.isnan(cost)
    ]
    body["overheads"] = {
        name: {kind: cost for one, kind, cost in known_costs if one == name and kind in kinds} for name in PER_KIND
    }
    return msgspec.json.encode(body)


def _figures(votes: Votes, rows: Sequence[int], us: Sequence[float], spread: Sequence[float]) -> dict[str, list[Any]]:
    return {
        "us": [None if math.isinf(us[row]) else us[row] for row in rows],
        "spread_us": [spread[row] for row in rows],
        "count": [max(1, int(votes.count[row])) for row in rows],
    }


def _published(statistics: Statistics, found: Estimates, family: str) -> tuple[list[float], list[float]]:
    votes, (us, spread) = statistics.families[family], found[family]
    votes.published, votes.lost = _counting(votes, us), False
    return votes.published.tolist(), spread.tolist()
