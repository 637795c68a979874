"""Groups of devices: chosen by SoC, by label and as a stable share, without a list of them; and who is in one."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema import Group, GroupPage, GroupSelector
from planner_api.db.engine import Database, found
from planner_api.db.paging import message_of, messages_of, page
from planner_api.db.tables import DeviceRow, GroupRow
from planner_api.db.upsert import put
from planner_api.devices.audit import record
from planner_api.errors import unknown
from planner_api.web.principal import Actor

SCANNED = 20_000
"""Devices looked at for one page of a group that takes a share of them: such a page may have fewer rows, or none."""


@dataclass(frozen=True)
class DeviceRows:
    """Some devices in the order of their ids; ``before`` and ``after`` lead to more of them, where there may be any."""

    devices: Sequence[DeviceRow]
    before: str | None
    after: str | None


def selector_of(stored: Mapping[str, Any]) -> GroupSelector:
    """What chooses devices, from the columns of a group, or as a release keeps it."""
    return GroupSelector(socs=tuple(stored["socs"]), labels=stored["labels"], share=stored["share"])


def position(device_id: str, salt: str) -> float:
    """Where a device stands between 0 and 1: evenly spread, the same for ever, and independent for every salt.

    So who is in the first per cent of one release is not in that of the next.
    """
    hashed = hashlib.blake2b(f"{salt}\n{device_id}".encode(), digest_size=8)
    return int.from_bytes(hashed.digest(), "big") / 2**64


def within(share: float, device_id: str, salt: str) -> bool:
    """Whether a device is in the first part of them, so large a share."""
    return share >= 1.0 or position(device_id, salt) < share


def takes(selector: GroupSelector, salt: str, device_id: str, soc: str, labels: Mapping[str, str]) -> bool:
    """Whether a group takes a device; ``salt`` is the group's name."""
    if selector.socs and soc not in selector.socs:
        return False
    if any(labels.get(key) != value for key, value in selector.labels.items()):
        return False
    return within(selector.share, device_id, salt)


async def store(database: Database, name: str, selector: GroupSelector, actor: Actor) -> Group:
    """Make a group, or choose its devices anew; releases under way keep the choice that they began with."""
    async with database.write() as session:
        values = {"name": name, "created_at": datetime.now(UTC), **selector.model_dump(mode="json")}
        await put(session, GroupRow, values, key=("name",), keep=("created_at",))
        socs = ", ".join(selector.socs)
        await record(session, actor, "group.store", name, socs=socs, labels=selector.labels, share=selector.share)
    return await get(database, name)


async def get(database: Database, name: str) -> Group:
    """One group. Raises NotFoundError when there is none."""
    async with database.read() as session:
        return await _counted(session, _group(await found(session, GroupRow, name, "group")))


async def list_groups(database: Database, *, after: str | None, limit: int) -> GroupPage:
    async with database.read() as session:
        rows = await page(session, select(GroupRow), GroupRow.name, after, limit)
        groups = [await _counted(session, group) for group in messages_of(rows, _group)]
    return GroupPage(groups=tuple(groups), next=rows.next)


async def drop(database: Database, name: str, actor: Actor) -> None:
    """Drop a group; releases under way keep it. Raises NotFoundError when there is none."""
    async with database.write() as session:
        if not await session.touches(delete(GroupRow).where(GroupRow.name == name).returning(GroupRow.name)):
            raise unknown("group", name)
        await record(session, actor, "group.drop", name)


async def names(session: AsyncSession, limit: int) -> Sequence[str]:
    return (await session.scalars(select(GroupRow.name).order_by(GroupRow.name).limit(limit))).all()


def chosen(selector: GroupSelector) -> list[ColumnElement[bool]]:
    """What the rows of devices fulfil that a group's SoCs and labels choose."""
    conditions: list[ColumnElement[bool]] = [DeviceRow.revoked_at.is_(None)]
    if selector.socs:
        conditions.append(DeviceRow.soc.in_(selector.socs))
    conditions += [DeviceRow.labels[key].as_string() == value for key, value in selector.labels.items()]
    return conditions


def _group(row: GroupRow) -> Group:
    """A group whose devices are not counted yet."""
    return message_of(Group, row, socs=tuple(row.socs), devices=0)


async def _counted(session: AsyncSession, group: Group) -> Group:
    devices = await session.scalar(select(func.count()).select_from(DeviceRow).where(*chosen(group)))
    return group.model_copy(update={"devices": devices or 0})


async def find_devices(
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
    batch = math.ceil(min((limit + 1) / share, SCANNED))
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
