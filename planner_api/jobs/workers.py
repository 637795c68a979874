"""The workers' signs of life, and how much waits for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import JobRow, WorkerRow
from planner_api.db.upsert import upserting
from planner_api.jobs.owner import is_gone, this_process
from planner_api.jobs.wanted import WAITS, now

ALIVE_S = 30.0
"""A worker that has not looked for longer is taken for gone."""
FORGET_S = 86_400.0
"""A worker that has not looked for so long is no longer listed."""


async def tell_life(database: Database, slots: int) -> None:
    """Note that a worker of this process lives, and forget those that ended."""
    async with database.read() as session:
        gone = [row.owner for row in await workers(session) if is_gone(row.owner)]
    async with database.write() as session:
        await _forget(session, gone)
        await looked(session, this_process(), slots)


async def tell_end(database: Database) -> None:
    async with database.write() as session:
        await _forget(session, [this_process()])


async def _forget(session: WriteSession, owners: Sequence[str]) -> None:
    old = WorkerRow.looked_at < now(session, -FORGET_S)
    await session.execute(delete(WorkerRow).where(or_(WorkerRow.owner.in_(owners), old)))


async def looked(session: WriteSession, owner: str, slots: int) -> None:
    moment = now(session)
    insert = upserting(session.get_bind().dialect.name, WorkerRow)
    insert = insert.values(owner=owner, slots=slots, started_at=moment, looked_at=moment)
    await session.execute(
        insert.on_conflict_do_update(index_elements=["owner"], set_={"slots": slots, "looked_at": moment})
    )


@dataclass(frozen=True)
class Seen:
    """A worker that lives, or lived a while ago; ``age_s``: since it last looked for work; ``busy``: jobs it is at."""

    owner: str
    slots: int
    started_at: datetime
    looked_at: datetime
    age_s: float
    busy: int


async def workers(session: AsyncSession) -> Sequence[Seen]:
    """The workers of a database, by the database's clock."""
    busy = select(func.count()).where(JobRow.lease_owner == WorkerRow.owner).scalar_subquery()
    columns = WorkerRow.owner, WorkerRow.slots, WorkerRow.started_at, WorkerRow.looked_at
    rows = await session.execute(select(*columns, now(session), busy).order_by(WorkerRow.owner))
    return [
        Seen(owner, slots, started_at, looked_at, max(0.0, (moment - looked_at).total_seconds()), count)
        for owner, slots, started_at, looked_at, moment, count in rows
    ]


async def count_looking(session: AsyncSession) -> Mapping[str, float]:
    return {"looking": sum(worker.age_s < ALIVE_S for worker in await workers(session))}


async def count_by_state(session: AsyncSession) -> Mapping[str, float]:
    query = select(func.count().filter(WAITS), func.count().filter(~WAITS)).select_from(JobRow)
    waiting, running = (await session.execute(query)).one()
    return {"waiting": waiting, "running": running}
