"""Several hosts: the machines that a plan may use beside the device itself, and the links between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field, model_validator

from hope_schema.base import MAX_FIGURE_US, Contract, Count, FigureMicroseconds, Frequency, Label
from hope_schema.profile import HOST, Processor

MAX_HOSTS: Final = 16
"""Most hosts that a plan may use beside the device."""
MAX_LINKS: Final = 256
"""Most links between them."""
STEP: Final = 1.1
"""Ratio of neighbouring figures of links: half of it is what a plan may be off by for that reason."""
LEAST_US: Final = 1e-6
"""Below this many microseconds, per move or per byte, a link costs nothing."""
HostName = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]*$")]
"""A host's name. The device itself is called ``host``; what belongs to another host carries its name (`on_host`)."""


class Host(Contract):
    """A machine that a plan may use beside the device; ``processors`` are its candidates, null: all of them."""

    name: HostName
    soc: Label
    frequency: Frequency
    processors: Annotated[tuple[Label, ...], Field(min_length=1, max_length=1024, strict=False)] | None = None

    @model_validator(mode="after")
    def _is_another(self) -> Host:
        if self.name == HOST:
            raise ValueError(f"'{HOST}' is the device itself: another host has another name")
        return self


class Link(Contract):
    """The way from one host's memory to another's.

    A move takes ``fixed_us + us_per_byte * bytes`` and keeps ``busy`` for as long, which other links may share: a radio
    that either sends or receives is one resource, a cable with two ways is two. ``float16_us_per_byte`` allows float32
    to cross as float16, and says what turning it into that and back takes; null: it crosses as it is.
    """

    source: HostName
    target: HostName
    fixed_us: FigureMicroseconds
    us_per_byte: FigureMicroseconds
    float16_us_per_byte: FigureMicroseconds | None = None
    busy: Label

    @model_validator(mode="after")
    def _leads_away(self) -> Link:
        if self.source == self.target:
            raise ValueError(f"a link from '{self.source}' to itself")
        return self


class Offer(Contract):
    """What an agent that lends its processors says of itself: they are named as on that machine."""

    soc: Label
    frequency: Frequency
    processors: Annotated[tuple[Processor, ...], Field(min_length=1, max_length=1024, strict=False)]

    @model_validator(mode="after")
    def _is_its_own(self) -> Offer:
        if any(one.host != HOST for one in self.processors):
            raise ValueError("an agent lends its own processors alone")
        if len({one.id for one in self.processors}) != len(self.processors):
            raise ValueError("a processor is offered twice")
        return self


class PlannedHost(Contract):
    """A host that a plan may use beside the device, and the version of its profile that the plan rests on."""

    name: HostName
    soc: Label
    frequency: Frequency
    profile_version: Count


def stepped(us: float) -> float:
    """A figure of a link to the nearest step, with few digits, so that its text is the same everywhere.

    Plans are kept by the figures that they are made with: what moves by less than half a step asks for the same plan.
    """
    return 0.0 if us < LEAST_US else min(float(f"{STEP ** round(math.log(us, STEP)):.6g}"), MAX_FIGURE_US)


def on_host(host: str, label: str) -> str:
    """The label of something of a host: as it is on the device itself, behind the name on another."""
    return label if host == HOST else f"{host}:{label}"


def check_hosts(names: Sequence[str], links: Sequence[Link]) -> None:
    """Refuse hosts and links that make no machine.

    Args:
        names: the hosts beside the device.
        links: between them and the device.

    Raises:
        ValueError: a host named twice, a link to an unknown host, two from one to the same other, or no way between
            the device and a host.
    """
    known = {HOST, *names}
    if len(known) != 1 + len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"host '{twice}' is named twice")
    for link in links:
        for name in (link.source, link.target):
            if name not in known:
                raise ValueError(f"a link leads from '{link.source}' to '{link.target}', but there is no host '{name}'")
    ways = {(link.source, link.target) for link in links}
    if len(ways) != len(links):
        raise ValueError("two links lead from one host to the same other host")
    for there, pairs in (("to", ways), ("from", {(target, source) for source, target in ways})):
        met, queue = {HOST}, [HOST]
        while queue:
            here = queue.pop()
            found = {target for source, target in pairs if source == here} - met
            met |= found
            queue.extend(sorted(found))
        if met != known:
            raise ValueError(f"no link leads {there} host '{min(known - met)}'")
