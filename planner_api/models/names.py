"""The rules for names of models: versions are numbered from 1 and never change."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema import ModelVersion, ModelVersionPage, NamedModel, NamedModelPage, NewModelVersion
from planner_api.db.engine import Database, found
from planner_api.db.paging import message_of, messages_of, page
from planner_api.db.tables import ModelAliasRow, ModelVersionRow, NamedModelRow
from planner_api.db.upsert import insert_or_ignore
from planner_api.devices.audit import record
from planner_api.errors import unknown
from planner_api.models import repository as models
from planner_api.web.principal import Actor


async def add_version(database: Database, name: str, sent: NewModelVersion, actor: Actor) -> ModelVersion:
    """Make a graph the next version of a name. Raises NotFoundError for a graph that was never sent."""
    async with database.write() as session:
        if not await models.exists(session, sent.model_hash):
            raise unknown("model", sent.model_hash)
        await insert_or_ignore(session, NamedModelRow, {"name": name}, ["name"])
        # Raised with the row locked, so that no number is given twice.
        raised = update(NamedModelRow).where(NamedModelRow.name == name).values(newest=NamedModelRow.newest + 1)
        version = (await session.execute(raised.returning(NamedModelRow.newest))).scalar_one()
        labels = dict(sent.labels)
        session.add(ModelVersionRow(name=name, version=version, model_hash=sent.model_hash, labels=labels))
        await session.flush()
        await record(session, actor, "name.version", f"{name}:{version}", model_hash=sent.model_hash)
    return await get_version(database, name, version)


async def list_names(database: Database, *, after: str | None, limit: int) -> NamedModelPage:
    async with database.read() as session:
        rows = await page(session, select(NamedModelRow), NamedModelRow.name, after, limit)
        aliases = await _aliases(session, [row.name for row in rows])
    names = messages_of(
        rows,
        lambda row: message_of(
            NamedModel, row, aliases={each.alias: each.version for each in aliases if each.name == row.name}
        ),
    )
    return NamedModelPage(names=names, next=rows.next)


async def list_versions(database: Database, name: str, *, before: int | None, limit: int) -> ModelVersionPage:
    """Versions of a name, newest first. Raises NotFoundError for an unknown name."""
    async with database.read() as session:
        await found(session, NamedModelRow, name, "name")
        query = select(ModelVersionRow).where(ModelVersionRow.name == name)
        rows = await page(session, query, ModelVersionRow.version, before, limit, newest_first=True)
        aliases = await _aliases(session, [name])
    return ModelVersionPage(versions=_versions(rows, aliases), next=rows.next)


async def get_version(database: Database, name: str, version: int) -> ModelVersion:
    async with database.read() as session:
        return await find_version(session, name, version)


async def find_version(session: AsyncSession, name: str, version: int) -> ModelVersion:
    """One version, in a session that is open. Raises NotFoundError when there is none."""
    row = await session.get(ModelVersionRow, (name, version))
    if row is None:
        await found(session, NamedModelRow, name, "name")
        raise unknown("version of model", name, version)
    return _versions([row], await _aliases(session, [name]))[0]


async def label(database: Database, name: str, version: int, labels: Mapping[str, str], actor: Actor) -> ModelVersion:
    async with database.write() as session:
        this = ModelVersionRow.name == name, ModelVersionRow.version == version
        changed = update(ModelVersionRow).where(*this).values(labels=dict(labels))
        if not await session.touches(changed.returning(ModelVersionRow.version)):
            raise unknown("version of model", name, version)
        await record(session, actor, "name.label", f"{name}:{version}", labels=labels)
    return await get_version(database, name, version)


async def _aliases(session: AsyncSession, names: Sequence[str]) -> Sequence[ModelAliasRow]:
    query = select(ModelAliasRow).where(ModelAliasRow.name.in_(names)).order_by(ModelAliasRow.alias)
    return (await session.scalars(query)).all()


def _versions(rows: Sequence[ModelVersionRow], aliases: Sequence[ModelAliasRow]) -> tuple[ModelVersion, ...]:
    return messages_of(
        rows,
        lambda row: message_of(
            ModelVersion, row, aliases=tuple(each.alias for each in aliases if each.version == row.version)
        ),
    )
