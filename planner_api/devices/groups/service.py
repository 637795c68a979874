"""The rules for groups."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema import Group, GroupPage, GroupSelector
from planner_api.db.engine import Database, found
from planner_api.db.paging import page
from planner_api.db.tables import DeviceRow, GroupRow
from planner_api.db.upsert import put
from planner_api.devices.audit.service import record
from planner_api.devices.groups.choice import selector_of
from planner_api.errors import unknown
from planner_api.web.principal import Actor


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
        return await _group(session, await find(session, name))


async def find(session: AsyncSession, name: str) -> GroupRow:
    """A group as it is stored. Raises NotFoundError when there is none."""
    return await found(session, GroupRow, name, "group")


async def list_groups(database: Database, *, after: str, limit: int) -> GroupPage:
    async with database.read() as session:
        query = select(GroupRow).where(GroupRow.name > after).order_by(GroupRow.name)
        rows = await page(session, query, limit)
        groups = [await _group(session, row) for row in rows]
    return GroupPage(groups=tuple(groups), next=rows.next(lambda row: row.name))


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


async def _group(session: AsyncSession, row: GroupRow) -> Group:
    selector = selector_of(vars(row))
    devices = await session.scalar(select(func.count()).select_from(DeviceRow).where(*chosen(selector)))
    return Group(**dict(selector), name=row.name, devices=devices or 0, created_at=row.created_at)
