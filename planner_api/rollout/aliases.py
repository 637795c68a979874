"""The rules for aliases: names of models that point where admins say, or where a release moves them."""

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema import ModelVersion
from planner_api.db.engine import Database, WriteSession, found
from planner_api.db.tables import ModelAliasRow, NamedModelRow
from planner_api.db.upsert import put
from planner_api.devices.audit import record
from planner_api.errors import ConflictError, unknown
from planner_api.models import names
from planner_api.rollout.splits import Splits
from planner_api.web.principal import Actor


async def resolve(
    database: Database, reference: str, splits: Splits | None = None, device_id: str | None = None
) -> ModelVersion:
    """The version that ``name``, ``name:3`` or ``name@alias`` means. Raises NotFoundError when it means none.

    With ``splits``, an alias that a release is moving means what it does for this device.
    """
    name, at, alias = reference.partition("@")
    name, _, number = name.partition(":")
    moved = await splits.alias_version(name, alias, device_id) if splits is not None and at else None
    async with database.read() as session:
        if at:
            version = moved or await stands_for(session, name, alias)
            if version is None:
                raise unknown("alias", name, alias)
        elif number:
            version = int(number) if number.isdecimal() and len(number) < 10 else 0
        else:
            version = (await found(session, NamedModelRow, name, "name")).newest
        return await names.find_version(session, name, version)


async def point(database: Database, name: str, alias: str, version: int, actor: Actor) -> ModelVersion:
    """Let an alias stand for a version. Raises NotFoundError when there is no such version."""
    async with database.write() as session:
        await names.find_version(session, name, version)
        before = await lock_alias(session, name, alias)
        was = None if before is None else before.version
        await put(session, ModelAliasRow, {"name": name, "alias": alias, "version": version}, key=("name", "alias"))
        await record(session, actor, "alias.point", f"{name}@{alias}", version=version, before=was)
    return await names.get_version(database, name, version)


async def drop_alias(database: Database, name: str, alias: str, actor: Actor) -> None:
    async with database.write() as session:
        if await lock_alias(session, name, alias) is None:
            raise unknown("alias", name, alias)
        await session.execute(delete(ModelAliasRow).where(*_this(name, alias)))
        await record(session, actor, "alias.drop", f"{name}@{alias}")


async def stands_for(session: AsyncSession, name: str, alias: str) -> int | None:
    return await session.scalar(select(ModelAliasRow.version).where(*_this(name, alias)))


def _this(name: str, alias: str) -> tuple[ColumnElement[bool], ...]:
    return ModelAliasRow.name == name, ModelAliasRow.alias == alias


async def lock_alias(session: WriteSession, name: str, alias: str) -> ModelAliasRow | None:
    """An alias, locked until the transaction ends. Raises ConflictError for one that a release is moving."""
    row = (await session.scalars(select(ModelAliasRow).where(*_this(name, alias)).with_for_update())).one_or_none()
    if row is not None and row.release_id is not None:
        detail = f"release {row.release_id} of {row.name}@{row.alias} is under way; roll it back or let it end first"
        raise ConflictError("release-under-way", detail)
    return row
