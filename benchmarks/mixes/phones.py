"""Measured phones as processors for policies: each network in a few units, its moves charged at every border."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf

from agent_sdk.scheduling.mixes import Mix
from agent_sdk.scheduling.network import Network
from agent_sdk.scheduling.outcome import missed
from agent_sdk.scheduling.policies import POLICIES, policy
from benchmarks.mixes.units import units, without_small
from benchmarks.profiles import PhoneProfile
from benchmarks.results import Table, TableRow
from planner_api.planning.problem.transfers import elements, fit
from tests.agent.scheduling.simulation import simulate

DECIDING = [name for name, own in POLICIES.items() if not own.joint]
"""Policies that need no joint plan."""
UNITS = 5
"""Units of a network that every processor supports all of, as measured phones do: it is one, and is cut where its time
is divided evenly."""
DEADLINE, SECONDS, LOADS = 1.0, 60.0, (0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0)
"""Deadlines in periods, simulated time in units of the longest period, and loads of the best processor alone."""


def clusters(profile: PhoneProfile) -> list[tuple[str, int]]:
    """Processors that exclude nobody else: each cluster at its most cores, and the GPU; and the bit of each."""
    most: dict[str, tuple[int, str]] = {}
    for key in profile.keys:
        cluster, _, cores = key.rpartition("_")
        most[cluster] = max(most.get(cluster, (0, "")), (int(cores), key))
    return [(key, 1 << index) for index, key in enumerate([*(key for _, key in most.values()), "gpu"])]


def network(profile: PhoneProfile, processors: Sequence[str], count: int = UNITS) -> Network:
    """A network in its units, each cut so that there are about so many, in nanoseconds."""
    us = {name: [_us(op["latency_us"].get(name)) for op in profile.ops] for name in processors}
    first_us = [next((own[op] for own in us.values() if own[op] < inf), 0.0) for op in range(len(profile.ops))]
    every_us = sum(first_us) or 1.0
    members = list[tuple[int, ...]]()
    for unit in _units(profile, us):
        own_us = [first_us[op] for op in unit]
        members += _evenly(unit, own_us, max(round(count * sum(own_us) / every_us), 1))
    moved = {way: _moves(profile, members, way) for way in ("cpu_to_gpu", "gpu_to_cpu")}
    table = {}
    for index, name in enumerate(processors):
        for first in range(len(members)):
            for last in range(first, len(members)):
                took = sum(us[name][op] for unit in members[first : last + 1] for op in unit)
                took += moved["cpu_to_gpu" if name == "gpu" else "gpu_to_cpu"][first]
                if took < inf:
                    table[first, last, index] = round(took * 1e3)
    return Network(profile.model, len(members), len(processors), table)


def _us(measured: float | None) -> float:
    """What an op takes; for ever where it was not measured: it does not run there."""
    return inf if measured is None else float(measured)


def _units(profile: PhoneProfile, us: Mapping[str, Sequence[float]]) -> list[tuple[int, ...]]:
    """Ops by unit, where each processor runs what it takes a time for."""
    makers = {tensor: index for index, op in enumerate(profile.ops) for tensor in op["outputs"]}
    before = [{makers[tensor] for tensor in op["inputs"] if tensor in makers} for op in profile.ops]
    runs = [
        frozenset(index for index, own in enumerate(us.values()) if own[op] < inf) for op in range(len(profile.ops))
    ]
    return units(without_small(runs, before, [index for index, name in enumerate(us) if name == "gpu"]), before)


def _evenly(unit: Sequence[int], us: Sequence[float], count: int) -> list[tuple[int, ...]]:
    """The ops of a unit in so many parts, each of about as much time."""
    total, reached, found = sum(us), 0.0, [0]
    for index, own in enumerate(us):
        reached += own
        if reached >= total * len(found) / count and index + 1 < len(us):
            found.append(index + 1)
    return [tuple(unit[begin:end]) for begin, end in pairwise([*found[:count], len(us)])]


def _moves(profile: PhoneProfile, members: Sequence[Sequence[int]], way: str) -> list[float]:
    """By unit what its inputs cost to move, where they were made by an earlier one on another processor."""
    known = {tuple(row["shape"]): float(row[way]) for row in profile.transfers}
    line = fit([elements(shape) for shape in known], list(known.values()))
    maker = {tensor: unit for unit, ops in enumerate(members) for op in ops for tensor in profile.ops[op]["outputs"]}
    found = []
    for unit, ops in enumerate(members):
        read = {tensor for op in ops for tensor in profile.ops[op]["inputs"] if maker.get(tensor, unit) < unit}
        shapes = [tuple(profile.shapes[tensor]) for tensor in read]
        found.append(sum(known.get(shape, line.cost_us(elements(shape))) for shape in shapes))
    return found


def mix_of(networks: Mapping[str, Network], load: float, arrival: str = "periodic") -> Mix:
    """Every network as often as its share of a load allows; a deadline is a period."""
    streams = []
    for name, own in networks.items():
        alone_ms = min(ns for _, ns in own.wholes()) / 1e6
        period = alone_ms * len(networks) / load
        streams.append(
            {
                "name": name,
                "model": name,
                "period_ms": period,
                "deadline_ms": DEADLINE * period,
                "arrival": arrival,
                "jitter_ms": 0.1 * period,
                "on_late": "drop",
            }
        )
    longest = max(float(stream["period_ms"]) for stream in streams)  # type: ignore[arg-type]
    return Mix.model_validate({"seconds": SECONDS * longest / 1e3, "streams": streams})


def replay(profiles: Sequence[PhoneProfile]) -> tuple[Table, dict[str, dict[float, dict[str, float]]]]:
    """Misses by phone, load and policy."""
    phones: dict[str, list[PhoneProfile]] = {}
    for profile in profiles:
        phones.setdefault(profile.phone, []).append(profile)
    rows: list[TableRow] = []
    found: dict[str, dict[float, dict[str, float]]] = {}
    for phone, own in phones.items():
        pairs = clusters(own[0])
        names, masks = [name for name, _ in pairs], [mask for _, mask in pairs]
        for load in LOADS:
            by_policy = {}
            for which in DECIDING:
                networks = {profile.model: network(profile, names) for profile in own}
                by_policy[which] = missed(simulate(mix_of(networks, load), networks, masks, policy(which)))
            found.setdefault(phone, {})[load] = by_policy
            rows.append([phone, load, *by_policy.values()])
    return Table("phones: misses by load of the best processor", ["phone", "load", *DECIDING], rows), found
