"""Every query on groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema import GroupSelector
from planner_api.db.engine import WriteSession
from planner_api.db.paging import Page, page
from planner_api.db.tables import DeviceRow, GroupRow
from planner_api.db.upsert import put


def chosen(selector: GroupSelector) -> list[ColumnElement[bool]]:
    """What the rows of devices fulfil that a group's SoCs and labels choose."""
    found: list[ColumnElement[bool]] = [DeviceRow.revoked_at.is_(None)]
    if selector.socs:
        found.append(DeviceRow.soc.in_(selector.socs))
    found += [DeviceRow.labels[key].as_string() == value for key, value in selector.labels.items()]
    return found


async def count(session: AsyncSession, selector: GroupSelector) -> int:
    """Devices that a group's SoCs and labels choose."""
    return (await session.scalar(select(func.count()).select_from(DeviceRow).where(*chosen(selector)))) or 0


async def store(session: WriteSession, values: Mapping[str, Any]) -> None:
    """Make a group, or choose its devices anew."""
    await put(session, GroupRow, values, key=("name",), keep=("created_at",))


async def groups(session: AsyncSession, *, after: str, limit: int) -> Page[GroupRow]:
    """Groups in the order of their names."""
    return await page(session, select(GroupRow).where(GroupRow.name > after).order_by(GroupRow.name), limit)


async def names(session: AsyncSession, limit: int) -> Sequence[str]:
    """What groups are called, in order."""
    return (await session.scalars(select(GroupRow.name).order_by(GroupRow.name).limit(limit))).all()


async def drop(session: WriteSession, name: str) -> bool:
    """Drop a group; False when there was none."""
    return await session.touches(delete(GroupRow).where(GroupRow.name == name).returning(GroupRow.name))
