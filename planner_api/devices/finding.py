"""Finding devices among any number of them, a page at a time, forwards and backwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.tables import DeviceRow, GroupRow
from planner_api.devices.groups.choice import selector_of, within
from planner_api.devices.groups.service import chosen

SCANNED = 20_000
"""Devices looked at for one page of a group that takes a share of them: such a page may have fewer rows, or none."""


@dataclass(frozen=True)
class Filter:
    """Which devices: of this SoC, with ``part`` in their id or name, and in this group."""

    soc: str | None = None
    part: str = ""
    group: GroupRow | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """What the database can tell."""
        found = chosen(selector_of(vars(self.group))) if self.group is not None else []
        if self.soc:
            found.append(DeviceRow.soc == self.soc)
        if self.part:
            holds = (column.contains(self.part, autoescape=True) for column in (DeviceRow.id, DeviceRow.name))
            found.append(or_(*holds))
        return found

    @property
    def share(self) -> float:
        """The part of those that is taken, by where each of them stands."""
        return 1.0 if self.group is None else self.group.share

    def takes(self, device_id: str) -> bool:
        """What the database cannot tell."""
        return self.group is None or within(self.group.share, device_id, self.group.name)


@dataclass(frozen=True)
class DeviceRows:
    """Some devices in the order of their ids; ``before`` and ``after`` lead to more of them, where there may be any."""

    devices: Sequence[DeviceRow]
    before: str | None
    after: str | None


async def find(
    session: AsyncSession, wanted: Filter, *, after: str | None = None, before: str | None = None, limit: int
) -> DeviceRows:
    backwards = before is not None
    query = select(DeviceRow.id).where(*wanted.conditions())
    at = before if backwards else after
    batch = min(math.ceil((limit + 1) / wanted.share), SCANNED)
    ids: list[str] = []
    more, looked = True, 0
    while more and len(ids) < limit and looked < SCANNED:
        scanned = (await session.scalars(_beyond(query, at, backwards=backwards).limit(batch))).all()
        more, looked = len(scanned) == batch, looked + len(scanned)
        for number, device_id in enumerate(scanned, 1):
            at = device_id
            if wanted.takes(device_id):
                ids.append(device_id)
            if len(ids) == limit:
                more = more or number < len(scanned)
                break
    rows = (await session.scalars(select(DeviceRow).where(DeviceRow.id.in_(ids)).order_by(DeviceRow.id))).all()
    onwards = at if more else None
    if backwards:
        return DeviceRows(rows, onwards, rows[-1].id if rows else None)
    return DeviceRows(rows, rows[0].id if rows and after is not None else None, onwards)


def _beyond(query: Select[str], at: str | None, *, backwards: bool) -> Select[str]:
    if at is not None:
        query = query.where(DeviceRow.id < at if backwards else DeviceRow.id > at)
    return query.order_by(DeviceRow.id.desc() if backwards else DeviceRow.id)
