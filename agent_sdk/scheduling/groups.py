"""A network on several core groups at once, so that a policy may choose how many cores a run gets.

Every group computes the same network: a whole on one processor, compiled once for each, by the runtime that is fastest
there; single cores of a kind share one where that computes several runs at once, and a run is on whichever is free. The
answers were judged by the network's file before anybody gets them. A long network is cut into pieces, so that others
may step in at its borders.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import inf
from typing import Final, NamedTuple

from agent_sdk.engine import Device, Executor
from agent_sdk.engine.build import equals_of
from agent_sdk.engine.single import whole_run
from agent_sdk.engine.trace import Trace
from agent_sdk.errors import ProcessorError, UnplannableError
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.rivals import UNFIT, distinct
from agent_sdk.journey.services import Services
from agent_sdk.journey.trial import hold_trial
from agent_sdk.model.weights import copies_at_once
from hope_schema import HOST, ModelGraph, merge

ROUNDS: Final = 5
"""Runs by which the groups are timed."""
PIECE_US: Final = 2000.0
"""Microseconds that a piece is to take; a network that takes less than two of them stays whole."""
MOST_FINE: Final = 64
"""Borders at which a network is cut at most to see where its time goes."""
CUT: Final = 1.03
"""How many times what the whole takes its pieces may take together."""


class Group(NamedTuple):
    """A network ready on a core group.

    Attributes:
        executor: runs it.
        us: what a run is expected to take, microseconds.
        border_us: the longest of its pieces, microseconds; 0 where it runs in one go.
    """

    executor: Executor
    us: float
    border_us: float = 0.0


def borders(graph: ModelGraph) -> list[int]:
    """Super-ops before which a network may be cut: where one tensor crosses; of very many every so many."""
    super_ops = merge(graph)
    read = {name: index for index, each in enumerate(super_ops) for name in each.inputs}
    found, alive = list[int](), set[str]()
    for index, each in enumerate(super_ops):
        if len(alive) == 1 and index:
            found.append(index)
        alive = {name for name in alive.union(each.outputs) if read.get(name, -1) > index}
    return found[:: len(found) // MOST_FINE + 1]


def pieces(found: Sequence[int], fine_us: Sequence[float], us: float) -> list[int]:
    """Those of the borders that leave no piece too short of a network that takes so long.

    ``fine_us`` is what passed before each border and behind the last one where this was measured, perhaps elsewhere.
    """
    kept, full = list[int](), 0.0
    for border, took in zip(found, fine_us, strict=False):
        full += took * us / sum(fine_us)
        if full >= PIECE_US:
            kept.append(border)
            full = 0.0
    return kept if us >= 2 * PIECE_US else []


def spread(prepared: Prepared, services: Services, in_flight: int) -> dict[str, Group]:
    """The network ready on core groups, as many as memory has room for, of each kind at least one.

    One of each kind is timed, and of runtimes on the same resources the fastest stays, whole and in pieces; where these
    end is measured on the slowest. ``in_flight`` runs of it may be under way at once. Raises ProcessorError where none
    runs, UnplannableError where one answer has to stay for one input.
    """
    if prepared.pinned:
        raise UnplannableError(f"'{prepared.model.name}' is answered by one processor as long as it lives")
    device = services.device
    here = {name: own for name, own in services.planning_on.items() if own.spec.memory == HOST}
    names = sorted(here, key=lambda name: -len(here[name].spec.resources))
    kinds = distinct({name: here[name] for name in names})
    feed = prepared.drawn.tried[0]
    with ExitStack() as opened:
        ready = partial(_ready, prepared, device, opened, in_flight)
        whole, refused = ready(names, dict.fromkeys(kinds, ((), 0.0)))
        if not whole:
            raise ProcessorError(f"'{prepared.model.name}' runs right on no core group: {refused}")
        us = _fastest(hold_trial(whole, feed, [(ROUNDS, inf)]).us, device)
        for name in whole.keys() - us.keys():
            whole.pop(name).close()
        found = {name: Group(whole[name], took) for name, took in us.items()}
        slowest = max(us, key=us.__getitem__)
        fine = borders(prepared.model.graph) if us[slowest] >= 2 * PIECE_US else []
        finest, _ = ready(names, {slowest: (fine, us[slowest])} if fine else {})
        took_us = _segments_us(hold_trial(finest, feed, [(ROUNDS, inf)]).traces[slowest]) if finest else []
        for executor in finest.values():
            executor.close()
        cuts = {name: (pieces(fine, took_us, took), took) for name, took in us.items()}
        cut, _ = ready(names, {name: each for name, each in cuts.items() if each[0]})
        for name, executor in cut.items():
            traces = hold_trial({"whole": whole[name], "pieces": executor}, feed, [(ROUNDS, inf)]).traces
            least = {which: min(trace.total_us for trace in own) for which, own in traces.items() if own}
            if least.get("pieces", inf) <= CUT * least.get("whole", inf):
                found[name] = Group(executor, us[name], max(_segments_us(traces["pieces"])))
        like = {device.processors[name].spec.kind: name for name in found}
        firsts = {name: like.get(device.processors[name].spec.kind) for name in names if name not in kinds}
        asked = {name: first for name, first in firsts.items() if first is not None}
        shared = {name: found[first] for name, first in asked.items() if len(found[first].executor.program.floats) > 1}
        asked = {name: first for name, first in asked.items() if name not in shared}
        wanted = {name: cuts[first] if found[first].border_us else ((), 0.0) for name, first in asked.items()}
        room = max(copies_at_once(prepared.model) - 1 - len(found), 0)
        copies, _ = ready(names, dict(list(wanted.items())[:room]))
        found |= shared | {name: found[asked[name]]._replace(executor=executor) for name, executor in copies.items()}
        opened.pop_all()
    for executor in {*whole.values(), *cut.values()} - {own.executor for own in found.values()}:
        executor.close()
    return found


def _fastest(us: Mapping[str, float], device: Device) -> dict[str, float]:
    """What the fastest processor of each set of resources takes."""
    found: dict[tuple[str, ...], str] = {}
    for name in sorted(us, key=us.__getitem__):
        found.setdefault(device.processors[name].spec.resources, name)
    return {name: us[name] for name in found.values()}


def _ready(
    prepared: Prepared,
    device: Device,
    opened: ExitStack,
    in_flight: int,
    names: Collection[str],
    cuts: Mapping[str, tuple[Collection[int], float]],
) -> tuple[dict[str, Executor], list[str]]:
    """Whole runs by processor, cut before these super-ops, with what the whole takes; and why others are not there.

    A single core's runs may be on any of its equals among ``names``, on as many of them at once as ``in_flight`` says.
    """
    among = {name: device.processors[name] for name in names}
    executors: dict[str, Executor] = {}
    refused: list[str] = []
    for name, (cut, us) in cuts.items():
        try:
            equals = equals_of(among[name], among) if among[name].reentrant else []
            executor = whole_run(
                prepared.model,
                among[name],
                device,
                min(len(equals) or 1, in_flight),
                equals=equals,
                borders=cut,
                latency_us=us,
            )
        except UNFIT as error:
            refused.append(str(error) or f"there is no memory for the whole network on '{name}'")
        else:
            executors[name] = executor
            opened.callback(executor.close)
    for name, why in prepared.refused(executors).items():
        refused.append(str(why))
        executors.pop(name).let_go()
    return executors, refused


def _segments_us(traces: Sequence[Trace]) -> list[float]:
    """What each segment takes, by its median."""
    took = zip(*([span.us for span in trace.segments] for trace in traces), strict=True)
    return [float(statistics.median(own)) for own in took]
