"""One machine of several: the profiles of some hosts and the links between them, as one profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from hope_schema import HOST, Channel, LatencyColumns, Link, Overheads, Processor, Profile
from hope_schema.hosts import check_hosts, on_host
from hope_schema.profile import PartColumns, TransferColumns
from planner_api.planning.problem import PlanningError

Columns = TypeVar("Columns", LatencyColumns, TransferColumns, PartColumns)


def compose(device: Profile, hosts: Mapping[str, Profile], links: Sequence[Link]) -> Profile:
    """Return the profile of a device together with other hosts.

    Everything of another host carries its name: processors, kinds, resources, places and what keeps its moves
    (``edge1:ort@0``, ``edge1:cpu0``, ``edge1:host/ort``). A link joins the hosts' plain memories (``host``,
    ``edge1:host``).

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
    own = {label.split(":", 1)[0] for one in device.processors for label in (one.id, one.place) if ":" in label}
    for name in own & set(hosts):
        raise PlanningError(f"a host cannot be called '{name}': places or processors of the device begin so")
    names, profiles = [HOST, *hosts], [device, *hosts.values()]
    on = [partial(on_host, name) for name in names]
    costs_of = [(profile.overheads, there) for profile, there in zip(profiles, on, strict=True)]
    return Profile(
        soc=device.soc,
        frequency=device.frequency,
        processors=tuple(
            _processor(one, name) for name, profile in zip(names, profiles, strict=True) for one in profile.processors
        ),
        channels=(
            *(
                _channel(way, source=there(way.source), target=there(way.target), busy=way.busy and there(way.busy))
                for there, profile in zip(on, profiles, strict=True)
                for way in profile.channels
            ),
            *(
                _channel(link, source=on_host(link.source, HOST), target=on_host(link.target, HOST), busy=link.busy)
                for link in links
            ),
        ),
        latencies=_joined([_with_shares(one.latencies, profiles) for one in profiles], kind=on),
        transfers=_joined([one.transfers for one in profiles], source=on, target=on),
        overheads=Overheads(
            **{
                field: {there(kind): us for costs, there in costs_of for kind, us in getattr(costs, field).items()}
                for field in Overheads.model_fields
            }
        ),
        version=device.version,
        predicted=_joined([one.predicted for one in profiles], kind=on),
        parts=_joined([one.parts for one in profiles], kind=on),
    )


def _processor(one: Processor, host: str) -> Processor:
    resources = tuple(on_host(host, resource) for resource in one.resources)
    there = {"id": on_host(host, one.id), "resources": resources, "place": on_host(host, one.place), "host": host}
    return Processor(**one.model_dump() | there)


def _channel(way: Channel | Link, **there: str | None) -> Channel:
    return Channel(**way.model_dump() | there)


def _joined(parts: Sequence[Columns], **renamed: Sequence[Callable[[str], str]]) -> Columns:
    """The hosts' columns, one host behind the other; each host renames some of its own."""
    columns = {}
    for field in type(parts[0]).model_fields:
        own = [getattr(one, field) for one in parts]
        if field in renamed:
            own = [map(rename, column) for rename, column in zip(renamed[field], own, strict=True)]
        columns[field] = tuple(chain.from_iterable(own))
    return type(parts[0])(**columns)


def _with_shares(rows: LatencyColumns, profiles: Sequence[Profile]) -> LatencyColumns:
    """What says no shares takes all of its resources: said where another host's profile says some."""
    if rows.share or not any(one.latencies.share for one in profiles):
        return rows
    return rows.model_copy(update={"share": (1.0,) * len(rows.us)})
