"""The workers' signs of life, who they are, and how much waits for them."""

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import JobRow, WorkerRow
from planner_api.db.upsert import upserting
from planner_api.jobs.wanted import WAITS, now

ALIVE_S = 30.0
"""A worker that has not looked for longer is taken for gone."""
FORGET_S = 86_400.0
"""A worker that has not looked for so long is no longer listed."""


def _started(pid: int) -> str | None:
    """The process's start in clock ticks since boot; "" for a zombie; None when nothing tells."""
    try:
        # As its main thread's: under QEMU each thread that looks at its own process's file is told its own start there.
        stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rsplit(")", 1)[1].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def _place() -> str | None:
    """Which process table a pid belongs to: host and pid namespace; None where /proc does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
        return f"{socket.gethostname()[:60]}/{boot}/{os.readlink('/proc/self/ns/pid')[5:-1]}"
    except OSError:
        return None


def this_process() -> str:
    """The owner label of this process: place, pid and start, which no later process shares."""
    return f"{_place() or socket.gethostname()[:60]}|{os.getpid()}|{_started(os.getpid()) or 0}"


def is_gone(owner: str) -> bool:
    """Whether ``owner`` certainly lives no more. False when in doubt: another machine's leases simply expire."""
    place, _, rest = owner.partition("|")
    pid, _, started = rest.partition("|")
    if place != _place() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's, of whom /proc may be hiding all
        pass
    return _started(int(pid)) not in (started, None)


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


async def workers(session: AsyncSession) -> Sequence[Any]:
    """Workers that live, or lived a while ago: their rows, and at which ``moment`` each was at ``busy`` jobs."""
    busy = select(func.count()).where(JobRow.lease_owner == WorkerRow.owner).scalar_subquery()
    query = select(*WorkerRow.__table__.columns, busy.label("busy"), now(session).label("moment"))
    return (await session.execute(query.order_by(WorkerRow.owner))).all()


def is_looking(worker: Any) -> bool:
    """Whether a worker has looked for work lately, by the database's clock."""
    return bool((worker.moment - worker.looked_at).total_seconds() < ALIVE_S)


async def count_looking(session: AsyncSession) -> Mapping[str, float]:
    return {"looking": sum(map(is_looking, await workers(session)))}


async def count_by_state(session: AsyncSession) -> Mapping[str, float]:
    query = select(func.count().filter(WAITS), func.count().filter(~WAITS)).select_from(JobRow)
    waiting, running = (await session.execute(query)).one()
    return {"waiting": waiting, "running": running}
