"""Finding devices among any number of them, a page at a time, forwards and backwards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.tables import DeviceRow, GroupRow
from planner_api.devices.groups.choice import selector_of, within
from planner_api.devices.groups.service import chosen

SCANNED = 20_000
"""Devices looked at for one page of a group that takes a share of them: such a page may have fewer rows, or none."""


@dataclass(frozen=True)
class DeviceRows:
    """Some devices in the order of their ids; ``before`` and ``after`` lead to more of them, where there may be any."""

    devices: Sequence[DeviceRow]
    before: str | None
    after: str | None


async def find(
    session: AsyncSession,
    *,
    soc: str | None = None,
    part: str = "",
    group: GroupRow | None = None,
    after: str | None = None,
    before: str | None = None,
    limit: int,
) -> DeviceRows:
    """Return devices of a SoC and a group with ``part`` in id or name, behind ``after`` or in front of ``before``."""
    wanted = [] if group is None else chosen(selector_of(vars(group)))
    if soc:
        wanted.append(DeviceRow.soc == soc)
    if part:
        wanted.append(or_(*(column.contains(part, autoescape=True) for column in (DeviceRow.id, DeviceRow.name))))
    share, salt = (1.0, "") if group is None else (group.share, group.name)
    backwards = before is not None
    query = select(DeviceRow.id).where(*wanted)
    at = before if backwards else after
    batch = min(math.ceil((limit + 1) / share), SCANNED)
    ids: list[str] = []
    more, looked = True, 0
    while more and len(ids) < limit and looked < SCANNED:
        scanned = (await session.scalars(_beyond(query, at, backwards=backwards).limit(batch))).all()
        more, looked = len(scanned) == batch, looked + len(scanned)
        for number, device_id in enumerate(scanned, 1):
            at = device_id
            if within(share, device_id, salt):
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
