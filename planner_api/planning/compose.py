"""One machine of several: the profiles of some hosts and the links between them, as one profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hope_schema import HOST, Channel, LatencyColumns, Link, Overheads, Processor, Profile
from hope_schema.hosts import check_hosts, on_host
from hope_schema.profile import PartColumns, TransferColumns
from planner_api.planning.problem import PlanningError


def compose(device: Profile, hosts: Mapping[str, Profile], links: Sequence[Link]) -> Profile:
    """Return the profile of a device together with other hosts.

    Everything of another host carries its name: processors, kinds, resources, places and what keeps its moves
    (``edge1:ort@0``, ``edge1:cpu0``, ``edge1:host/ort``). A link joins the hosts' plain memories (``host``,
    ``edge1:host``). What a host's hand-over takes is part of how late a segment's outputs are there for others.

    Args:
        device: the profile of the device itself, where inputs start and outputs end.
        hosts: profiles of the others, by name; the same one may stand for several.
        links: the ways between them.

    Raises:
        PlanningError: hosts and links make no machine, or a name of theirs is one of the device's already.
    """
    try:
        check_hosts([*hosts], links)
    except ValueError as error:
        raise PlanningError(str(error)) from error
    parts = [(HOST, device), *hosts.items()]
    own = {label.split(":", 1)[0] for one in device.processors for label in (one.id, one.place) if ":" in label}
    for name in own & set(hosts):
        raise PlanningError(f"a host cannot be called '{name}': places or processors of the device begin so")
    processors = [_processor(name, one) for name, profile in parts for one in profile.processors]
    kinds = [{one.kind: _processor(name, one).kind for one in profile.processors} for name, profile in parts]
    named = [(name, profile, kind) for (name, profile), kind in zip(parts, kinds, strict=True)]
    return Profile(
        soc=device.soc,
        frequency=device.frequency,
        processors=tuple(processors),
        channels=(
            *(_channel(name, way) for name, profile in parts for way in profile.channels),
            *(
                Channel(
                    source=on_host(link.source, HOST),
                    target=on_host(link.target, HOST),
                    busy=link.busy,
                    fixed_us=link.fixed_us,
                    us_per_byte=link.us_per_byte,
                )
                for link in links
            ),
        ),
        latencies=_latencies([(profile.latencies, kind) for _, profile, kind in named]),
        transfers=_transfers(parts),
        overheads=_overheads(named),
        version=device.version,
        predicted=_latencies([(profile.predicted, kind) for _, profile, kind in named]),
        parts=_parts([(profile.parts, kind) for _, profile, kind in named]),
    )


def _processor(host: str, one: Processor) -> Processor:
    if host == HOST:
        return one
    return Processor(
        **one.model_dump(exclude={"id", "resources", "place", "host"}),
        id=on_host(host, one.id),
        resources=tuple(on_host(host, resource) for resource in one.resources),
        place=on_host(host, one.place),
        host=host,
    )


def _channel(host: str, way: Channel) -> Channel:
    busy = None if way.busy is None else on_host(host, way.busy)
    ends = {"source": on_host(host, way.source), "target": on_host(host, way.target)}
    return way.model_copy(update={**ends, "busy": busy})


def _latencies(parts: Sequence[tuple[LatencyColumns, Mapping[str, str]]]) -> LatencyColumns:
    shares = any(rows.share for rows, _ in parts)
    return LatencyColumns(
        signature=tuple(name for rows, _ in parts for name in rows.signature),
        kind=tuple(kinds[kind] for rows, kinds in parts for kind in rows.kind),
        us=tuple(us for rows, _ in parts for us in rows.us),
        spread_us=tuple(us for rows, _ in parts for us in rows.spread_us),
        count=tuple(count for rows, _ in parts for count in rows.count),
        share=tuple(one for rows, _ in parts for one in rows.share or (1.0,) * len(rows.us)) if shares else (),
    )


def _transfers(parts: Sequence[tuple[str, Profile]]) -> TransferColumns:
    rows = [(name, profile.transfers) for name, profile in parts]
    return TransferColumns(
        tensor=tuple(tensor for _, columns in rows for tensor in columns.tensor),
        source=tuple(on_host(name, place) for name, columns in rows for place in columns.source),
        target=tuple(on_host(name, place) for name, columns in rows for place in columns.target),
        us=tuple(us for _, columns in rows for us in columns.us),
        spread_us=tuple(us for _, columns in rows for us in columns.spread_us),
        count=tuple(count for _, columns in rows for count in columns.count),
    )


def _overheads(named: Sequence[tuple[str, Profile, Mapping[str, str]]]) -> Overheads:
    launch: dict[str, float] = {}
    end: dict[str, float] = {}
    slowdown: dict[str, float] = {}
    for _, profile, kinds in named:
        costs = profile.overheads
        launch |= {kinds[kind]: us for kind, us in costs.launch_us.items()}
        end |= {new: costs.end_us.get(kind, 0.0) + costs.handover_us for kind, new in kinds.items()}
        slowdown |= {kinds[kind]: factor for kind, factor in costs.slowdown.items()}
    return Overheads(launch_us=launch, end_us=end, slowdown=slowdown)


def _parts(parts: Sequence[tuple[PartColumns, Mapping[str, str]]]) -> PartColumns:
    return PartColumns(
        signature=tuple(name for rows, _ in parts for name in rows.signature),
        kind=tuple(kinds[kind] for rows, kinds in parts for kind in rows.kind),
        axis=tuple(axis for rows, _ in parts for axis in rows.axis),
        fixed=tuple(fixed for rows, _ in parts for fixed in rows.fixed),
    )
