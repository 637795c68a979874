"""From statistics to the profile that plans rest on."""

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

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
from planner_api.profiles.plausibility import counting
from planner_api.profiles.statistics import FloatArray, Statistics, Votes


def materially_changed(statistics: Statistics, found: Estimates) -> bool:
    """Whether the profile deserves a new version: a definition changed, or a figure came, went or moved so far."""
    us = counting(statistics, found)
    return _texts(listing(statistics)) != statistics.listed or any(
        votes.lost or bool(moved(votes.published, us[name], MATERIAL).any())
        for name, votes in statistics.families.items()
    )


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

    Figures of processors that are no longer listed, and latencies and transfers that are held back, are kept in the
    statistics but left out.
    """
    for name, counts in counting(statistics, found).items():
        statistics.families[name].published, statistics.families[name].lost = counts, False
    listed = listing(statistics)
    statistics.listed = _texts(listed)
    processors, channels = (list(definitions.values()) for definitions in listed)
    known = [Processor.model_validate_json(json.dumps(processor)) for processor in processors]
    kinds = {processor.kind for processor in known}
    places = {processor.place for processor in known} | {HOST}
    body: dict[str, Any] = {
        "soc": soc, "frequency": frequency, "version": version, "processors": processors, "channels": channels,
    }  # fmt: skip

    votes = statistics.latencies
    us = votes.published.tolist()
    rows = [row for row, key in enumerate(votes.keys) if key[1] in kinds and not math.isnan(us[row])]
    body["latencies"] = {
        "signature": [votes.keys[row][0] for row in rows],
        "kind": [votes.keys[row][1] for row in rows],
        **_figures(votes, rows, us, found["latencies"][1]),
    }
    if statistics.shares.keys:
        shares = dict(zip(statistics.shares.keys, statistics.shares.published.tolist(), strict=True))
        body["latencies"]["share"] = [shares.get(votes.keys[row], 1.0) for row in rows]
    votes = statistics.transfers
    us = votes.published.tolist()
    rows = [
        row for row, key in enumerate(votes.keys) if key[2] in places and key[3] in places and math.isfinite(us[row])
    ]
    body["transfers"] = {
        "tensor": [{"dtype": votes.keys[row][0], "shape": votes.keys[row][1]} for row in rows],
        "source": [votes.keys[row][2] for row in rows],
        "target": [votes.keys[row][3] for row in rows],
        **_figures(votes, rows, us, found["transfers"][1]),
    }
    costs = statistics.overheads
    known_costs = [
        (*key, cost) for key, cost in zip(costs.keys, costs.published.tolist(), strict=True) if not math.isnan(cost)
    ]
    body["overheads"] = {
        name: {kind: cost for one, kind, cost in known_costs if one == name and kind in kinds} for name in PER_KIND
    }
    return msgspec.json.encode(body)


def _figures(votes: Votes, rows: Sequence[int], us: Sequence[float], spread: FloatArray) -> dict[str, list[Any]]:
    return {
        "us": [None if math.isinf(us[row]) else us[row] for row in rows],
        "spread_us": spread[rows].tolist(),
        "count": [max(1, int(votes.count[row])) for row in rows],
    }
