"""The rules for groups."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema import Group, GroupPage, GroupSelector
from planner_api.db.engine import Database
from planner_api.db.tables import GroupRow
from planner_api.devices.audit.service import Actor, record
from planner_api.devices.groups import repository
from planner_api.errors import NotFoundError


def selector_of(row: GroupRow) -> GroupSelector:
    """What chooses a stored group's devices."""
    return GroupSelector(socs=tuple(row.socs), labels=row.labels, share=row.share)


async def store(database: Database, name: str, selector: GroupSelector, actor: Actor) -> Group:
    """Make a group, or choose its devices anew; releases under way keep the choice that they began with."""
    async with database.write() as session:
        values = selector.model_dump(mode="json")
        await repository.store(session, {"name": name, "created_at": datetime.now(UTC), **values})
        shown = ", ".join(f"{key}={value}" for key, value in selector.labels.items())
        socs = ", ".join(selector.socs)
        await record(session, actor, "group.store", name, socs=socs, labels=shown, share=selector.share)
    return await get(database, name)


async def get(database: Database, name: str) -> Group:
    """One group. Raises NotFoundError when there is none."""
    async with database.read() as session:
        row = await find(session, name)
        return _group(row, await repository.count(session, selector_of(row)))


async def find(session: AsyncSession, name: str) -> GroupRow:
    """A group as it is stored. Raises NotFoundError when there is none."""
    row = await session.get(GroupRow, name)
    if row is None:
        raise NotFoundError("group-unknown", f"no group '{name}': make it with `hope-planner groups set {name}`")
    return row


async def list_groups(database: Database, *, after: str, limit: int) -> GroupPage:
    """Groups in the order of their names."""
    async with database.read() as session:
        rows = await repository.groups(session, after=after, limit=limit)
        groups = [_group(row, await repository.count(session, selector_of(row))) for row in rows]
    return GroupPage(groups=tuple(groups), next=rows.next(lambda row: row.name))


async def drop(database: Database, name: str, actor: Actor) -> None:
    """Drop a group; releases under way keep it. Raises NotFoundError when there is none."""
    async with database.write() as session:
        if not await repository.drop(session, name):
            raise NotFoundError("group-unknown", f"no group '{name}': `hope-planner groups list` lists them")
        await record(session, actor, "group.drop", name)


def _group(row: GroupRow, devices: int) -> Group:
    return Group(**dict(selector_of(row)), name=row.name, devices=devices, created_at=row.created_at)
